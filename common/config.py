"""Settings of the services: frozen dataclasses, read from flags and environment here and nowhere else.

A field `max_running` is the flag `--max-running` and the variable `CHAIRLIFT_MAX_RUNNING`; the flag
wins. Where a variable holds a secret, `CHAIRLIFT_…_FILE` names a file that holds its value instead.
`read` exits with code 2 and one clear line where a value is bad.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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
    """What every service needs."""

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
    """Serves the OpenAI API over HTTP and hands requests to the schedulers through Redis."""

    host: str = setting("127.0.0.1", "address to listen on; other than loopback needs --api-keys")
    port: int = setting(8000, "port to listen on; 0: any free one", minimum=0, maximum=65535)
    listen_fd: int = setting(
        -1, "descriptor of an inherited listening socket; -1: bind --host and --port", minimum=-1
    )
    model: str = setting(
        "embedded", "the model: `embedded`, a Hugging Face directory, a GGUF file, or a hub id"
    )
    served_model_name: str = setting("", "the name that clients use; empty: taken from the model")
    data_dir: str = setting(
        "data", "folder for models from the hub, compiled kernels, logs and the append-only file"
    )
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
    """Decides which tokens of which requests each step of each worker computes."""

    batching: str = setting(
        "continuous",
        "who may join a running batch: whoever fits, or nobody until all of it has ended",
        choices=("continuous", "static"),
    )
    prefill: str = setting(
        "chunked",
        "how prompts are computed: in chunks beside decoding rows, whole beside them, or in steps of their own",
        choices=("chunked", "whole", "exclusive"),
    )
    kv: str = setting(
        "paged",
        "how cache memory is given out: block by block, or one contiguous range for each request",
        choices=("paged", "reserved"),
    )
    reservation: str = setting(
        "exact",
        "kv=reserved: room for prompt and answer, for the answer's next power of two, or for the longest request",
        choices=("exact", "power_of_two", "maximum"),
    )
    preemption: str = setting(
        "recompute",
        "on shortage of blocks: drop and compute anew, move to host memory and back, or never admit so many",
        choices=("recompute", "swap", "never"),
    )
    policy: str = setting(
        "priority",
        "who goes first; without priorities, `priority` is first come, first served",
        choices=("fcfs", "priority", "fair", "shortest", "deadline"),
    )
    aging_seconds: float = setting(
        30.0,
        "waiting time that outweighs one level of priority, or 1000 tokens under policy=shortest",
        minimum=0.001,
    )
    ttft_target_ms: float = setting(
        2000.0, "policy=deadline: time to first token of requests that name none", minimum=1
    )
    tenant_weights: str = setting(
        "", "policy=fair: shares of tenants, as `alice=2,bob=0.5`; others have 1"
    )
    prefix_cache: str = setting(
        "auto",
        "whether a tenant's requests share the blocks of equal prefixes; auto: where kv=paged",
        choices=("auto", "on", "off"),
    )
    itl_target_ms: float = setting(
        0.0,
        "inter-token latency that the size of steps keeps to; 0: steps of --max-step-tokens",
        minimum=0,
    )
    max_step_tokens: int = setting(
        0, "tokens that one step computes at most; 0: as many as the worker takes", minimum=0
    )
    max_running: int = setting(
        256, "requests that own blocks at one time, for each worker", minimum=1
    )
    max_open: int = setting(
        100_000, "requests in line or running before new ones end with an error", minimum=1
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
    resume_grace_seconds: float = setting(
        60.0,
        "how long a resumable request that no client waits for is computed on before it is cancelled",
        minimum=0,
    )
    journal_seconds: float = setting(
        600.0, "how long a finished request can be read again", minimum=1
    )
    timeline_entries: int = setting(10_000, "iterations that `timeline` keeps", minimum=1)


@dataclass(frozen=True)
class WorkerSettings(CommonSettings):
    """Loads the model, computes the steps that the scheduler plans, and commits their tokens."""

    backend: str = setting(
        "auto",
        "what computes; auto: triton on a GPU, else cpu",
        choices=("auto", "cpu", "triton", "simulated"),
    )
    model: str = setting(
        "embedded", "the model: `embedded`, a Hugging Face directory, a GGUF file, or a hub id"
    )
    served_model_name: str = setting("", "the name that clients use; empty: taken from the model")
    data_dir: str = setting(
        "data", "folder for models from the hub, compiled kernels, logs and the append-only file"
    )
    dtype: str = setting(
        "auto",
        "of weights and cache; auto: bfloat16",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    quantization: str = setting(
        "none",
        "int8: weights of linear layers rounded to eight bits when they are loaded, and on a CPU "
        "what they are multiplied with; faster, a little less exact",
        choices=("none", "int8"),
    )
    device: str = setting("auto", "auto: a GPU if there is one, else cpu; or cpu, cuda, cuda:1 …")
    tensor_parallel: int = setting(
        1, "GPUs, or processes on a CPU, that compute the model together", minimum=1, maximum=64
    )
    threads: int = setting(
        0,
        "threads of the CPU backend, shared by its processes; 0: one for each core",
        minimum=0,
    )
    kernels: str = setting(
        "auto",
        "of the CPU backend; auto: native if a C compiler is found, else torch",
        choices=("auto", "native", "torch"),
    )
    deterministic: bool = setting(
        False, "a request's tokens are the same bits in any batch; slower on a GPU"
    )
    kv_bytes: int = setting(
        0,
        "memory of the KV cache, as 2GiB; 0: 448MiB on a CPU, or up to 1GiB if a longest request "
        "takes more; what is free on a GPU",
        parse=parse_bytes,
        minimum=0,
    )
    num_blocks: int = setting(0, "blocks of the KV cache; 0: as --kv-bytes says", minimum=0)
    block_size: int = setting(16, "tokens in a block", minimum=1, maximum=256)
    swap_bytes: int = setting(
        GIB, "host memory for blocks that are swapped out, as 2GiB", parse=parse_bytes, minimum=0
    )
    max_model_len: int = setting(
        0, "longest prompt and answer together; 0: what the model allows", minimum=0
    )
    max_step_tokens: int = setting(
        0,
        "tokens that one step computes at most; 0: on a CPU what takes 60 ms, measured at the start; "
        "2048 on a GPU, 512 simulated",
        minimum=0,
    )
    max_rows: int = setting(
        320,
        "requests that hold rows at one time, also those whose last token is under way: somewhat "
        "more than run",
        minimum=1,
    )
    gpu_memory_share: float = setting(
        0.9, "share of a GPU's memory to use", minimum=0.05, maximum=1.0
    )
    cuda_graphs: str = setting(
        "auto",
        "launch steps on a GPU as captured graphs; auto: those that --warm-up-seconds leave time for",
        choices=("auto", "on", "off"),
    )
    graph_tokens: int = setting(512, "largest step that is captured as a graph", minimum=1)
    warm_up_seconds: float = setting(
        60.0,
        "after so long no further kernel is compiled, and no further graph captured, before the start",
        minimum=0,
    )
    beat_seconds: float = setting(0.5, "how often the worker shows life", minimum=0.05)
    drain_seconds: float = setting(
        30.0, "how long SIGTERM waits for running rows to move away", minimum=0
    )
    step_ms: float = setting(10.0, "simulated: time of a step, constant part", minimum=0)
    token_us: float = setting(0.0, "simulated: time for each token of a step", minimum=0)


@dataclass(frozen=True)
class UpSettings:
    """Starts a whole Chairlift on this machine: a Redis server, gateways, schedulers and workers."""

    gateways: int = setting(1, "gateway processes; all accept on one port", minimum=1, maximum=64)
    schedulers: int = setting(
        1, "scheduler processes; one leads, the others stand by", minimum=1, maximum=16
    )
    workers: int = setting(1, "worker processes; each loads the model", minimum=1, maximum=64)
    redis_url: str = setting(
        "", "an existing server, as redis://user:password@host:port/db; empty: an embedded one"
    )
    redis_bytes: int = setting(
        GIB, "memory that the embedded server may use", parse=parse_bytes, minimum=16 << 20
    )


def read(
    settings: type[S],
    program: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> S:
    """The settings of a service from its flags and environment; exits 2 with one line if bad."""
    specs = fields(settings)  # type: ignore[arg-type]
    parser = make_parser(program, settings.__doc__ or "", {"settings": specs})
    given = vars(parser.parse_args(argv))
    try:
        return settings(**values(specs, given, os.environ if environ is None else environ))
    except SettingError as error:
        parser.error(str(error))


def make_parser(
    program: str, description: str, groups: Mapping[str, Sequence["Field[Any]"]]
) -> argparse.ArgumentParser:
    """A parser with one flag for each field, whose value stays the text that was given, or None."""
    parser = _Parser(
        prog=program,
        usage="%(prog)s [flags]",
        description=description.splitlines()[0],
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        epilog="Each flag is also the environment variable that stands behind it; with _FILE appended,\n"
        "the variable names a file that holds the value. Flags win.",
    )
    for title, specs in groups.items():
        group = parser.add_argument_group(title)
        for spec in specs:
            text = f"{spec.metadata['text']} (default: {_show(spec)}; {variable(spec.name)})"
            given: dict[str, Any] = {"metavar": _metavar(spec), "help": text.replace("%", "%%")}
            if spec.metadata["parse"] is bool:  # which may be meant by its name alone
                given |= {"nargs": "?", "const": "true"}
            group.add_argument(flag(spec.name), default=None, **given)
    return parser


def values(
    specs: Sequence["Field[Any]"], given: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, Any]:
    """What flags, else the environment, say about these fields; the others keep their defaults.

    Raises SettingError.
    """
    found = {}
    for spec in specs:
        text, source = given.get(spec.name), flag(spec.name)
        if text is None:
            text, source = _from_environment(variable(spec.name), environ)
        if text is not None:
            found[spec.name] = _parse(spec, text, source)
    return found


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with changes, for a child process."""
    return os.environ | dict(changes or {})


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _from_environment(name: str, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The text and the variable that it comes from."""
    source = f"{name}_FILE"
    if name in environ or source not in environ:
        return environ.get(name), name
    try:
        return Path(environ[source]).read_text().strip(), source
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{source}: cannot read {environ[source]}: {error}") from None


def _metavar(spec: "Field[Any]") -> str:
    if choices := spec.metadata["choices"]:
        return "{" + ",".join(choices) + "}"
    kinds = {int: "N", float: "NUMBER", bool: "BOOL", parse_bytes: "SIZE"}
    return kinds.get(spec.metadata["parse"], "TEXT")


def _show(spec: "Field[Any]") -> str:
    default: Any = spec.default
    if spec.metadata["parse"] is parse_bytes:
        units = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))
        whole = (f"{default // size}{unit}" for unit, size in units if default % size == 0)
        return next(whole) if default else "0"
    return str(default) if default != "" else "empty"


def _parse(spec: "Field[Any]", text: str, source: str) -> Any:
    rules = spec.metadata
    parse = parse_bool if rules["parse"] is bool else rules["parse"]
    try:
        value = parse(text)
    except (ValueError, KeyError, OverflowError):
        raise SettingError(f"{source}: {text!r} is not {_kind(spec)}") from None
    if rules["choices"] and value not in rules["choices"]:
        raise SettingError(f"{source}: {text!r} is none of {', '.join(rules['choices'])}")
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{source}: {text!r} is not {_kind(spec)}")
    if rules["minimum"] is not None and value < rules["minimum"]:
        raise SettingError(f"{source}: {text} is below {rules['minimum']}")
    if rules["maximum"] is not None and value > rules["maximum"]:
        raise SettingError(f"{source}: {text} is above {rules['maximum']}")
    return value


def _kind(spec: "Field[Any]") -> str:
    kinds = {int: "a whole number", float: "a number", bool: "true or false"}
    return kinds.get(spec.metadata["parse"], "a size, as 2GiB")
