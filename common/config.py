"""Settings of the services: frozen dataclasses, read from flags and environment here and nowhere else.

A field `max_running` is the flag `--max-running` and the variable `CHAIRLIFT_MAX_RUNNING`; the flag
wins. `read` exits with code 2 and one clear line where a value is bad.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

PREFIX = "CHAIRLIFT_"
GIB = 1 << 30


class SettingError(Exception):
    """A setting has a value that it cannot have; the text names both."""


def setting(
    default: Any,
    text: str,
    *,
    parse: Callable[[str], Any] | None = None,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A field of a settings class. `parse` is taken from the default's type where it is None."""
    metadata = {
        "text": text,
        "parse": parse or type(default),
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
    }
    return field(default=default, metadata=metadata)


def parse_bytes(text: str) -> int:
    """`1.5GiB`, `512MiB`, `1024`: bytes."""
    units = {"kib": 1 << 10, "mib": 1 << 20, "gib": GIB, "tib": 1 << 40, "b": 1}
    lower = text.strip().lower()
    for unit, size in units.items():
        if lower.endswith(unit) and lower != unit:
            return int(float(lower[: -len(unit)]) * size)
    return int(lower)


def parse_bool(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True}
    values |= {"0": False, "false": False, "no": False, "off": False}
    return values[text.strip().lower()]


S = TypeVar("S")


@dataclass(frozen=True)
class CommonSettings:
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0",
        "the Redis or Valkey server: redis://[user:password@]host:port/db or unix:///path/to/socket?password=…",
    )
    pool: str = setting("default", "name of the pool: the workers that serve one model")
    log_level: str = setting(
        "info", "how much is logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "auto", "auto: text on a terminal, else JSON", choices=("auto", "text", "json")
    )


@dataclass(frozen=True)
class GatewaySettings(CommonSettings):
    host: str = setting("127.0.0.1", "address to listen on; other than loopback needs --api-keys")
    port: int = setting(8000, "port to listen on", minimum=0, maximum=65535)
    model: str = setting(
        "embedded", "the model: `embedded`, a Hugging Face directory, a GGUF file, or a hub id"
    )
    served_model_name: str = setting("", "the name that clients use; empty: taken from the model")
    data_dir: str = setting("data", "folder for the model, logs, append-only file and sockets")
    api_keys: str = setting("", "file of hashed API keys; empty: open, on loopback only")
    max_body_bytes: int = setting(16 << 20, "largest request body", parse=parse_bytes, minimum=1024)
    max_choices: int = setting(128, "largest n times prompts of one request", minimum=1)
    max_queue: int = setting(4096, "requests in line or running before 429", minimum=1)
    max_queue_tokens: int = setting(4_000_000, "tokens waiting in line before 429", minimum=1)
    request_timeout_seconds: float = setting(0.0, "deadline of a request; 0: none", minimum=0)
    keep_alive_seconds: float = setting(10.0, "silence before an SSE comment is sent", minimum=0.05)
    stall_seconds: float = setting(
        30.0, "without a step while requests are open, /health fails", minimum=0.1
    )
    drain_seconds: float = setting(30.0, "how long SIGTERM waits for running answers", minimum=0)
    tokenizer_threads: int = setting(1, "threads that tokenise", minimum=1)


@dataclass(frozen=True)
class SchedulerSettings(CommonSettings):
    batching: str = setting("continuous", "who may join a running batch", choices=("continuous",))
    prefill: str = setting("chunked", "how prompts are computed", choices=("chunked",))
    kv: str = setting("paged", "how cache memory is given out", choices=("paged",))
    preemption: str = setting(
        "recompute", "what happens on shortage of blocks", choices=("recompute",)
    )
    policy: str = setting("fcfs", "who goes first", choices=("fcfs",))
    max_step_tokens: int = setting(512, "tokens that one step computes at most", minimum=1)
    max_running: int = setting(
        256, "requests that own blocks at one time, for each worker", minimum=1
    )
    max_queue: int = setting(
        100_000, "requests in the waiting line before new ones end with an error", minimum=1
    )
    depth: int = setting(1, "steps planned ahead of the one that computes", minimum=1, maximum=4)
    lease_seconds: float = setting(
        2.0, "a lease or worker whose beat stands still so long is given up", minimum=0.2
    )
    step_seconds: float = setting(
        120.0, "a step that runs longer costs its worker the log", minimum=0.5
    )
    gateway_grace_seconds: float = setting(
        10.0, "how long requests of a dead gateway wait for a client", minimum=0
    )
    journal_seconds: float = setting(
        600.0, "how long a finished request can be read again", minimum=1
    )
    timeline_entries: int = setting(10_000, "iterations that `timeline` keeps", minimum=1)


@dataclass(frozen=True)
class WorkerSettings(CommonSettings):
    backend: str = setting(
        "auto",
        "what computes; auto: triton on a GPU, else cpu",
        choices=("auto", "cpu", "triton", "simulated"),
    )
    model: str = setting(
        "embedded", "the model: `embedded`, a Hugging Face directory, a GGUF file, or a hub id"
    )
    served_model_name: str = setting("", "the name that clients use; empty: taken from the model")
    data_dir: str = setting("data", "folder for the model, logs, append-only file and sockets")
    dtype: str = setting(
        "auto",
        "of weights and cache; auto: bfloat16",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    device: str = setting("auto", "auto: a GPU if there is one, else cpu; or cpu, cuda, cuda:1 …")
    threads: int = setting(0, "threads of the CPU backend; 0: one for each core", minimum=0)
    kernels: str = setting(
        "auto",
        "of the CPU backend; auto: native if a C compiler is found, else torch",
        choices=("auto", "native", "torch"),
    )
    kv_bytes: int = setting(
        0,
        "memory of the KV cache, as 2GiB; 0: 1GiB on a CPU, what is free on a GPU",
        parse=parse_bytes,
        minimum=0,
    )
    num_blocks: int = setting(0, "blocks of the KV cache; 0: as --kv-bytes says", minimum=0)
    block_size: int = setting(16, "tokens in a block", minimum=1, maximum=256)
    max_model_len: int = setting(
        0, "longest prompt and answer together; 0: what the model allows", minimum=0
    )
    max_step_tokens: int = setting(512, "tokens that one step computes at most", minimum=1)
    max_rows: int = setting(256, "requests that hold rows at one time", minimum=1)
    gpu_memory_share: float = setting(
        0.9, "share of a GPU's memory to use", minimum=0.05, maximum=1.0
    )
    beat_seconds: float = setting(0.5, "how often the worker shows life", minimum=0.05)
    drain_seconds: float = setting(
        30.0, "how long SIGTERM waits for running rows to move away", minimum=0
    )
    step_ms: float = setting(10.0, "simulated: time of a step, constant part", minimum=0)
    token_us: float = setting(0.0, "simulated: time for each token of a step", minimum=0)


def read(
    settings: type[S],
    program: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> S:
    """The settings of a service from its flags and environment; exits 2 with one line if bad."""
    environ = os.environ if environ is None else environ
    parser = argparse.ArgumentParser(
        prog=program,
        description=(settings.__doc__ or "").splitlines()[0] if settings.__doc__ else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=f"Each flag is also an environment variable: --max-running is {PREFIX}MAX_RUNNING.",
    )
    for spec in fields(settings):  # type: ignore[arg-type]
        parser.add_argument(
            flag(spec.name),
            default=None,
            choices=None,
            metavar=_metavar(spec),
            help=f"{spec.metadata['text']} (default: {spec.default!r})".replace("%", "%%"),
        )
    given = vars(parser.parse_args(argv))
    try:
        return settings(**_values(settings, given, environ))
    except SettingError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(2) from None


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def default_data_dir() -> Path:
    return Path("data").absolute()


def _metavar(spec: "Field[Any]") -> str:
    choices = spec.metadata["choices"]
    return "{" + ",".join(choices) + "}" if choices else spec.name.upper()


def _values(
    settings: type[Any], given: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, Any]:
    values = {}
    for spec in fields(settings):
        text, source = given[spec.name], flag(spec.name)
        if text is None and (text := environ.get(variable(spec.name))) is not None:
            source = variable(spec.name)
        if text is not None:
            values[spec.name] = _parse(spec, text, source)
        assert spec.default is not MISSING
    return values


def _parse(spec: "Field[Any]", text: str, source: str) -> Any:
    rules = spec.metadata
    parse = parse_bool if rules["parse"] is bool else rules["parse"]
    try:
        value = parse(text)
    except (ValueError, KeyError):
        raise SettingError(f"{source}: {text!r} is no {_metavar(spec).lower()}") from None
    if rules["choices"] and value not in rules["choices"]:
        raise SettingError(f"{source}: {text!r} is none of {', '.join(rules['choices'])}")
    if rules["minimum"] is not None and value < rules["minimum"]:
        raise SettingError(f"{source}: {text} is below {rules['minimum']}")
    if rules["maximum"] is not None and value > rules["maximum"]:
        raise SettingError(f"{source}: {text} is above {rules['maximum']}")
    return value
