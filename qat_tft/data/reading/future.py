"""Rows after the last one, where the calendar is all that is known of the future."""

from dataclasses import replace

import numpy as np
import torch

from qat_tft.data.panel import Panel
from qat_tft.data.reading.gap_search import learned_step, usual_step
from qat_tft.data.time.calendar import Calendar, calendar_columns
from qat_tft.errors import DataError


def can_extend(panel: Panel) -> bool:
    """Whether every known column, if there is one, is a calendar feature, so that future rows need no file."""
    computed = {column.name for column in calendar_columns(panel.preparation.calendar)}
    return computed.issuperset(panel.schema.known.names)


def with_future_rows(panel: Panel, steps: int) -> Panel:
    """The panel with ``steps`` more rows at the end of each series, for which ``can_extend`` must hold.

    Their times go on by the step that training learned (see ``Step``), their calendar columns are those of these
    times. The target and observed real columns are NaN, as in rows that are to be forecast; other columns repeat
    the last row's value.

    Raises:
        DataError: no series has two rows, in training or here, so that there is no step.
    """
    if not can_extend(panel):
        raise ValueError("a known column is not a calendar feature: its future values must be given")
    starts, time = panel.series_start.numpy(), panel.time.numpy()
    step = learned_step(panel.preparation, panel.time_kind, panel.time_zone)
    if step is None:
        step = usual_step(time, starts, panel.time_kind, panel.time_zone)
    if step is None:
        raise DataError(
            "no series has two rows, so the time of the next step is unknown",
            where=panel.source,
            next_step="Add rows, or give the times of the future rows.",
        )
    last = starts[1:] - 1
    times = step.after(time[last].repeat(steps), np.tile(np.arange(1, steps + 1), len(last)))
    coming = panel.values.numpy()[last].repeat(steps, axis=0)
    computed = Calendar.of(panel.preparation.calendar, panel.time_kind, panel.time_zone).values(times)
    history = panel.schema.group("historical")
    for place, column in enumerate(history.columns):
        if column in computed:
            coming[:, place] = computed[column]
        elif column in history.real:
            coming[:, place] = np.nan

    def moved(rows: torch.Tensor) -> torch.Tensor:
        return rows + steps * torch.searchsorted(panel.series_start[1:], rows, right=True)

    at = starts[1:].repeat(steps)
    return replace(
        panel,
        values=torch.from_numpy(np.insert(panel.values.numpy(), at, coming, axis=0)),
        time=torch.from_numpy(np.insert(time, at, times)),
        series_start=moved(panel.series_start),
        stretch_start=None if panel.stretch_start is None else moved(panel.stretch_start),
    )
