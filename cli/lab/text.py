"""Figures as text: Markdown tables, bars, and numbers as short as they may be."""

from collections.abc import Iterable, Sequence

BAR_WIDTH = 40
STEPS = " ▏▎▍▌▋▊▉█"  # a character's width in eighths


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The first column is text, the others numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def block(text: str) -> str:
    return f"```\n{text.rstrip()}\n```"


def bars(rows: Sequence[tuple[str, float]], unit: str = "") -> str:
    """One line each, the longest as wide as there is room."""
    most = max((value for _, value in rows), default=0.0) or 1.0
    width = max((len(label) for label, _ in rows), default=0)
    return block(
        "\n".join(
            f"{label:>{width}} {bar(value / most):<{BAR_WIDTH}} {number(value)}{unit}"
            for label, value in rows
        )
    )


def bar(share: float) -> str:
    whole, rest = divmod(round(share * BAR_WIDTH * 8), 8)
    return "█" * whole + (STEPS[rest] if rest else "")


def number(value: float) -> str:
    """Three figures that mean something."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else number(1000 * seconds)


def against(ours: float, theirs: float) -> str:
    """How far ours is from theirs."""
    return f"{100 * (ours / theirs - 1):+.0f} %"
