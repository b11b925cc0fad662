"""Traces as they are read for any use; tests of the simulator have every format and fault."""

from pathlib import Path

import pytest

from common.traces import TraceError, TraceRequest, read_trace

HEAD = "arrival_s,tenant,prompt_tokens,output_tokens"


def write(folder: Path, *lines: str) -> str:
    file = folder / "trace"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_requests_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, "2.5,b,7,8", "0.5,a,5,6")
    assert read_trace(path) == [TraceRequest(0.5, 5, 6, "a"), TraceRequest(2.5, 7, 8, "b")]


def test_times_of_azure_begin_at_zero(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    lines = ("2023-11-16 18:15:47.5,3,4", "2023-11-16 18:15:46.0,1,2")
    found = read_trace(write(tmp_path, head, *lines))
    assert found == [TraceRequest(0.0, 1, 2), TraceRequest(1.5, 3, 4)]


@pytest.mark.parametrize("at", ["inf", "nan", "-1"])
def test_a_time_that_never_comes(tmp_path: Path, at: str) -> None:
    with pytest.raises(TraceError, match="line 2: a time"):
        read_trace(write(tmp_path, HEAD, f"{at},a,5,6"))


def test_a_path_that_is_none() -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_trace("a\0b")
