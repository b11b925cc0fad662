"""Cost models by name, by flags, or from a JSON file."""

import json
import math
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from scheduler.simulation.cost import Constant, CostModel, Linear
from scheduler.simulation.errors import InputError
from scheduler.simulation.options import Options
from scheduler.simulation.roofline import BUILT_IN, Device, Roofline, Shape

# SmolLM2-135M in bfloat16 on two cores of a Xeon (AMX), fitted by `--calibrate` to what
# docs/performance.md measured inside a running system (2026-11-29): steps of 1, 8 and 16 rows in
# 22.8, 27.1 and 37.4 ms, 8 rows beside 184 tokens of a prompt in 118, 15 beside 177 in 108; mean
# error 2.4 %. Swapping: 23,040 bytes a token, read and written at 14.5 GB/s.
EMBEDDED = Linear(
    step=0.0213, token=0.000402, decode_context=2.73e-6, prefill_context=1.05e-7, swapped=3.2e-6
)

SIMULATED_BLOCKS = 65_536  # as `--backend simulated` has
STEP_TOKENS = {"embedded": 192}  # what a worker on a CPU takes


def cost_model(options: Options) -> CostModel:
    """Raises InputError."""
    name, worker = options.simulation.cost, options.worker
    if name in BUILT_IN:
        return BUILT_IN[name]
    match name:
        case "constant":
            return Constant(worker.step_ms / 1e3, worker.token_us / 1e6)
        case "linear":
            return Linear(**_coefficients(options.simulation.coefficients))
        case "embedded":
            return EMBEDDED
        case _ if name.endswith(".json"):
            return _read(name)
    known = ", ".join(("constant", "linear", "embedded", *BUILT_IN))
    raise InputError(f"--cost: {name!r} is none of {known}, and no JSON file")


def default_step_tokens(options: Options, cost: CostModel) -> int:
    """As a worker of that kind takes by itself."""
    if isinstance(cost, Roofline):
        return 2048
    return STEP_TOKENS.get(options.simulation.cost, 512)


def default_blocks(cost: CostModel, block_size: int) -> int:
    """What fits into the device beside the model, if it is known."""
    if not isinstance(cost, Roofline):
        return SIMULATED_BLOCKS
    blocks = cost.num_blocks(block_size)
    if blocks < 1:
        raise InputError("--cost: the model leaves no memory for a cache; --num-blocks sets it")
    return blocks


def to_json(model: Linear) -> str:
    return json.dumps({"linear": asdict(model)})


def _coefficients(text: str) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise InputError(f"--coefficients: {part!r} is not NAME=SECONDS") from None
    return _checked("--coefficients", Linear, found)


def _read(path: str) -> CostModel:
    """`{"linear": {…}}` with the fields of `Linear`, or `{"device": {…}, "shape": {…}}`."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    match found:
        case {"linear": {**coefficients}}:
            return Linear(**_checked(path, Linear, coefficients))
        case {"device": {**device}, "shape": {**shape}}:
            return Roofline(
                Device(**_checked(path, Device, device)), Shape(**_checked(path, Shape, shape))
            )
    raise InputError(f'{path}: neither {{"linear": …}} nor {{"device": …, "shape": …}}')


def _checked(source: str, kind: type[Any], found: dict[Any, Any]) -> dict[str, Any]:
    known = {spec.name: spec for spec in fields(kind)}
    for name, value in found.items():
        if name not in known:
            raise InputError(f"{source}: {name!r} is none of {', '.join(known)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise InputError(f"{source}: {name}={value!r} is not a number from 0 on")
    missing = [n for n, spec in known.items() if spec.default is MISSING and n not in found]
    if missing:
        raise InputError(f"{source}: {', '.join(missing)} must be given")
    return found
