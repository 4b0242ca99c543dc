"""What counts as mishandled: anything but a right result, or one message and exit code 2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch

from faults.broken.case import Case
from faults.broken.trial import LIMIT_SECONDS, Outcome

MOST_BYTES = 2 * 10**9
"""The most memory that a command may take on a broken input."""

_MESSAGE = "error: "
_FOREIGN = re.compile(
    r"Traceback|Warning\b|\[[A-Z]:onnxruntime|terminate called|Fatal Python error|^\w*Error\b", re.MULTILINE
)
"""What others than the program write to standard error."""
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, line feeds aside, and those that turn the direction of text."""


def problems(case: Case, outcome: Outcome) -> str:
    """Say what a command did wrong; nothing where it did all right."""
    return "; ".join(_problems(case, outcome))


def _problems(case: Case, outcome: Outcome) -> Iterator[str]:
    if outcome.code is None:
        yield f"not done after {LIMIT_SECONDS:.0f} s"
    elif outcome.code < 0:
        yield f"ended by signal {-outcome.code}"
    elif outcome.code not in case.allowed:
        yield f"exit code {outcome.code}, not {' or '.join(map(str, case.allowed))}"
    yield from _wrong_words(outcome, as_json="--json" in case.command.words)
    if outcome.peak_bytes > MOST_BYTES:
        yield f"{outcome.peak_bytes / 1e9:.1f} GB of memory"
    if outcome.seconds > LIMIT_SECONDS:
        yield f"{outcome.seconds:.0f} s"
    may_write = case.command.writes if outcome.code in (0, 1) else case.leaves
    stray = [path for path in outcome.changed if not any(fnmatch(path, pattern) for pattern in may_write)]
    stray += [path for path in outcome.changed if path.endswith(".tmp")]
    if stray:
        yield f"touched {', '.join(stray[:3])}"


def _wrong_words(outcome: Outcome, *, as_json: bool) -> Iterator[str]:
    said = outcome.messages.rstrip("\n").split("\n")
    count = sum(line.startswith(_MESSAGE) for line in said)
    if count != bool(outcome.code):
        yield f"{count} messages"
    elif count and not said[-1].startswith(_MESSAGE):
        yield f"more after the message: {said[-1]!r}"
    if found := _FOREIGN.search(outcome.messages):
        last = said[-1][:300]
        yield f"standard error holds {found[0]!r}, and ends with {last!r}"
    if outcome.code == 2 and (not _is_refusal(outcome.output) if as_json else outcome.output):
        yield "another refusal on standard output"
    for name, text in (("output", outcome.output), ("error", outcome.messages)):
        if found := _CONTROLS.search(text):
            yield f"control character {found[0]!r} on standard {name}"


def _is_refusal(output: str) -> bool:
    """Whether an output is the one object that stands for an error."""
    try:
        return list(json.loads(output)) == ["error"]
    except ValueError:
        return False
