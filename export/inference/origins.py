"""From which row each series is forecast: the last one known, or the one at a time of the user's choice.

S series, N series that are forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from qat_tft.data.filling import last_present
from qat_tft.data.panel import Panel
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import DataError, some_of


@dataclass(frozen=True)
class Needs:
    """What a forecast needs around its origin.

    Attributes:
        history: fewest rows up to it.
        future: rows after it, for the known columns.
        appended: whether these were appended to the data, so that no user need give them.
    """

    history: int
    future: int
    appended: bool = False

    def __str__(self) -> str:
        """As a message says it."""
        after = "" if self.appended else f" and {self.future} after it"
        return f"{self.history} row{'s' if self.history > 1 else ''} up to the origin{after}"


@dataclass(frozen=True)
class Origins:
    """The last row of each history, and what was skipped.

    Attributes:
        series: int64 [N], ascending.
        rows: int64 [N].
        notes: one sentence each.
    """

    series: Tensor
    rows: Tensor
    notes: tuple[str, ...]


def find_origins(panel: Panel, needs: Needs, *, at: str | None = None, strict: bool = False) -> Origins:
    """Choose an origin for every series that has what a forecast needs.

    Args:
        panel: the rows; those to forecast lack the target.
        needs: rows around an origin.
        at: a time; the origin is the last row up to it. By default it is the last row with a target.
        strict: by default, let no origin lie before the last target only because too few rows follow that one.

    Raises:
        DataError: `at` is no time of the data, or no series has what is needed.
    """
    first, end = panel.series_start[:-1], panel.series_start[1:]
    known = torch.from_numpy(last_present(panel.target.isnan().numpy(), panel.series_start.numpy()))[end - 1]
    wanted = known
    if at is not None:
        instant = _instant(panel, at, known)
        wanted = panel.first_at(panel.series_start, instant + 1) - 1
        gone = (wanted < first) | (wanted > known) | ((wanted == end - 1) & (panel.time[wanted] < instant))
        wanted = torch.where(gone, -1, wanted)
    begin, stop = _stretch(panel, wanted)
    origins = wanted
    if at is None and not (strict or needs.appended):
        origins = torch.minimum(wanted, stop - 1 - needs.future)
    absent = wanted < 0
    lonely = ~absent & (stop - 1 - origins < needs.future)
    short = ~absent & ~lonely & (origins - begin + 1 < needs.history)
    chosen = torch.nonzero(~(absent | lonely | short)).squeeze(1)
    if not len(chosen):
        _refuse(panel, needs, at, known)
    earlier = chosen[(origins < wanted)[chosen]]
    followed = (known < end - 1)[earlier]
    notes = (
        _note(panel, absent, f"with no target at {at}" if at else "without any target"),
        _note(panel, lonely, _too_few_after(panel, lonely, origins, stop, needs)),
        _note(panel, short, f"with fewer than {needs.history} rows up to the origin"),
        _moved_back(panel, earlier[followed], needs),
        _nothing_ahead(panel, earlier[~followed], needs),
    )
    return Origins(chosen, origins[chosen], tuple(note for note in notes if note))


def _stretch(panel: Panel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """First row, and row after the last, of the stretches that hold these rows."""
    stretches = panel.stretches
    place = panel.stretch_at(rows).clamp(min=0)
    return stretches[place], stretches[place + 1]


def _instant(panel: Panel, at: str, known: Tensor) -> int:
    first, last = _reach(panel, known)
    try:
        instant = panel.parse_time(at)
    except ValueError:
        raise DataError(
            f"--origin {at!r} is not a time of this data",
            where=panel.source,
            allowed="a whole number" if panel.time_kind is TimeKind.STEP else "ISO 8601, such as 2015-12-31T18:00",
            next_step=f"Targets run from {panel.time_text(first)} to {panel.time_text(last)}.",
        ) from None
    if not first <= instant <= last:
        raise DataError(
            f"--origin {at} is outside the data",
            where=panel.source,
            allowed=f"{panel.time_text(first)} to {panel.time_text(last)}, the times of the targets",
            next_step="Omit --origin to forecast from the latest ones.",
        )
    return instant


def _reach(panel: Panel, known: Tensor) -> tuple[int, int]:
    """First time, and the last one that has a target."""
    last = panel.time[known[known >= 0]]
    return int(panel.time.min()), int(last.max() if len(last) else panel.time.max())


def _refuse(panel: Panel, needs: Needs, at: str | None, known: Tensor) -> NoReturn:
    first, last = (panel.time_text(time) for time in _reach(panel, known))
    longest = max(0, int((known - panel.series_start[:-1]).max()) + 1)
    around = f", and no series has them around {at}" if at is not None else ""
    rest = "" if needs.appended else "those of the steps to forecast need only the time, id and known columns, "
    raise DataError(
        f"0 forecasts: every series needs {needs}, the longest has {longest} rows with a target{around}",
        where=panel.source,
        allowed=f"origins from {first} to {last}",
        next_step=f"Add rows: {rest}here or in a --future-file." if rest else "Add rows.",
    )


def _too_few_after(panel: Panel, lonely: Tensor, origins: Tensor, stop: Tensor, needs: Needs) -> str:
    if not bool(lonely.any()):
        return ""
    one = int(torch.nonzero(lonely)[0])
    there = int(stop[one]) - 1 - int(origins[one])
    after = panel.time_text(int(panel.time[origins[one]]))
    return f"with fewer than {needs.future} rows after the origin (the first has {there} after {after})"


def _moved_back(panel: Panel, series: Tensor, needs: Needs) -> str:
    return _said(panel, series, f"forecast from before their last target, which fewer than {needs.future} rows follow")


def _nothing_ahead(panel: Panel, series: Tensor, needs: Needs) -> str:
    return _said(
        panel,
        series,
        f"have no rows after their last target, so that their last {needs.future} rows were forecast",
        " For later steps add rows with the time, id and known columns, here or in a --future-file.",
    )


def _note(panel: Panel, which: Tensor, why: str) -> str:
    return _said(panel, torch.nonzero(which).squeeze(1), f"skipped, {why}")


def _said(panel: Panel, series: Tensor, what: str, advice: str = "") -> str:
    """Say something of some series by name; empty without any."""
    return f"{len(series)} series {what}: {_named(panel, series)}.{advice}" if len(series) else ""


def _named(panel: Panel, series: Tensor) -> str:
    return some_of([panel.series_name(place) for place in series.tolist()])
