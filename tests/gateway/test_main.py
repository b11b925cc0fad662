"""The program's edges: the port, and the form of its log."""

import json
import logging
import socket

import pytest
import structlog

from common import log
from common.config import GatewaySettings, SettingError
from gateway.__main__ import listen


def test_gateways_share_a_port_among_themselves_only() -> None:
    with listen(GatewaySettings(port=0)) as first:
        first.listen()
        port = first.getsockname()[1]
        with listen(GatewaySettings(port=port)) as second:
            assert second.getsockname()[1] == port
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(SettingError, match=str(port)):
            listen(GatewaySettings(port=port))


def test_a_host_that_is_none() -> None:
    with pytest.raises(SettingError, match=r"192\.0\.2\.1"):
        listen(GatewaySettings(host="192.0.2.1"))


def test_an_inherited_socket_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        with listen(GatewaySettings(listen_fd=held.dup().detach())) as listener:
            assert listener.getsockname() == held.getsockname()
        assert held.fileno() >= 0


def test_json_lines_with_what_is_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    try:
        log.setup("info", "json")
        with structlog.contextvars.bound_contextvars(worker_id="w0"):
            structlog.get_logger().info("step over", step=3)
            structlog.get_logger().debug("not shown")
        logging.getLogger("library").warning("careful: %d", 5)
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["step over", "careful: 5"]
    assert (lines[0]["worker_id"], lines[0]["step"], lines[0]["level"]) == ("w0", 3, "info")
    assert lines[1]["level"] == "warning"
