"""The README's tree names every file of the product, each with its own first sentence.

`python -m tests.test_readme` writes the tree anew.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGES = ("gateway", "scheduler", "gpu_worker", "common", "cli")
BEGIN, END = "<!-- tree -->\n```\n", "```\n<!-- /tree -->"


def test_the_tree_is_true() -> None:
    assert tree() in README.read_text(), "python -m tests.test_readme writes it anew"


def test_links_lead_somewhere() -> None:
    for page in (README, *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def tree() -> str:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = []
    folder = ""
    names = [name for name in set(listed.stdout.split()) if (ROOT / name).exists()]
    for name in sorted(names, key=lambda name: (Path(name).parent.parts, name)):
        path = Path(name)
        if path.name == "__init__.py":
            continue
        if str(path.parent) != folder:
            folder = str(path.parent)
            lines.append(f"{folder}/")
        lines.append(f"  {path.name:<26} {purpose(ROOT / path)}")
    return BEGIN + "\n".join(lines) + "\n" + END


def purpose(path: Path) -> str:
    """The first sentence of the file."""
    text = re.sub(r'^(#!lua[^\n]*\n+)?(--|/\*|"""|#)', "", path.read_text()).strip()
    sentence = re.split(r"(?<=[.?])\s|\"\"\"|\*/|\n\s*\n", text, maxsplit=1)[0]
    return " ".join(sentence.replace("\n--", " ").split()).rstrip(".")


def main() -> None:
    text = README.read_text()
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    README.write_text(text[:begin] + tree() + text[end:])


if __name__ == "__main__":
    main()
