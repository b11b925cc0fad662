"""Whether anything grew in a long run, or was left behind at its end; pure."""

import statistics
from collections.abc import Callable, Sequence

from tests.soak.watch import Held, Sample

SHARE = 0.05  # by which memory may grow
FEW_MIB = 1.0  # the same, where this is more: what an allocator may keep for later


def growth(samples: Sequence[Sample]) -> list[str]:
    """Whose memory is more in the last third than in the first, medians compared."""
    third = len(samples) // 3
    if not third:
        return ["too few samples"]
    found = []
    for name in samples[0].held:
        first, last = (_median(part, name) for part in (samples[:third], samples[-third:]))
        if _has_grown(first, last):
            found.append(f"{name}: {first:.1f} MiB in the first third, {last:.1f} in the last")
    return found


def left_behind(before: Sample, after: Sample) -> list[str]:
    """What is held at rest behind the load, and was not before it."""
    found = []
    for name, rest in before.held.items():
        now = after.held[name]
        for what, had, has in _counts(rest, now):
            if has > had:
                found.append(f"{name}: {has} {what} in the place of {had}")
        if _has_grown(rest.mib, now.mib):
            found.append(f"{name}: {now.mib:.1f} MiB in the place of {rest.mib:.1f}")
    for what, count in NUM_KEYS.items():
        if count(after) > count(before):
            found.append(f"{count(after)} {what} in the place of {count(before)}")
    return found


NUM_KEYS: dict[str, Callable[[Sample], int]] = {
    "keys": lambda sample: sample.num_keys,
    "keys without a time to live": lambda sample: sample.num_lasting,
}


def _counts(rest: Held, now: Held) -> list[tuple[str, int, int]]:
    return [
        ("descriptors", rest.descriptors, now.descriptors),
        ("threads", rest.threads, now.threads),
    ]


def _has_grown(before: float, after: float) -> bool:
    return after - before > max(SHARE * before, FEW_MIB)


def _median(samples: Sequence[Sample], name: str) -> float:
    return statistics.median(sample.held[name].mib for sample in samples)
