"""What the shell offers where a command takes a run; every press of Tab asks, so nothing heavy is imported."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import typer

from qat_tft.runs.layout import CONFIG, UNFINISHED


def finished_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the finished runs of `--runs-dir` whose names begin so; none for a path: the shell then offers files."""
    return sorted(name for name in _names(context) if name.startswith(incomplete) and not name.endswith(UNFINISHED))


def unfinished_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the unfinished runs of `--runs-dir` that begin so."""
    unfinished = (name.removesuffix(UNFINISHED) for name in _names(context) if name.endswith(UNFINISHED))
    return sorted(name for name in unfinished if name.startswith(incomplete))


def every_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of all runs of `--runs-dir` that begin so."""
    return sorted([*finished_runs(context, incomplete), *unfinished_runs(context, incomplete)])


def _names(context: typer.Context) -> Iterable[str]:
    folder = Path(context.params.get("runs_dir") or "runs")
    with suppress(OSError):  # a folder that is not there, or that may not be read, has no runs to offer
        return [path.name for path in folder.iterdir() if (path / CONFIG).is_file()]
    return []
