"""The compiled kernels as Python functions, once with the GIL and once without."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_worker.native.build import NativeUnavailableError

POINTER, INT64, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float

LANES = 16  # of a vector in the C code
MAX_HEAD_SIZE = 256

Function = Callable[..., int | None]

SIGNATURES: dict[str, list[type[Any]]] = {
    "set_threads": [INT],
    "prepare": [],
    "pack": [POINTER] * 2 + [INT64] * 2 + [INT],
    "linear": [POINTER] * 4 + [INT64] * 3 + [INT] * 2,
    "pack_int8": [POINTER] * 2 + [INT64] * 2,
    "linear_int8": [POINTER] * 6 + [INT64] * 3 + [INT] * 2,
    "rms_norm": [POINTER] * 5 + [INT64] * 2 + [FLOAT, INT],
    "silu_mul": [POINTER] * 2 + [INT64] * 2 + [INT],
    "rotary_kv_write": [POINTER] * 9 + [INT64] * 5 + [FLOAT, INT],
    "layers": [POINTER],
    "logits": [POINTER],
    "attention": [POINTER] * 7 + [INT64] * 6 + [FLOAT, INT64, INT],
}


class Library:
    """`long` functions let other Python threads run meanwhile; `short` ones keep the GIL.

    To give the GIL back and take it again costs more than a short kernel, and up to a switch
    interval (5 ms) when another thread computes: too much some 250 times a step.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._long, self._short = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        except OSError as error:
            raise NativeUnavailableError(str(error)) from error

    def long(self, name: str) -> Function:
        return _declare(self._long, name)

    def short(self, name: str) -> Function:
        return _declare(self._short, name)


def _declare(library: ctypes.CDLL, name: str) -> Function:
    function = library[name]
    function.argtypes = SIGNATURES[name]
    function.restype = ctypes.c_int if name in {"attention", "layers", "logits"} else None
    return function
