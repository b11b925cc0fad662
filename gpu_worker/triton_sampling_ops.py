"""The GPU backend's operations of sampling, in Triton, which importing this module imports."""

from gpu_worker.kernels.edit_logits_triton import edit_logits
from gpu_worker.kernels.last_tokens_triton import keep_tokens, pick_tokens
from gpu_worker.kernels.sample_triton import sample
from gpu_worker.sampling_ops import SamplingOps


def triton_sampling_ops() -> SamplingOps:
    return SamplingOps(pick_tokens, keep_tokens, edit_logits, sample)
