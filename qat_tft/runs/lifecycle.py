"""How a run folder begins, is held, and gets its final name, so that a process may be killed at any moment of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from qat_tft.atomic import made_whole, remove_abandoned
from qat_tft.errors import RunFolderError
from qat_tft.lock import Held, Hold
from qat_tft.runs import files, layout
from qat_tft.runs.layout import LATEST, UNFINISHED

_LONGEST_NAME = 200  # characters; file systems take 255, of which names of temporary files need some
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST_NAME - 1}}}")


def begin(root: Path, name: str | None, write: Callable[[Path], None]) -> Path:
    """Make the folder `NAME.unfinished` under `root`; arguments and errors are those of `RunFolder.create`.

    It is filled under a temporary name: no process ever sees it without what `write` writes into it.
    """
    path = root / f"{_free_name(root) if name is None else usable(name)}{UNFINISHED}"
    _refuse_taken(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        with made_whole(path) as beginning:
            write(beginning)
            if final_path(path).exists():  # another process has begun and finished a run of that name meanwhile
                raise FileExistsError
    except OSError as failure:
        if isinstance(failure, FileExistsError) and root.is_dir():
            if name is None:
                return begin(root, None, write)
            _refuse_taken(path)
        raise RunFolderError(
            f"cannot create the run folder: {failure.strerror}",
            where=str(path),
            next_step="Choose a writable folder with --runs-dir",
        ) from None
    return path


def _refuse_taken(path: Path) -> None:
    final = final_path(path)
    if path.exists() or final.exists():
        state, way_on = (
            ("an unfinished", f", or finish it with `qat-tft train --resume {final.name}`")
            if path.exists()
            else ("a finished", "")
        )
        raise RunFolderError(
            f"{state} run of that name already exists", where=str(final), next_step=f"Choose another --name{way_on}"
        )


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep every other process from writing to a run until the block ends, or this process does.

    Raises:
        RunFolderError: another process is writing to it, or it is not there any more.
    """
    try:
        hold = Hold(path)
    except OSError as failure:
        raise RunFolderError(f"cannot open the run folder: {failure.strerror}", where=str(path)) from None
    with hold:
        if hold.held is Held.ANOTHERS:
            raise RunFolderError(
                "another process is working on this run", where=str(path), next_step="Wait until it has ended"
            )
        remove_abandoned(path)
        yield


def finish(path: Path) -> Path:
    """Rename an unfinished folder to its final name, make it the latest run, and return it.

    A process may be killed in between: the state, which is removed last, then tells `tidy` what is left to do.

    Raises:
        RunFolderError: the file system refuses.
    """
    final = final_path(path)
    try:
        os.rename(path, final)
    except OSError as failure:
        raise RunFolderError(f"cannot rename to {final}: {failure.strerror}", where=str(path)) from None
    _settle(final)
    return final


def tidy(path: Path) -> None:
    """Do what a killed process had left to do in a finished run, and remove what it left, where that can be written."""
    remove_abandoned(path)
    if is_finished(path) and any((path / name).exists() for name in layout.UNTIL_FINISHED):
        with suppress(RunFolderError):
            _settle(path)


def tidy_all(root: Path) -> None:
    """Tidy every finished run that a killed process had not yet made the latest one."""
    for state in sorted(root.glob(f"*/{layout.STATE}"), key=modified):
        tidy(state.parent)


def latest_name(root: Path) -> str | None:
    """Return what `latest` says; None where there is no such file."""
    pointer = root / LATEST
    return files.read_text(pointer).strip() if pointer.is_file() else None


def point_latest(root: Path, *, leaving_out: Collection[Path]) -> str | None:
    """Let `latest` name another run where it names one of some, the newest of the others; return what it names then.

    Without any other finished run there is no such file, and None is returned.

    Raises:
        RunFolderError: the file system refuses.
    """
    now = latest_name(root)
    if now not in {path.name for path in leaving_out}:
        return now
    results = (path for path in root.glob(f"*/{layout.RESULTS}") if path.parent not in leaving_out)
    finished = [path for path in results if is_finished(path.parent) and is_name(path.parent.name)]
    if finished:
        name = max(finished, key=modified).parent.name
        files.write_text(root / LATEST, f"{name}\n")
        return name
    try:
        (root / LATEST).unlink()
    except OSError as failure:
        raise files.cannot_write(root / LATEST, failure) from None
    return None


def _settle(path: Path) -> None:
    pointer = path.with_name(LATEST)
    if modified(pointer) <= modified(path / layout.RESULTS):  # else a run has finished since
        files.write_text(pointer, f"{path.name}\n")
    for unneeded in (*path.glob(f"{layout.TEACHER}*"), path / layout.PAGE_SO_FAR, path / layout.STATE):
        try:
            unneeded.unlink(missing_ok=True)
        except OSError as failure:
            raise files.cannot_write(unneeded, failure) from None


def usable(name: str) -> str:
    """Return a name that a run can have.

    Raises:
        RunFolderError: it cannot.
    """
    if not is_name(name):
        raise RunFolderError(
            f"{name!r} is not a valid run name",
            allowed=f"up to {_LONGEST_NAME} letters, digits, dots, dashes and underscores; "
            f"not {' or '.join(map(repr, layout.BESIDE_RUNS))}",
            next_step="Choose another --name",
        )
    return name


def is_name(text: str) -> bool:
    """Whether a run can be called so."""
    return bool(_NAME.fullmatch(text)) and text not in layout.BESIDE_RUNS and not text.endswith(UNFINISHED)


def final_path(path: Path) -> Path:
    """Return where a run's folder stands once it is finished."""
    return path.with_name(path.name.removesuffix(UNFINISHED))


def is_finished(path: Path) -> bool:
    """Whether a run's folder has its final name."""
    return not path.name.endswith(UNFINISHED)


def modified(path: Path) -> float:
    """Return when a file or folder was last written to, in seconds; 0 where there is none."""
    return path.stat().st_mtime if path.exists() else 0.0


def _free_name(root: Path) -> str:
    name = f"{datetime.now():%Y%m%d-%H%M%S}"
    taken = {path.name.removesuffix(UNFINISHED) for path in root.glob(f"{name}*")}
    further = (f"{name}-{number}" for number in count(2))  # clocks are set back, and runs start in the same second
    return next(free for free in chain([name], further) if free not in taken)
