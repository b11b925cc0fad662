"""The load client: what others that measure use of it."""

from cli.bench.load import BenchError, first_model, make_prompt, run

__all__ = ["BenchError", "first_model", "make_prompt", "run"]
