"""The weights of a Hugging Face directory: config.json and one or several safetensors files."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.model_config import from_hugging_face
from gpu_worker.quantised_config import formats_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BITS = {"BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8}  # of types whose names do not end in them


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    shape: tuple[int, ...]
    num_bytes: int


class SafetensorsWeights:
    """Files are opened for each tensor anew: what was read of them does not stay in memory."""

    def __init__(self, directory: Path) -> None:
        config_file = directory / "config.json"
        if not config_file.exists():
            raise ModelError(f"{directory} has no config.json")
        config = json.loads(config_file.read_bytes())
        self.config = from_hugging_face(config)
        self.formats = formats_of(config)
        self._entries: dict[str, _Entry] = {}
        for file in _files(directory):
            with _opened(file) as tensors:
                for name in tensors.keys():  # noqa: SIM118  (it is no dict)
                    self._entries[name] = _entry(file, tensors.get_slice(name))

    def names(self) -> set[str]:
        return set(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def num_bytes(self, name: str) -> int:
        return self._entries[name].num_bytes

    def read(self, name: str, *part: slice) -> Tensor:
        with _opened(self._entries[name].file) as tensors:
            tensor: Tensor = tensors.get_slice(name)[part] if part else tensors.get_tensor(name)
        return tensor


def _files(directory: Path) -> list[Path]:
    """The files with the weights: the one that has all, those that the index names, or else all."""
    index = directory / INDEX
    if (single := directory / SINGLE).exists():
        return [single]
    if index.exists():
        named = json.loads(index.read_bytes())["weight_map"]
        if not isinstance(named, dict):
            raise ModelError(f"{index}: weight_map is not a JSON object")
        names = sorted(set(map(str, named.values())))
        if missing := [name for name in names if not (directory / name).exists()]:
            raise ModelError(f"{directory} lacks {missing[0]}, which {INDEX} names")
        return [directory / name for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{directory} has no *.safetensors file; other formats are not read")
    # `consolidated*.safetensors` repeats the weights under names of another format.
    return [file for file in files if not file.name.startswith("consolidated")] or files


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ModelError(f"{file}: cannot be read as safetensors: {error}") from error


def _entry(file: Path, tensor: Any) -> _Entry:
    shape, kind = tuple(tensor.get_shape()), str(tensor.get_dtype())
    bits = BITS.get(kind) or int(kind.lstrip("BFIUC"))
    return _Entry(file, shape, math.prod(shape) * bits // 8)
