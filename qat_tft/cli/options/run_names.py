"""What the shell offers where a command takes a run; every press of Tab asks, so nothing heavy is imported."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import typer

from qat_tft.runs.layout import CONFIG, UNFINISHED


def finished_runs(context: typer.Context) -> list[str]:
    """Return the names of the finished runs of `--runs-dir`; where none begins as what is typed, files are offered."""
    return sorted(name for name in _names(context) if not name.endswith(UNFINISHED))


def unfinished_runs(context: typer.Context) -> list[str]:
    """Return the names of the unfinished runs of `--runs-dir`."""
    return sorted(name.removesuffix(UNFINISHED) for name in _names(context) if name.endswith(UNFINISHED))


def every_run(context: typer.Context) -> list[str]:
    """Return the names of all runs of `--runs-dir`."""
    return sorted(name.removesuffix(UNFINISHED) for name in _names(context))


def _names(context: typer.Context) -> Iterable[str]:
    folder = Path(context.params.get("runs_dir") or "runs")
    with suppress(OSError):  # a folder that is not there, or that may not be read, has no runs to offer
        return [path.name for path in folder.iterdir() if (path / CONFIG).is_file()]
    return []
