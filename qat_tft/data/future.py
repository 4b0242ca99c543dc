"""Rows after the last one, where the calendar is all that is known of the future.

S series, V columns of the history.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from qat_tft.data.calendar import Calendar, calendar_columns, local_times
from qat_tft.data.panel import Panel, TimeKind

_Times = npt.NDArray[np.int64]
_DAY = 86_400_000_000_000
_SHORTEST_MONTH = 28  # days


def can_extend(panel: Panel) -> bool:
    """Whether every known column is a calendar feature, so that future rows need no file; not where there is none."""
    known = panel.schema.known.names
    computed = {column.name for column in calendar_columns(panel.preparation.calendar)}
    return bool(known) and computed.issuperset(known)


def with_future_rows(panel: Panel, steps: int) -> Panel:
    """The panel with ``steps`` more rows at the end of each series, for which ``can_extend`` must hold.

    Their times go on as ``next_times`` tells, their calendar columns are those of these times. The target and
    observed real columns are NaN, as in rows that are to be forecast; other columns repeat the last row's value.
    """
    if not can_extend(panel):
        raise ValueError("a known column is no calendar feature: its future values have to be given")
    starts = panel.series_start.numpy()
    times = next_times(panel.time.numpy(), starts, steps, panel.time_kind, panel.time_zone)
    history = panel.schema.group("historical")
    coming = panel.values.numpy()[starts[1:] - 1].repeat(steps, axis=0)  # [S * steps, V]
    computed = Calendar.of(panel.preparation.calendar, panel.time_kind, panel.time_zone).values(times.reshape(-1))
    for place, column in enumerate(history.columns):
        if column in computed:
            coming[:, place] = computed[column]
        elif column in history.real:
            coming[:, place] = np.nan
    at = starts[1:].repeat(steps)

    def moved(rows: torch.Tensor) -> torch.Tensor:
        return rows + steps * torch.searchsorted(panel.series_start[1:], rows, right=True)

    return replace(
        panel,
        values=torch.from_numpy(np.insert(panel.values.numpy(), at, coming, axis=0)),
        time=torch.from_numpy(np.insert(panel.time.numpy(), at, times.reshape(-1))),
        series_start=moved(panel.series_start),
        segment_start=None if panel.segment_start is None else moved(panel.segment_start),
    )


def next_times(times: _Times, starts: _Times, steps: int, kind: TimeKind, zone: str | None) -> _Times:
    """The times that follow each series' last one, int64 [S, steps], as ``Panel.time`` counts them.

    A step is the series' median one. It is counted in calendar months where every time of every series stands on
    the same place of its month (such as the first or the last day), and on the wall clock of the zone where it
    consists of whole days, so that a change of the hour does not move midnight.

    Args:
        times: int64 [rows], rising within each series.
        starts: int64 [S + 1], first row of each series, and the number of rows.
        steps: how many times.
        kind: what ``times`` counts.
        zone: its time zone, if any.

    A series of one row has no step: all its times are the last one.
    """
    ahead = np.arange(1, steps + 1)
    if kind is TimeKind.STEP:
        return np.asarray(times[starts[1:] - 1, None] + _median_step(times, starts)[:, None] * ahead)
    local = local_times(times, zone)
    monthly = _next_months(local, starts, ahead)
    if monthly is not None:
        return _utc(monthly, zone)
    wall = local.astype(np.int64)
    step = _median_step(wall, starts)[:, None]
    by_clock = _utc((wall[starts[1:] - 1, None] + step * ahead).astype("datetime64[ns]"), zone)
    by_duration = times[starts[1:] - 1, None] + _median_step(times, starts)[:, None] * ahead
    return np.where(step % _DAY == 0, by_clock, by_duration)


def _median_step(times: _Times, starts: _Times) -> _Times:
    """The lower median of the differences within each series, int64 [S]; 0 for a series of one row."""
    series = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    inner = series[1:] == series[:-1]
    differences, owner = np.diff(times)[inner], series[1:][inner]
    order = np.lexsort((differences, owner))
    counts = np.bincount(owner, minlength=len(starts) - 1)
    begin = np.cumsum(counts) - counts
    median = np.zeros(len(counts), dtype=np.int64)
    filled = counts > 0
    median[filled] = differences[order][(begin + (counts - 1) // 2)[filled]]
    return median


def _next_months(local: npt.NDArray[np.datetime64], starts: _Times, ahead: _Times) -> npt.NDArray[np.datetime64] | None:
    """Wall-clock times [S, steps] where every step is whole months; None where one is not."""
    for shift in (np.timedelta64(0, "D"), np.timedelta64(1, "D")):  # the last day of a month, put off to the first
        shifted = local + shift
        months = shifted.astype("datetime64[M]")
        within = (shifted - months).astype("timedelta64[ns]")
        last = starts[1:] - 1
        steps = _median_step(months.astype(np.int64), starts)
        same = bool((within == np.repeat(within[last], np.diff(starts))).all())
        if same and bool((steps > 0).all()) and bool((within < np.timedelta64(_SHORTEST_MONTH, "D")).all()):
            coming = months[last, None] + steps[:, None] * ahead
            return np.asarray(coming.astype("datetime64[ns]") + within[last, None] - shift)
    return None


def _utc(local: npt.NDArray[np.datetime64], zone: str | None) -> _Times:
    """Wall-clock times as nanoseconds since 1970; an hour that comes twice is its first, a skipped one the next."""
    naive = local.astype("datetime64[ns]")
    if zone is None:
        return naive.astype(np.int64)
    zoned = pc.assume_timezone(pa.array(naive.reshape(-1)), zone, ambiguous="earliest", nonexistent="latest")
    return np.asarray(zoned.cast(pa.int64()).to_numpy()).reshape(local.shape)
