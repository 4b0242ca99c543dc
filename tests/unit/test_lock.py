"""A lock keeps other processes away, goes along with a rename, and ends with its process however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qat_tft.lock import Held, Hold

HOLDER = """
import sys
from pathlib import Path
from qat_tft.lock import Hold
hold = Hold(Path(sys.argv[1]))
print(hold.held.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the folder."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "OURS\n"
        yield process
        process.kill()


def test_a_lock_is_anothers_until_its_process_is_killed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with Hold(tmp_path) as hold:
        assert hold.held is Held.ANOTHERS
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with Hold(tmp_path) as hold:
        assert hold.held is Held.OURS
    assert list(tmp_path.iterdir()) == [], "nothing is left to puzzle over"


def test_a_lock_goes_along_with_a_rename(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with Hold(tmp_path / "one"):
        (tmp_path / "one").rename(tmp_path / "other")
        with Hold(tmp_path / "other") as second:
            assert second.held is Held.ANOTHERS


def test_a_closed_lock_is_free(tmp_path: Path) -> None:
    Hold(tmp_path).close()
    with Hold(tmp_path) as hold:
        assert hold.held is Held.OURS


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_where_there_are_no_locks_nobody_is_kept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Hold(tmp_path) as one, Hold(tmp_path) as other:
        assert (one.held, other.held) == (Held.NOBODYS, Held.NOBODYS)


def test_what_is_removed_before_it_is_locked_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, lock = tmp_path / "file", fcntl.flock
    file.touch()

    def removed_first(descriptor: int, operation: int) -> None:
        file.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with Hold(file) as hold:
        assert hold.held is Held.ANOTHERS
