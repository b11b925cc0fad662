"""Each service starts with the packages that it installs: none that only the tests bring."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What pip installs for tests, on a machine without a GPU, and for no service.
FOREIGN = ("triton", "transformers", "pytest", "hypothesis", "httpx", "openai", "psutil", "ziglang")

IMPORT = """
import importlib, sys
sys.modules.update(dict.fromkeys({foreign!r}))  # None: an import of it fails
for name in {modules!r}:
    importlib.import_module(name)
"""


@pytest.mark.parametrize(
    "modules",
    [
        ("gpu_worker.__main__", "gpu_worker.loading"),
        ("gateway.__main__",),
        ("scheduler.__main__", "scheduler.simulation.__main__"),
    ],
    ids=["worker", "gateway", "scheduler"],
)
def test_a_service_needs_no_package_of_the_tests(modules: tuple[str, ...]) -> None:
    code = IMPORT.format(foreign=FOREIGN, modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
