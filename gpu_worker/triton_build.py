"""Where Triton keeps what it compiles, and the C compiler that it takes for what launches kernels.

Importing this module imports triton, which a machine without a GPU need not have.
"""

import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import triton

from gpu_worker.native.build import Command, compilers


def set_cache_dir(path: Path) -> None:
    """Where compiled kernels are kept, for the next start too."""
    triton.knobs.cache.dir = str(path)


def set_compiler(cache_dir: Path) -> None:
    """Triton knows gcc and clang; without them, take what the CPU's kernels are compiled with."""
    if triton.knobs.build.cc or shutil.which("gcc") or shutil.which("clang"):
        return
    if command := next(compilers(cache_dir), None):
        triton.knobs.build.impl = partial(_build, command)


def _build(
    command: Command,
    name: str,
    source: str,
    folder: str,
    library_dirs: Sequence[str],
    include_dirs: Sequence[str],
    libraries: Sequence[str],
    *_flags: object,
) -> str:
    """The extension module of one C file, in `folder`; needs Python's headers."""
    module = Path(folder) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    headers = [*include_dirs, folder, sysconfig.get_path("include", "posix_prefix")]
    arguments = ["-O3", "-shared", "-fPIC", "-o", str(module), source]
    arguments += [f"-I{path}" for path in headers] + [f"-L{path}" for path in library_dirs]
    arguments += [f"-l:{library}" if ".so" in library else f"-l{library}" for library in libraries]
    subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
    return str(module)
