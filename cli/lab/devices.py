"""Cost models for the simulator as files: its rooflines, with some parameters changed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Roofline:
    """With the figures of the built-in models; their sources stand in docs/simulator.md."""

    words: str
    device: Mapping[str, float]
    shape: Mapping[str, int]

    def write(self, path: Path, **changes: float) -> Path:
        device = {**self.device, **changes}
        path.write_text(json.dumps({"device": device, "shape": dict(self.shape)}))
        return path


A10G_7B = Roofline(
    "Llama 2 7B on an A10G",
    {
        "flops": 70e12,
        "bandwidth": 600e9,
        "memory": 24e9,
        "host_bandwidth": 32e9,
        "compute_efficiency": 0.6,
        "bandwidth_efficiency": 0.8,
        "step_seconds": 0.001,
    },
    {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "kv_heads": 32,
        "head_size": 128,
        "feed_forward": 11008,
        "vocabulary": 32_000,
    },
)
H200_8B = Roofline(
    "Llama 3 8B on an H200",
    {
        "flops": 989e12,
        "bandwidth": 4.8e12,
        "memory": 141e9,
        "host_bandwidth": 64e9,
        "compute_efficiency": 0.6,
        "bandwidth_efficiency": 0.8,
        "step_seconds": 0.001,
    },
    {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_size": 128,
        "feed_forward": 14336,
        "vocabulary": 128_256,
    },
)
