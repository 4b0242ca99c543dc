"""Every weight that explains a forecast as one long table: selection by variable and step, attention by step and lag.

Legend: B windows of a batch, N windows, T history, F horizon, S = T + F, C weights of one window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from qat_tft.data.panel import Panel
from qat_tft.data.reading.columns import in_type
from qat_tft.evaluation.forecast_table import MODEL_COLUMN, ORIGIN_COLUMN, STEP_COLUMN, ForecastRows
from qat_tft.model.tft import Forecast
from qat_tft.schema import GroupName

KIND_COLUMN, VARIABLE_COLUMN, POSITION_COLUMN, WEIGHT_COLUMN = "weight_of", "variable", "position", "weight"
ATTENTION = "attention"
LEVELS = (0.1, 0.5, 0.9)
"""Quantiles over windows that a table of aggregates holds."""

_MOST_AT_ONCE = 2**23  # values whose quantiles are taken at once: torch takes no more than 2^24

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WeightCells:
    """What each of the C weights of a window is.

    Attributes:
        columns: ``weight_of`` ("static", "historical", "future" or "attention"), ``variable`` (null for attention),
            ``forecast_step`` (of attention: which step attends, 1 to F) and ``position`` (to which step, or at which
            step the variable is selected: 0 is the last one of the history; null for static columns).
        kept: bool [F, S], attention that can be: no step attends to a later one.
    """

    columns: pa.Table
    kept: Tensor

    @classmethod
    def of(cls, variables: Mapping[GroupName, tuple[str, ...]], history: int, horizon: int) -> WeightCells:
        """Return the weights of a model with these variables, history and horizon."""
        steps = torch.arange(1, horizon + 1).unsqueeze(1)
        kept = torch.arange(1 - history, horizon + 1).unsqueeze(0) <= steps
        attending, attended = (place.numpy() for place in torch.nonzero(kept, as_tuple=True))
        past, ahead = np.arange(1 - history, 1), np.arange(1, horizon + 1)
        return cls(
            pa.concat_tables(
                [
                    _selection("static", variables["static"], None),
                    _selection("historical", variables["historical"], past),
                    _selection("future", variables["future"], ahead),
                    _cells(ATTENTION, None, attending + 1, attended + 1 - history),
                ]
            ),
            kept,
        )

    def weights(self, said: Forecast, present: Tensor) -> Tensor:
        """Return the weights [B, C] of a batch; NaN at steps of the history that are padding.

        Args:
            said: what a model says of the batch.
            present: bool [B, T], which steps of the histories are no padding.
        """
        missing = ~present
        historical = said.historical_weights.masked_fill(missing.unsqueeze(-1), torch.nan)
        later = torch.zeros(len(missing), self.kept.shape[0], dtype=torch.bool)
        padding = torch.cat([missing, later], 1).unsqueeze(1)  # [B, 1, S]
        attention = said.attention.masked_fill(padding, torch.nan)[:, self.kept]
        return torch.cat([said.static_weights, historical.flatten(1), said.future_weights.flatten(1), attention], 1)

    def every(self, rows: ForecastRows, model: str, series: Rows, origins: Rows, weights: Tensor) -> pa.Table:
        """Return B x C rows: ids, origin, model, what the weight is, and the weight.

        Args:
            rows: names the windows.
            model: name of the model.
            series: [B], place of each window's series in the panel.
            origins: [B], row of the panel that is the last one of each history.
            weights: [B, C].
        """
        count, cells = weights.shape
        window = pa.array(np.repeat(np.arange(count), cells))
        times = rows.times.array(rows.panel.time.numpy()[origins], rows.panel.time_kind)
        columns = {
            **{name: ids.take(window) for name, ids in id_columns(rows, series).items()},
            ORIGIN_COLUMN: times.take(window),
            MODEL_COLUMN: pa.repeat(model, count * cells),
            **_repeated(self.columns, count),
            WEIGHT_COLUMN: pa.array(weights.flatten().numpy(), from_pandas=True),
        }
        return pa.table(columns)

    def aggregated(self, model: str, weights: Tensor, ids: dict[str, pa.Array]) -> pa.Table:
        """Return C rows: mean, standard deviation and quantiles over windows of each weight [N, C], and how many.

        `ids` holds the ids of the series, each an array of one value; nothing where windows of all series count.
        """
        cells = self.columns.num_rows
        parts = weights.split(max(1, _MOST_AT_ONCE // len(weights)), dim=1)
        mean, deviation, *levels = torch.cat([_moments(part.double()) for part in parts], 1)
        windows = (~weights.isnan()).sum(0)
        first = pa.array(np.zeros(cells, np.int64))
        columns = {
            **{name: one.take(first) for name, one in ids.items()},
            MODEL_COLUMN: pa.repeat(model, cells),
            **_repeated(self.columns, 1),
            "mean": _numbers(mean),
            "standard_deviation": _numbers(deviation),
            **{f"q{level:g}": _numbers(found) for level, found in zip(LEVELS, levels, strict=True)},
            "windows": pa.array(windows.numpy()),
        }
        return pa.table(columns)


def _moments(values: Tensor) -> Tensor:
    """Return mean, standard deviation and quantiles over windows of [N, c], without what is NaN: [2 + levels, c]."""
    mean = values.nanmean(0)
    deviation = ((values - mean) ** 2).nanmean(0).sqrt()
    quantiles = torch.nanquantile(values, torch.tensor(LEVELS, dtype=values.dtype), dim=0)
    return torch.cat([mean.unsqueeze(0), deviation.unsqueeze(0), quantiles])


def id_columns(rows: ForecastRows, series: Rows) -> dict[str, pa.Array]:
    """Return the ids of series by column, in the types that they have in the files."""
    panel: Panel = rows.panel
    return {
        column: in_type(pa.array([panel.series_ids[one][place] for one in series.tolist()], pa.string()), type_)
        for place, (column, type_) in enumerate(zip(panel.schema.id, rows.id_types, strict=True))
    }


def _selection(group: GroupName, variables: tuple[str, ...], positions: Rows | None) -> pa.Table:
    """Return the cells of a group: variable by variable at each step."""
    if positions is None:
        return _cells(group, [*variables], None, None)
    names = [variable for _ in positions for variable in variables]
    return _cells(group, names, None, np.repeat(positions, len(variables)))


def _cells(kind: str, variables: list[str] | None, steps: Rows | None, positions: Rows | None) -> pa.Table:
    count = next(len(known) for known in (variables, positions) if known is not None)
    return pa.table(
        {
            KIND_COLUMN: pa.array([kind] * count, pa.string()),
            VARIABLE_COLUMN: pa.array([None] * count if variables is None else variables, pa.string()),
            STEP_COLUMN: pa.array([None] * count if steps is None else steps, pa.int32()),
            POSITION_COLUMN: pa.array([None] * count if positions is None else positions, pa.int32()),
        }
    )


def _repeated(table: pa.Table, count: int) -> dict[str, pa.Array]:
    places = pa.array(np.tile(np.arange(table.num_rows), count))
    return {name: table[name].combine_chunks().take(places) for name in table.column_names}


def _numbers(values: Tensor) -> pa.Array:
    return pa.array(values.float().numpy(), from_pandas=True)  # what no window has is null
