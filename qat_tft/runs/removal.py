"""Removes runs: only what is a run beside the others, only where nobody is writing to it, and never half of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from qat_tft.atomic import remove_at_once
from qat_tft.errors import RunFolderError, some_of
from qat_tft.runs import layout, lifecycle


@dataclass(frozen=True)
class Removal:
    """What was removed.

    Attributes:
        removed: names of the runs.
        latest: the run that commands now take by default; None where there is no finished one left.
    """

    removed: tuple[str, ...]
    latest: str | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"removed": list(self.removed), "latest": self.latest}

    def tables(self) -> Sequence[RenderableType]:
        """Return one sentence."""
        if not self.removed:
            return [Text("Nothing is removed.")]
        latest = f"The latest run is {self.latest}." if self.latest else "No finished run is left."
        return [Text(f"Removed {', '.join(self.removed)}. {latest}")]


def remove_runs(root: Path, names: Sequence[str], agreed: Callable[[Sequence[Path]], bool]) -> Removal:
    """Remove runs under a folder, finished or not; `latest` names another one before its run goes.

    Args:
        root: where run folders stand.
        names: of the runs; a path is none.
        agreed: asked with the folders before anything is removed; False: nothing is.

    Raises:
        RunFolderError: a name is that of no run there, another process is writing to one, or a file system refuses.
    """
    paths = [_found(root, name) for name in dict.fromkeys(name.removesuffix(layout.UNFINISHED) for name in names)]
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(lifecycle.held(path))
        if not agreed(paths):
            return Removal((), lifecycle.latest_name(root))
        latest = lifecycle.point_latest(root, leaving_out=paths)
        for path in paths:
            _remove(path)
    return Removal(tuple(lifecycle.final_path(path).name for path in paths), latest)


def _found(root: Path, name: str) -> Path:
    """Return the folder of a run that stands under `root` itself."""
    if not lifecycle.is_name(name):
        raise RunFolderError(
            f"{name!r} is not the name of a run",
            where=str(root),
            allowed="names as `qat-tft runs` lists them, no paths",
            next_step="Name the folder that holds the run with --runs-dir",
        )
    for path in (root / name, root / f"{name}{layout.UNFINISHED}"):
        if path.is_symlink():
            raise RunFolderError("a link, not a run", where=str(path), next_step="Remove it by hand")
        if path.is_dir() and ((path / layout.CONFIG).is_file() or not lifecycle.is_finished(path)):
            return path
    there = [lifecycle.final_path(path).name for path in sorted(root.glob("*")) if (path / layout.CONFIG).is_file()]
    raise RunFolderError(f"no run called {name!r}", where=str(root), allowed=some_of(there))


def _remove(path: Path) -> None:
    try:
        remove_at_once(path)
    except OSError as failure:
        raise RunFolderError(
            f"cannot remove: {failure.strerror or failure}",
            where=os.fsdecode(failure.filename or path),
            next_step="Make the folder writable; what is left is removed when the next run begins",
        ) from None
