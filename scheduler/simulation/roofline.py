"""Steps of a GPU, from what it can do at most and from the shape of a model.

With T tokens in the step, of which S draw a token:

    linear layers   max(2 P T + 2 E V S operations / (peak x efficiency),
                        b (P + E V) bytes / (bandwidth x efficiency))
    attention       max(4 L H D x (sum over tokens of their context) operations / ...,
                        2 b L G D x (positions stored, once a row, and T written) bytes / ...)
    swapping        2 b L G D x slots moved / host bandwidth
    step            the sum of these, and a constant

where a model has L layers, width E, H heads and G heads of K and V of size D, feed-forward width F,
vocabulary V and b bytes a weight, and P = L (2 E H D + 2 E G D + 3 E F) weights in its layers.
Norms, embeddings and activations are left out: they are small beside these.

Sources. Llama 3 8B and Llama 2 7B: the `config.json` files published with them. H200: NVIDIA's data
sheet; 141 GB, 4.8 TB/s, 1,979 TFLOP/s in bfloat16 with sparsity, which is 989 without. A10G: 24 GB
and 600 GB/s as the A10's data sheet says; the A10's 125 TFLOP/s in float16 are 70 on the A10G, by
Amazon's page of its G5 instances. PCIe: 64 GB/s (generation 5, x16) and 32 GB/s (generation 4) each
way. Efficiencies and constants are assumptions, such as large kernels usually reach.
"""

from dataclasses import dataclass

from scheduler.simulation.cost import Load

MEMORY_SHARE = 0.9  # of a device, for weights and cache


@dataclass(frozen=True, slots=True)
class Device:
    flops: float  # operations a second, in the model's type, without sparsity
    bandwidth: float  # bytes a second
    memory: float  # bytes
    host_bandwidth: float  # bytes a second, one way
    compute_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    step_seconds: float = 0.001  # launches, sampling, and what else does not depend on the load


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    weight_bytes: float = 2.0

    @property
    def layer_weights(self) -> int:
        attention = 2 * self.width * self.head_size * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.feed_forward)

    @property
    def head_weights(self) -> int:
        return self.width * self.vocabulary

    @property
    def kv_bytes(self) -> float:
        """K and V of one token."""
        return 2 * self.weight_bytes * self.layers * self.kv_heads * self.head_size


class Roofline:
    def __init__(self, device: Device, shape: Shape) -> None:
        self.device = device
        self.shape = shape
        flops = device.flops * device.compute_efficiency
        bandwidth = device.bandwidth * device.bandwidth_efficiency
        self._token = 2 * shape.layer_weights / flops
        self._sample = 2 * shape.head_weights / flops
        weights = shape.layer_weights + shape.head_weights
        self._weights = shape.weight_bytes * weights / bandwidth
        self._context = 4 * shape.layers * shape.heads * shape.head_size / flops
        self._stored = shape.kv_bytes / bandwidth
        self._swapped = shape.kv_bytes / device.host_bandwidth

    def seconds(self, load: Load) -> float:
        linear = self._token * load.tokens + self._sample * load.samples
        context = self._context * (load.decode_context + load.prefill_context)
        stored = self._stored * (load.stored_context + load.tokens)
        return (
            self.device.step_seconds
            + max(linear, self._weights)
            + max(context, stored)
            + self._swapped * load.swapped_tokens
        )

    def num_blocks(self, block_size: int) -> int:
        """Blocks that fit beside the weights; the embedding counts, though no step reads it all."""
        shape = self.shape
        weights = shape.weight_bytes * (shape.layer_weights + 2 * shape.head_weights)
        free = self.device.memory * MEMORY_SHARE - weights
        return int(free / (shape.kv_bytes * block_size))


LLAMA_3_8B = Shape(32, 4096, 32, 8, 128, 14336, 128_256)
LLAMA_2_7B = Shape(32, 4096, 32, 32, 128, 11008, 32_000)
H200 = Device(flops=989e12, bandwidth=4.8e12, memory=141e9, host_bandwidth=64e9)
A10G = Device(flops=70e12, bandwidth=600e9, memory=24e9, host_bandwidth=32e9)
BUILT_IN = {"h200-8b": Roofline(H200, LLAMA_3_8B), "a10g-7b": Roofline(A10G, LLAMA_2_7B)}
