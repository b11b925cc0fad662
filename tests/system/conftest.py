"""One started system for all tests that only talk to it."""

from collections.abc import Iterator

import pytest

from tests.system.started import Started, start


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    started = start(tmp_path_factory.mktemp("data"))
    yield started
    assert started.stop() == 0
