"""Cost models against calculations by hand."""

import json
from pathlib import Path

import pytest

from common.messages import Chunk, RequestId
from scheduler.simulation.cost import Constant, CostModel, Linear, Load, load_of
from scheduler.simulation.cost_models import cost_model, default_blocks, default_step_tokens
from scheduler.simulation.errors import InputError
from scheduler.simulation.options import make_options
from scheduler.simulation.roofline import A10G, BUILT_IN, H200, Device, Roofline, Shape


def chunk(start: int, count: int, *, samples: bool = True) -> Chunk:
    return Chunk(RequestId("r"), start, count, (), samples)


def test_a_load_counts_what_is_computed_and_what_is_read() -> None:
    chunks = [chunk(9, 1), chunk(19, 1), chunk(0, 4), chunk(4, 2, samples=False)]
    assert load_of(chunks, 32) == Load(
        tokens=8,
        rows=4,
        decode_context=10 + 20,
        prefill_context=(1 + 2 + 3 + 4) + (5 + 6),
        stored_context=10 + 20 + 4 + 6,
        samples=3,
        swapped_tokens=32,
    )
    assert load_of([]) == Load()


def test_constant() -> None:
    assert Constant(0.01, 0.001).seconds(Load(tokens=5)) == pytest.approx(0.015)


def test_linear() -> None:
    model = Linear(step=1, token=10, decode_context=100, row=1000, prefill_context=1e4, swapped=1e5)
    load = Load(2, 3, 4, 5, 0, 0, 6)
    assert model.seconds(load) == 1 + 20 + 400 + 3000 + 5e4 + 6e5


TOY = Shape(layers=2, width=8, heads=4, kv_heads=2, head_size=2, feed_forward=16, vocabulary=10)
SLOW = Device(1000.0, 1e12, 1e9, 100.0, 0.5, 1.0, 0.25)  # bound by its operations
NARROW = Device(1e12, 1000.0, 1e9, 100.0, 1.0, 0.5, 0.25)  # bound by its memory


def test_sizes_of_a_model() -> None:
    attention = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8  # queries, keys, values, output
    assert TOY.layer_weights == 2 * (attention + 3 * 8 * 16)
    assert TOY.head_weights == 80
    assert TOY.kv_bytes == 2 * 2 * 2 * 2 * 2  # K and V, bytes, layers, heads, size


def test_a_step_bound_by_operations() -> None:
    load = load_of([chunk(9, 1), chunk(0, 4)])
    linear = 2 * TOY.layer_weights * 5 + 2 * TOY.head_weights * 2
    attention = 4 * 2 * 4 * 2 * (10 + 10)
    assert Roofline(SLOW, TOY).seconds(load) == pytest.approx(0.25 + (linear + attention) / 500)


def test_a_step_bound_by_memory() -> None:
    load = load_of([chunk(9, 1), chunk(0, 4)], swapped_tokens=16)
    weights = 2 * (TOY.layer_weights + TOY.head_weights)
    cache = TOY.kv_bytes * (10 + 4 + 5)
    swapping = TOY.kv_bytes * 16 / 100
    expected = 0.25 + (weights + cache) / 500 + swapping
    assert Roofline(NARROW, TOY).seconds(load) == pytest.approx(expected)


def test_built_in_models_have_their_published_sizes() -> None:
    llama3, llama2 = BUILT_IN["h200-8b"].shape, BUILT_IN["a10g-7b"].shape
    embeddings = llama3.head_weights
    assert (llama3.layer_weights + embeddings + llama3.head_weights) / 1e9 == pytest.approx(
        8.03, abs=0.01
    )
    assert (llama2.layer_weights + 2 * llama2.head_weights) / 1e9 == pytest.approx(6.74, abs=0.01)
    assert (llama3.kv_bytes, llama2.kv_bytes) == (128 * 1024, 512 * 1024)
    assert (H200.memory, A10G.memory) == (141e9, 24e9)


def test_blocks_fit_beside_the_weights() -> None:
    model = BUILT_IN["h200-8b"]
    blocks = model.num_blocks(16)
    used = blocks * 16 * model.shape.kv_bytes + 2 * 8.03e9
    assert used == pytest.approx(0.9 * 141e9, rel=0.001)


def chosen(*given: str) -> CostModel:
    names = dict(pair.split("=", 1) for pair in given)
    return cost_model(make_options(names, {}))


def test_models_by_name() -> None:
    assert chosen("step_ms=20", "token_us=5") == Constant(0.02, 5e-6)
    assert chosen("cost=linear", "coefficients=step=0.5,row=2") == Linear(step=0.5, row=2)
    assert chosen("cost=a10g-7b") is BUILT_IN["a10g-7b"]


@pytest.mark.parametrize(
    ("rows", "prompt", "milliseconds"), [(1, 0, 22.8), (8, 0, 27.1), (16, 0, 37.4), (15, 177, 108)]
)
def test_the_embedded_model_is_as_it_was_measured(
    rows: int, prompt: int, milliseconds: float
) -> None:
    """Of docs/performance.md, at the mean context of its runs."""
    chunks = [chunk(192, 1)] * rows + [chunk(0, prompt)] * bool(prompt)
    taken = chosen("cost=embedded").seconds(load_of(chunks))
    assert 1000 * taken == pytest.approx(milliseconds, rel=0.07)


def test_models_from_files(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text('{"linear": {"step": 0.5}}')
    assert chosen(f"cost={file}") == Linear(step=0.5)
    device = {"flops": 1e12, "bandwidth": 1000, "memory": 1e9, "host_bandwidth": 100}
    shape = {"layers": 2, "width": 8, "heads": 4, "kv_heads": 2, "head_size": 2}
    shape |= {"feed_forward": 16, "vocabulary": 10}
    file.write_text(json.dumps({"device": device, "shape": shape}))
    model = chosen(f"cost={file}")
    assert isinstance(model, Roofline)
    assert model.shape == TOY
    assert default_blocks(model, 16) == int((0.9e9 - 2 * (TOY.layer_weights + 160)) / 32 / 16)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"linear": {"stp": 1}}',
        '{"linear": {"step": -1}}',
        '{"linear": {"step": "1"}}',
        '{"device": {"flops": 1}, "shape": {}}',
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cost.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"cost\.json"):
        chosen(f"cost={file}")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["cost=fast"], "--cost: 'fast' is none of"),
        (["cost=linear", "coefficients=step=x"], "'step=x' is not NAME=SECONDS"),
        (["cost=linear", "coefficients=steps=1"], "'steps' is none of"),
    ],
)
def test_flags_that_are_wrong(given: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        chosen(*given)


def test_a_model_too_large_leaves_no_cache() -> None:
    small = Roofline(Device(1e12, 1e9, 1000.0, 1e9), TOY)
    with pytest.raises(InputError, match="no memory"):
        default_blocks(small, 16)


def test_steps_are_as_large_as_a_worker_of_that_kind_takes() -> None:
    for name, tokens in {"constant": 512, "embedded": 192, "h200-8b": 2048}.items():
        options = make_options({"cost": name}, {})
        assert default_step_tokens(options, cost_model(options)) == tokens
