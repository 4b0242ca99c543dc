"""Puts what `make demo` printed into README.md: `make readme` calls it with a file of that output.

Of each command the block holds the lines that say what came of it, and leaves out the others.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

BEGIN, END = "<!-- make readme: begin -->\n", "<!-- make readme: end -->\n"
COMMAND = re.compile(r'^(".*/)?qat-tft"? (?P<words>\w.*)$')
TABLES = {"train": "q-risk on the test part"}
"""Command to the title of the table that is shown whole."""
LINES = {
    "check": re.compile(
        r"PASSED|FAILED|[│┃] (tensors compared|those that differ|SQNR optimized|size and speed|file, KB) "
    ),
    "report": re.compile(r"Checkpointing \("),
}
"""Command to the lines of it that are shown."""


def block(printed: str) -> str:
    """Return the part of README.md that shows a demo, from everything that it printed, commands included."""
    shown = (line for words, lines in _by_command(printed) for line in (words, *_shown(words, lines)))
    return "".join(f"    {line}".rstrip() + "\n" for line in shown)


def taken(readme: str) -> str:
    """Return what stands between the marks of a README."""
    return readme.partition(BEGIN)[2].partition(END)[0]


def put(readme: str, text: str) -> str:
    """Return a README with the block between its marks replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _by_command(printed: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command as a user types it, with the lines that follow it."""
    words, lines = "", list[str]()
    for line in printed.splitlines():
        if found := COMMAND.match(line):
            if words:
                yield words, lines
            words, lines = f"qat-tft {found['words']}", []
        else:
            lines.append(line)
    if words:
        yield words, lines


def _shown(words: str, lines: list[str]) -> Iterator[str]:
    name = words.split()[1]
    inside = False
    for line in lines:
        inside = inside or (name in TABLES and TABLES[name] in line)
        if inside or (name in LINES and LINES[name].search(line)):
            yield line
        inside = inside and not line.startswith("└")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python readme_block.py OUTPUT README.md")
    output, page = Path(sys.argv[1]), Path(sys.argv[2])
    page.write_text(put(page.read_text(encoding="utf-8"), block(output.read_text(encoding="utf-8"))), encoding="utf-8")
