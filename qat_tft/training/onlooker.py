"""The run folder of a rank that does not write: rank 0 alone does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from qat_tft import ranks
from qat_tft.config.run import RunConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.windows import Batch
from qat_tft.runs import layout, lifecycle
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import WeightsKind
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema


class OnlookersFolder(RunFolder):
    """Reads what rank 0 has written to a run, and writes nothing but what rank 0 has no use for."""

    def held(self) -> AbstractContextManager[None]:
        """Leave the lock to rank 0."""
        return nullcontext()

    def finish(self) -> None:
        """Take the name that rank 0 gives the folder."""
        self.path = lifecycle.final_path(self.path)

    def scratch(self) -> Path:
        """Where this rank may keep what the teacher says of its own windows."""
        return self.path / f"{layout.TEACHER}.{ranks.rank()}"

    def write_setup(
        self, config: RunConfig, schema: Schema, preprocessing: Preprocessing, table: Path | None = None
    ) -> None:
        """Leave it to rank 0."""

    def write_config(self, config: RunConfig) -> None:
        """Leave it to rank 0."""

    def write_weights(self, kind: WeightsKind, weights: dict[str, torch.Tensor]) -> None:
        """Leave it to rank 0."""

    def write_check_windows(self, windows: Batch) -> None:
        """Leave it to rank 0."""

    def write_results(self, results: RunResults) -> None:
        """Leave it to rank 0."""

    def write_check(self, report: Mapping[str, Any]) -> None:
        """Leave it to rank 0."""
