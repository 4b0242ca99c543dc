"""Columns that never change in the training rows: a model learns nothing from them, and they have no range."""

from __future__ import annotations

import torch
from torch import Tensor

from qat_tft.errors import DataError
from qat_tft.runs.data import RunData


def refuse_constant_columns(data: RunData) -> None:
    """Refuse real columns of the history, as the user declared them, with one value in all training rows.

    A static column may be the same everywhere, as it is where there is one series; a derived one may be, as an
    indicator of missing values is where none is missing.

    Raises:
        DataError: there is such a column; all of them are named.
    """
    low, high = _extremes(data)
    declared = data.declared.group("historical").real
    columns = data.schema.group("historical").real
    constant = [column for place, column in enumerate(columns) if low[place] == high[place] and column in declared]
    if constant:
        raise DataError(
            f"real columns with the same value in every training row: {', '.join(constant)}",
            where=data.panel.source,
            allowed="columns that vary: a constant carries no information, and has no range to scale or quantize by",
            next_step="Leave them out of the schema, or start validation later",
        )


def _extremes(data: RunData) -> tuple[Tensor, Tensor]:
    """Lowest and highest raw value of each real column over the training rows, each [V]; missing ones count not."""
    width = len(data.schema.group("historical").real)
    low, high = torch.full((width,), torch.inf), torch.full((width,), -torch.inf)
    for rows in data.panel.blocks_before(data.training_ends):
        values = data.panel.values[rows, :width]
        missing = values.isnan()
        low = torch.minimum(low, values.masked_fill(missing, torch.inf).amin(0))
        high = torch.maximum(high, values.masked_fill(missing, -torch.inf).amax(0))
    return low, high
