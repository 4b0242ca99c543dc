"""Values far outside of what training saw: they are forecast from, and said once for each column.

A model's answer to them is an extrapolation. Scaled values, tables and weights are finite for any finite value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from qat_tft.data.windows import Batch
from qat_tft.errors import some_of
from qat_tft.export.metadata import ModelMetadata


class FarValues:
    """Counts the values of each real column that lie outside of what the file's metadata call usual.

    Args:
        metadata: of the file.
    """

    def __init__(self, metadata: ModelMetadata) -> None:
        self._groups = {group.name: group.real for group in metadata.schema.groups}
        self._usual = {
            column: torch.tensor(limits, dtype=torch.float64)  # [1 or codes of series, 2]
            for column, limits in metadata.usual.items()
        }
        self._far: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    def count(self, batch: Batch) -> None:
        """Count the raw values of some windows."""
        values = {"static": batch.static, "historical": batch.historical, "future": batch.future}
        for group, columns in self._groups.items():
            for place, column in enumerate(columns):
                if column in self._usual:
                    self._count(column, values[group][..., place], batch.series)

    def notes(self) -> Iterator[str]:
        """Yield a sentence on all columns that have values far outside, if there are any."""
        shares = {column: far / self._seen[column] for column, far in self._far.items() if far}
        if shares:
            worst = sorted(shares, key=shares.__getitem__, reverse=True)
            yield (
                "Forecasts extrapolate where columns are far outside of their training values (share of the rows that "
                f"forecasts are made from): {some_of([f'{column} {shares[column]:.1%}' for column in worst])}"
            )

    def _count(self, column: str, values: Tensor, series: Tensor) -> None:
        limits = self._usual[column]
        low, high = (limits[series] if len(limits) > 1 else limits).unbind(-1)
        shape = (-1, *[1] * (values.dim() - 1))
        outside = (values < low.view(shape)) | (values > high.view(shape))
        self._far[column] += int(outside.sum())
        self._seen[column] += values.numel()
