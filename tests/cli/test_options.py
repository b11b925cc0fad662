"""Every flag of `up` reaches the services that it concerns, and no others."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cli.options import HIDDEN, SERVICES, groups, read_options
from cli.processes import Site
from common.config import UpSettings, flag, parse_bytes, read
from common.metrics import SHARED

NAMES = sorted({spec.name for kind in SERVICES.values() for spec in fields(kind)} - set(HIDDEN))


def commands(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, list[str]]:
    """The flags of each kind of service."""
    options = read_options(arguments, environ or {})
    site = Site(options, Path("/data"), "unix:///s?password=secret", port=8000)
    specs = site.services(descriptors=range(options.up.gateways))
    return {spec.name: list(spec.command[3:]) for spec in specs}


def other_value(spec: Any) -> Any:
    """A value that the field may have and that is not its default."""
    if spec.metadata["choices"]:
        return spec.metadata["choices"][-1]
    if spec.metadata["parse"] is bool:
        return not spec.default
    if isinstance(spec.default, str):
        return f"-{spec.name} with a space"
    if spec.metadata["parse"] is parse_bytes:
        return 1 << 30
    maximum = spec.metadata["maximum"]
    return maximum if maximum is not None else spec.default + 2


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"redis_url", "data_dir"}))
def test_a_flag_is_given_to_whom_it_concerns(name: str) -> None:
    kinds = {s: kind for s, kind in SERVICES.items() if name in {f.name for f in fields(kind)}}
    spec = next(s for kind in kinds.values() for s in fields(kind) if s.name == name)
    value = other_value(spec)
    given = commands(f"{flag(name)}={value}")
    for service, kind in SERVICES.items():
        parsed = read(kind, service, given[f"{service}-0"], environ={})
        assert not hasattr(parsed, name) or name == "port" or getattr(parsed, name) == value
        assert any(f.startswith(f"{flag(name)}=") for f in given[f"{service}-0"]) is (
            service in kinds
        )


@pytest.mark.parametrize("argument", ["--deterministic", "--deterministic=yes"])
def test_a_switch_needs_no_value(argument: str) -> None:
    worker = commands(argument)["worker-0"]
    assert read(SERVICES["worker"], "worker", worker, environ={}).deterministic
    assert read(SERVICES["worker"], "worker", [argument], environ={}).deterministic
    assert not read(SERVICES["worker"], "worker", [], environ={}).deterministic


@pytest.mark.parametrize("gateways", [1, 2])
def test_several_gateways_count_together(gateways: int) -> None:
    site = Site(read_options([f"--gateways={gateways}"], {}), Path("/data"), "redis://h/0", port=1)
    for spec in site.services(range(gateways)):
        is_shared = spec.name.startswith("gateway") and gateways > 1
        assert spec.environ.get(SHARED) == ("/data/metrics" if is_shared else None)


def test_what_was_not_given_is_left_to_each_service() -> None:
    given = commands()
    assert not any("max-step-tokens" in text for flags in given.values() for text in flags)


def test_a_setting_that_services_share_has_one_default() -> None:
    """So that the help of `up`, which names each flag once, is true of all of them."""
    own = {spec.name for spec in fields(UpSettings)}
    defaults: dict[str, set[object]] = {}
    for spec in (spec for kind in SERVICES.values() for spec in fields(kind)):
        defaults.setdefault(spec.name, set()).add(spec.default)
    assert {name for name, found in defaults.items() if len(found) > 1} <= own


def test_variables_are_inherited_and_not_repeated() -> None:
    given = commands(environ={"CHAIRLIFT_MAX_RUNNING": "3", "CHAIRLIFT_WORKERS": "2"})
    assert not any("max-running" in text for text in given["scheduler-0"])
    assert "worker-1" in given


def test_the_password_is_in_no_command_line() -> None:
    given = commands("--redis-url", "redis://:secret@127.0.0.1/0")
    assert not any("secret" in text for flags in given.values() for text in flags)


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    assert "--threads=2" in commands("--workers=3")["worker-2"]
    assert "--threads=0" in commands("--workers=1")["worker-0"]
    assert "--threads=5" in commands("--workers=3", "--threads=5")["worker-0"]


def test_the_help_names_every_setting_once() -> None:
    shown = [spec.name for specs in groups().values() for spec in specs]
    assert sorted(shown) == sorted({*NAMES, *(spec.name for spec in fields(UpSettings))})


def test_a_setting_that_services_read_differently_says_so() -> None:
    (spec,) = (s for specs in groups().values() for s in specs if s.name == "max_step_tokens")
    assert "scheduler: " in spec.metadata["text"]
    assert "worker: " in spec.metadata["text"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gateways", "0"],
        ["--port", "70000"],
        ["--port", "http"],
        ["--policy", "random"],
        ["--kv-bytes", "much"],
        ["--lease-seconds", "nan"],
        ["--max-run", "3"],
        ["--listen-fd", "3"],
        ["upwards"],
    ],
    ids=" ".join,
)
def test_a_bad_option_is_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read_options(arguments, {})
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("chairlift up: ")
    assert arguments[0] in line


def test_children_run_in_this_python() -> None:
    site = Site(read_options([], {}), Path("/data"), "redis://h/0", port=1)
    assert {spec.command[0] for spec in site.services([7])} == {sys.executable}
