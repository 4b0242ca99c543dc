"""The report of a run: its results, what checkpointing saved, the sizes of its files and the verdict of its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.quantization.products import INTEGER_STORAGE
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults


@dataclass(frozen=True)
class RunReport:
    """What `qat-tft report` shows.

    Attributes:
        folder: the run folder.
        results: of training.
        sizes: bytes of each file that exists, by its name.
        check: the object in check.json, None where the run was not checked.
        picture: the forecast that was drawn, None without one.
        page: the page that was written, None without one.
    """

    folder: Path
    results: RunResults
    sizes: dict[str, int]
    check: dict[str, Any] | None
    picture: Path | None
    page: Path | None

    @classmethod
    def of(cls, run: RunFolder, picture: Path | None = None, page: Path | None = None) -> RunReport:
        """Collect the report of a finished run.

        Raises:
            RunFolderError: results.json or check.json is missing or damaged.
        """
        sizes = {name: (run.path / name).stat().st_size for name in layout.TITLES if (run.path / name).is_file()}
        return cls(run.path, run.load_results(), sizes, run.load_check(), picture, page)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "folder": str(self.folder),
            "results": self.results.to_json(),
            "bytes": self.sizes,
            "check": self.check,
            "picture": str(self.picture) if self.picture else None,
            "page": str(self.page) if self.page else None,
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return the q-risk table, the table of files, and one line each on memory, check, picture and page."""
        lines = (self.memory(), self.verdict(), self.storage(), self._drawn(), self._written())
        return [*self.results.tables(), self._files(), *(Text(line) for line in lines if line)]

    def _files(self) -> Table:
        table = Table("file", "what", "KB")
        table.columns[2].justify = "right"
        for name, size in self.sizes.items():
            table.add_row(name, layout.TITLES[name], f"{size / 1000:,.1f}")
        return table

    def memory(self) -> str:
        """Say what checkpointing saved."""
        saved = self.results.checkpointing
        if saved is None:
            return "Trained without activation checkpointing."
        return (
            f"Checkpointing ({saved['mode']}): {saved['with_bytes'] / 2**20:,.0f} instead of "
            f"{saved['without_bytes'] / 2**20:,.0f} MiB a step{_slower(saved)}."
        )

    def verdict(self) -> str:
        """Say whether the check passed, and how close the file is to the trained model."""
        if self.check is None:
            return "Not checked in onnxruntime yet: `qat-tft check`."
        passed, sqnr = self.check.get("passed"), self.check.get("sqnr_db") or {}
        figures = ", ".join(f"{value:.0f} dB {name}" for name, value in sqnr.items() if value is not None)
        reference = f" against the trained model: {figures}" if figures else ""
        return f"Check in onnxruntime: {'passed' if passed else 'FAILED'}{reference}."

    def storage(self) -> str:
        """Say it where products stay in floating point; nothing otherwise."""
        stored = (self.check or {}).get("products") == "float"
        return f"The INT8 file has {INTEGER_STORAGE}." if stored else ""

    def _drawn(self) -> str:
        return f"Forecast plot: {self.picture}" if self.picture else ""

    def _written(self) -> str:
        return f"Report: {self.page}" if self.page else ""


def _slower(saved: Mapping[str, Any]) -> str:
    """Say what it cost in time; nothing where an earlier version did not measure that."""
    without, took = saved.get("without_seconds"), saved.get("with_seconds")
    return f", {took / without:.2f} times as long" if without and took else ""
