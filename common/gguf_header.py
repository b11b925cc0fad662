"""The head of a GGUF file: its metadata, and where its tensors lie; not what is in them.

The `gguf` library keeps every string of an array as an array of its own and needs seconds for a
vocabulary; the gateway starts with this instead (some 0.1 s for 100,000 strings).
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {  # value type -> struct format
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


ALIGNMENT = 32  # of the tensors, where `general.alignment` does not say otherwise

T = TypeVar("T")


class GgufError(Exception):
    """The file is not a GGUF file that this module can read."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    shape: tuple[int, ...]  # outermost first
    kind: int  # GGML's number of the quantisation
    start: int  # bytes from the begin of the file


def read_header(path: Path) -> dict[str, Any]:
    """Every key of the file's metadata with its value; arrays are lists."""
    return _read(path, lambda reader: reader.header())


def read_directory(path: Path) -> tuple[dict[str, Any], list[TensorEntry]]:
    """The metadata, and an entry for each tensor."""
    return _read(path, lambda reader: (reader.header(), reader.tensors()))


def _read(path: Path, read: "Callable[[_Reader], T]") -> T:
    with path.open("rb") as file:
        try:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GgufError("the file is empty") from None
        with view:
            try:
                return read(_Reader(view))
            except (struct.error, UnicodeDecodeError, KeyError, IndexError, OverflowError):
                raise GgufError("its metadata is damaged or cut off") from None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0
        self.num_tensors = 0
        self.metadata: dict[str, Any] = {}

    def header(self) -> dict[str, Any]:
        if self.data[:4] != MAGIC:
            raise GgufError("it does not begin with GGUF")
        self.at = 4
        version = self.scalar("I")
        if version not in VERSIONS:
            raise GgufError(f"GGUF version {version} is not supported")
        self.num_tensors = self.scalar("Q")
        count = self.scalar("Q")
        self.metadata = {self.string(): self.value(self.scalar("I")) for _ in range(count)}
        return self.metadata

    def tensors(self) -> list[TensorEntry]:
        """Call after `header`: the entries follow it, and the tensors' bytes follow them."""
        entries = [self.tensor() for _ in range(self.num_tensors)]
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        data = -(-self.at // alignment) * alignment
        return [replace(entry, start=data + entry.start) for entry in entries]

    def tensor(self) -> TensorEntry:
        name = self.string()
        shape = tuple(self.scalar("Q") for _ in range(self.scalar("I")))
        return TensorEntry(name, shape[::-1], self.scalar("I"), self.scalar("Q"))

    def scalar(self, code: str) -> Any:
        layout = "<" + code
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        text = self.data[self.at : self.at + length]
        if len(text) != length:
            raise IndexError
        self.at += length
        return text.decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.scalar("I"), self.scalar("Q"))
        return self.scalar(SCALARS[kind])

    def array(self, kind: int, count: int) -> list[Any]:
        if count > len(self.data):
            raise IndexError
        if kind == STRING:
            return self.strings(count)
        if kind == ARRAY:
            return [self.value(ARRAY) for _ in range(count)]
        layout = f"<{count}{SCALARS[kind]}"
        values = list(struct.unpack_from(layout, self.data, self.at))
        self.at += struct.calcsize(layout)
        return values

    def strings(self, count: int) -> list[str]:
        data, at = self.data, self.at
        length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            (length,) = length_at(data, at)
            at += 8 + length
            texts.append(data[at - length : at].decode())
        if at > len(data):
            raise IndexError
        self.at = at
        return texts
