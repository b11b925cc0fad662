"""The stream that is late shows the mistakes for which the other tests use it."""

import pytest
import torch

from gpu_worker.device import copy, send
from tests.gpu_worker.deferred import DeferredStream


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_memory_that_is_written_again_too_early_arrives_as_it_is_then() -> None:
    stream = DeferredStream()
    pinned, device = stream.pinned(2, torch.int32), stream.empty(2, torch.int32)
    pinned.copy_(numbers(1, 2))
    stream.run(lambda: copy(device, pinned))
    event = stream.record()
    pinned.copy_(numbers(3, 4))
    event.synchronize()
    assert device.tolist() == [3, 4]


def test_a_result_is_not_there_before_somebody_waits() -> None:
    stream = DeferredStream()
    pinned, device = stream.pinned(2, torch.int32), numbers(1, 2)
    stream.run(lambda: copy(pinned, device))
    event = stream.record()
    stream.run(lambda: copy(pinned, numbers(5, 6)))
    assert pinned.tolist() != [1, 2]
    event.synchronize()
    assert pinned.tolist() == [1, 2]  # and nothing that was launched behind the event
    stream.synchronize()
    assert pinned.tolist() == [5, 6]


def test_inputs_are_gone_when_their_step_is_done() -> None:
    stream = DeferredStream()
    memory = stream.empty(4, torch.uint8)
    seen: list[list[int]] = []
    stream.run(lambda: copy(memory, torch.ones(4, dtype=torch.uint8)))
    stream.run(lambda: seen.append(memory.tolist()))
    stream.record()
    stream.run(lambda: seen.append(memory.tolist()))
    stream.synchronize()
    assert seen[0] == [1] * 4
    assert 1 not in seen[1]


def test_a_graph_works_over_its_memory_and_leaves_its_results_in_one_place() -> None:
    stream = DeferredStream()
    memory = numbers(1, 2)
    graph = stream.capture(lambda: (memory * 10,))
    for value in (3, 4):
        memory.fill_(value)
        stream.run(graph.replay)
        stream.synchronize()
        assert graph.outputs[0].tolist() == [10 * value] * 2


def test_what_failed_once_fails_for_ever() -> None:
    stream = DeferredStream()
    done: list[int] = []
    stream.run(lambda: done.append(1))
    before = stream.record()
    stream.run(lambda: 1 / 0 and None)
    stream.run(lambda: done.append(2))
    before.synchronize()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            stream.synchronize()
    assert done == [1]


def test_arrays_are_sent_as_they_are_when_they_are_sent() -> None:
    stream = DeferredStream()
    arrays = [numbers(1, 2, 3).numpy(), torch.zeros(0).numpy(), torch.tensor([[0.5], [2]]).numpy()]
    sent = send(stream, arrays)
    arrays[0].fill(9)
    stream.synchronize()
    assert [tensor.tolist() for tensor in sent] == [[1, 2, 3], [], [[0.5], [2.0]]]
    assert [tensor.data_ptr() % 64 for tensor in sent] == [sent[0].data_ptr() % 64] * 3
