"""By which variable a process of `tests.bench.promise` finds its switch."""

import os
from collections.abc import Mapping

SWITCH = "CHAIRLIFT_BENCH_NO_JOURNALS"  # a file: while it stands there, no journals are written


def environ() -> Mapping[str, str]:
    return os.environ
