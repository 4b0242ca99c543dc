"""Gives a panel what stands in for its missing values, found in one pass over its rows and in bounded memory.

R rows, S series, C columns that may miss values.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.data.missing import MissingPolicy
from qat_tft.data.panel import Fill, Panel

_BLOCK_VALUES = 2**20

FillValues = Mapping[str, Sequence[float]]
"""Column to its raw training means: one for all series, or one for each series code, that of unseen series first."""


def with_fills(panel: Panel, means: FillValues) -> Panel:
    """The panel with its missing values replaced, those of the history when rows are gathered.

    Args:
        panel: with ``series_code`` set, if there are means per series; its own preparation has the policies.
        means: for every column whose policy is ``forward`` or ``mean``.
    """
    policies, schema = panel.preparation.policies, panel.schema
    static, history = schema.group("static"), schema.group("historical")
    declared = [column for column in history.real if policies.of(column, schema) is not MissingPolicy.ERROR]
    runs = _runs(panel, [history.real.index(column) for column in declared])
    fills = tuple(
        Fill(
            history.real.index(column),
            _by_series(panel, column, means),
            begin if policies.of(column, schema) is MissingPolicy.FORWARD else None,
        )
        for column, begin in zip(declared, runs, strict=True)
        if len(begin)
    )
    once = panel.static.clone()
    for place, column in enumerate(static.real):
        missing = once[:, place].isnan()
        if bool(missing.any()) and policies.of(column, schema) is not MissingPolicy.ERROR:
            once[missing, place] = _by_series(panel, column, means)[missing]
    return dataclasses.replace(panel, static=once, fills=fills)


def last_present(missing: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each row the last row of its series, up to itself, whose value is there: int64 [R], -1 for none."""
    rows = np.arange(len(missing))
    latest = np.maximum.accumulate(np.where(missing, -1, rows))
    return np.where(latest >= np.repeat(starts[:-1], np.diff(starts)), latest, -1)


def _by_series(panel: Panel, column: str, means: FillValues) -> Tensor:
    """What a missing value of a column is for each series where no earlier value serves: float32 [S]."""
    if panel.preparation.policies.of(column, panel.schema) is MissingPolicy.ZERO:
        return torch.zeros(len(panel.series_ids))
    found = torch.tensor(means[column], dtype=torch.float32)
    return found[panel.series_code] if len(found) > 1 else found.expand(len(panel.series_ids))


def _runs(panel: Panel, places: list[int]) -> list[Tensor]:
    """First rows of the runs of missing values, ascending int64, for each of these columns."""
    if not places:
        return []
    found: list[list[Tensor]] = [[] for _ in places]
    before = torch.zeros(1, len(places), dtype=torch.bool)
    size = max(1, _BLOCK_VALUES // panel.values.shape[1])
    for begin in range(0, panel.rows, size):
        missing = panel.values[begin : begin + size][:, places].isnan()  # [rows, C]
        goes_on = torch.cat([before, missing[:-1]])
        before = missing[-1:]
        for column, first in zip(found, (missing & ~goes_on).unbind(1), strict=True):
            column.append(torch.nonzero(first).squeeze(1) + begin)
    return [torch.cat(column) for column in found]
