"""One command in a process forked from this one, which has loaded everything: what it said, wrote and took."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

LIMIT_SECONDS = 60.0
"""The most that a command may take on a broken input."""
_ADDRESS_SPACE = 24 * 2**30
"""Keeps a runaway allocation from the machine; what counts is the memory that was really used."""

Program = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        code: exit code; the negative number of the signal that ended it; None where it took too long.
        output, messages: standard output and standard error.
        seconds: until it ended.
        peak_bytes: most memory that was resident, with what the forking process had.
        changed: files that were written, changed or removed, relative to the folder.
    """

    code: int | None
    output: str = ""
    messages: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    changed: tuple[str, ...] = ()


def tried(words: Sequence[str], folder: Path, *, program: Program, limit: float = LIMIT_SECONDS) -> Outcome:
    """Run a program on command-line words in a forked process, whose current and home folder is `folder`."""
    with ExitStack() as stack:
        texts = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        before = _contents(folder)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(program, words, folder, [text.fileno() for text in texts])
        code, peak = _ended(child, limit)
        seconds = time.monotonic() - began
        after = _contents(folder)
        output, messages = (_text_of(text) for text in texts)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return Outcome(code, output, messages, seconds, peak, tuple(changed))


def _become(program: Program, words: Sequence[str], folder: Path, descriptors: list[int]) -> None:
    code = 1  # as Python ends after an exception that nobody catches
    try:
        os.chdir(folder)
        os.environ |= {"HOME": str(folder), "TMPDIR": str(folder)}
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for wanted, own in enumerate(descriptors, start=1):
            os.dup2(own, wanted)
        sys.stdout, sys.stderr = (os.fdopen(wanted, "w", closefd=False) for wanted in (1, 2))
        code = program(list(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int, limit: float) -> tuple[int | None, int]:
    """Wait for a process and return its code and its peak of memory; one that takes too long is killed."""
    handle = os.pidfd_open(child)
    try:
        late = not select.select([handle], [], [], limit)[0]
        if late:
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    finally:
        os.close(handle)
    return None if late else os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024


def _contents(folder: Path) -> dict[str, str]:
    """Every path below a folder and what stands there."""
    return {str(path.relative_to(folder)): _mark(path) for path in folder.rglob("*")}


def _mark(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"


def _text_of(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return str(file.read().decode("utf-8", "replace"))  # type: ignore[attr-defined]
