"""Commands in processes of their own that start at once: children of one process that has imported everything.

The process is a program (`python -m faults.forked`) rather than the benchmark itself, so that `file_system.c` can be
loaded in front of libc, and so that it only imports: a child of a process whose threads compute may wait for a lock
forever.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum, IntFlag
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LONGEST = 300.0  # seconds after which a child hangs
_SOURCE = Path(__file__).with_name("file_system.c")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Change(IntFlag):
    """What changes a file system, as `file_system.c` calls it."""

    CREATE = 1
    WRITE = 2
    SIZE = 4
    SYNC = 8
    RENAME = 16
    MKDIR = 32
    REMOVE = 64


ANY_CHANGE = Change(127)


class Does(IntEnum):
    """What happens at the change with the wanted number."""

    COUNT = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    FAIL_ONCE = 3
    FAIL_FROM = 4


@dataclass(frozen=True)
class Fault:
    """What happens to a process at one of its changes below the folder it works in.

    Attributes:
        does: what happens.
        kinds: which changes are counted.
        number: the one that meets it, from 1.
        error: errno where it fails.
    """

    does: Does = Does.COUNT
    kinds: Change = ANY_CHANGE
    number: int = 0
    error: int = 0


NO_FAULT = Fault()


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        code: exit code; -9 where it was killed, None where it had to be because it hung.
        output, messages: what it wrote to standard output and standard error.
        changes: how many changes were counted; 0 where it was killed.
        seconds: from its start to its end.
    """

    code: int | None
    output: str
    messages: str
    changes: int
    seconds: float


def can_inject_faults() -> bool:
    """Whether this machine can compile the library and load it in front of libc; where it cannot, it is said."""
    able = sys.platform == "linux" and shutil.which("cc") is not None
    if not able:
        print("skipped: faults are injected on Linux, with a C compiler called cc", file=sys.stderr)
    return able


class WarmProcess:
    """The process that children are forked from; a context manager.

    Args:
        work: an existing folder for the library and what children write to standard output and standard error.
        folder: the folder that faults happen below; children have their temporary files in it, too.
    """

    def __init__(self, work: Path, folder: Path) -> None:
        self._work, self._folder = work, folder
        self._started: dict[int, float] = {}

    def __enter__(self) -> Self:
        library = self._work / "file_system.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.forked"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(_THREADS, "1"), "LD_PRELOAD": str(library)},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def learn(self, words: Sequence[str], prepare: Sequence[str] = ()) -> Ended:
        """Run a command once; whatever it imports is there for all later ones."""
        return self.wait(self.start(words, prepare=prepare, learn=True))

    def start(
        self, words: Sequence[str], fault: Fault = NO_FAULT, *, prepare: Sequence[str] = (), learn: bool = False
    ) -> int:
        """Start `qat-tft` with these words in a child and return its process id.

        Args:
            words: the command line.
            fault: what happens to it.
            prepare: functions `MODULE:NAME` that are called before it.
            learn: import what it has imported, once it has ended.
        """
        asked = {"words": [*words], "fault": asdict(fault), "learn": learn, "prepare": [*prepare], **self._places()}
        pid = int(self._ask(asked)["pid"])
        self._started[pid] = time.monotonic()
        return pid

    def wait(self, pid: int) -> Ended:
        """Wait until a child has ended."""
        answer = self._ask({"wait": pid})
        seconds = time.monotonic() - self._started.pop(pid)
        output, messages = (Path(self._work / f"{pid}.{name}") for name in ("output", "messages"))
        texts = [file.read_text() if file.exists() else "" for file in (output, messages)]  # none if killed at once
        for file in (output, messages):
            file.unlink(missing_ok=True)
        return Ended(answer["code"], *texts, answer["changes"], seconds)

    def run(self, words: Sequence[str], fault: Fault = NO_FAULT, *, prepare: Sequence[str] = ()) -> Ended:
        """Run a command in a child to its end."""
        return self.wait(self.start(words, fault, prepare=prepare))

    def kill(self, pid: int) -> None:
        """Kill a child; its process id stays taken until it is waited for."""
        os.kill(pid, signal.SIGKILL)

    def _places(self) -> dict[str, str]:
        return {"work": str(self._work), "folder": str(self._folder)}

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


class _Children:
    """The children of the warm process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._counts: dict[int, int] = {}  # process id to the pipe that tells how many changes there were
        self._learning: dict[int, Path] = {}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Start a child, or wait for one."""
        return self._reap(asked["wait"]) if "wait" in asked else {"pid": self._start(asked)}

    def _start(self, asked: Mapping[str, Any]) -> int:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(asked, self._library, writer)
        os.close(writer)
        self._counts[pid] = reader
        if asked["learn"]:
            self._learning[pid] = Path(asked["work"]) / f"{pid}.modules"
        return pid

    def _reap(self, pid: int) -> dict[str, Any]:
        deadline = time.monotonic() + _LONGEST
        found, status = os.waitpid(pid, os.WNOHANG)
        while not found and time.monotonic() < deadline:
            time.sleep(0.002)
            found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with os.fdopen(self._counts.pop(pid)) as counts:
            changes = int(counts.read() or 0)
        self._learn(self._learning.pop(pid, None))
        return {"code": os.waitstatus_to_exitcode(status) if found else None, "changes": changes}

    def _learn(self, modules: Path | None) -> None:
        if modules is None or not modules.exists():
            return
        for name in json.loads(modules.read_text()):
            with suppress(Exception):  # it was made while another module was imported
                import_module(name)
        modules.unlink()


def serve() -> None:
    """Answer questions from standard input, one a line, until it ends."""
    import torch

    torch.set_num_threads(1)
    children, answers = _Children(), os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(children.answer(json.loads(line))) + "\n")
        answers.flush()


def _child(asked: Mapping[str, Any], library: ctypes.CDLL, counts: int) -> None:
    """Be the command; never returns."""
    code = 70
    try:
        _redirect(Path(asked["work"]))
        folder = asked["folder"]
        os.chdir(asked["work"])
        temporary = Path(folder) / "temporary"
        temporary.mkdir(exist_ok=True)
        os.environ["COLUMNS"] = "200"
        tempfile.tempdir = str(temporary)
        from qat_tft.cli.app import main

        for place in asked["prepare"]:
            module, name = place.split(":")
            getattr(import_module(module), name)()
        fault = asked["fault"]
        library.arm(os.fsencode(folder), fault["kinds"], fault["does"], ctypes.c_long(fault["number"]), fault["error"])
        code = main(asked["words"])
        if asked["learn"]:
            Path(asked["work"], f"{os.getpid()}.modules").write_text(json.dumps(sorted(sys.modules)))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        library.changes.restype = ctypes.c_long
        os.write(counts, str(library.changes()).encode())
        os._exit(code)


def _redirect(work: Path) -> None:
    for descriptor, name in ((1, "output"), (2, "messages")):
        file = os.open(work / f"{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)


if __name__ == "__main__":
    serve()
