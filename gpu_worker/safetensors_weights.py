"""The weights of a Hugging Face directory: config.json and one or several safetensors files."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_worker.engine import ModelError
from gpu_worker.model_config import from_hugging_face

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class SafetensorsWeights:
    def __init__(self, directory: Path) -> None:
        config_file = directory / "config.json"
        if not config_file.exists():
            raise ModelError(f"{directory} has no config.json")
        self.config = from_hugging_face(json.loads(config_file.read_bytes()))
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{directory} has no *.safetensors file; other formats are not read")
        # `consolidated*.safetensors` repeats the weights under names of another format.
        files = [file for file in files if not file.name.startswith("consolidated")] or files
        try:
            opened: list[Any] = [safe_open(file, framework="pt") for file in files]
        except SafetensorError as error:
            raise ModelError(f"{directory}: a safetensors file cannot be read: {error}") from error
        self._file_of = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  (it is no dict)

    def names(self) -> set[str]:
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def read(self, name: str, *part: slice) -> Tensor:
        tensor: Tensor = self._file_of[name].get_slice(name)[part or (slice(None),)]
        if tensor.dtype not in FLOATS:
            raise ModelError(f"tensor {name} has the type {tensor.dtype}, which is not supported")
        return tensor
