"""A data set in memory: every series one after the other in one float32 buffer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date

import torch

from qat_tft.data.preparation import NO_PREPARATION, Preparation
from qat_tft.data.time.kind import TimeKind, parse_time, time_text
from qat_tft.schema import Schema

_BLOCK_VALUES = 2**20
"""Most values that a block of a pass over the rows holds."""


@dataclass(frozen=True)
class Fill:
    """What stands in for the missing values of one column; made once, used where rows are gathered.

    Attributes:
        place: of the column in ``Panel.values``.
        values: float32 [S], what a series gets where no earlier value of its own serves.
        runs: int64 [K], first row of each run of missing values, whatever series it reaches into, ascending; None
            where an earlier value never serves.
    """

    place: int
    values: torch.Tensor
    runs: torch.Tensor | None

    def at(self, rows: torch.Tensor, series: torch.Tensor, column: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """What stands in for the missing values in these rows; it depends on no later row.

        Args:
            rows: int64 [N], where a value is missing.
            series: int64 [N], their series.
            column: float32 [R], the values.
            starts: int64, first row of each series.
        """
        values = self.values[series]
        if self.runs is None:
            return values
        before = self.runs[torch.searchsorted(self.runs, rows, right=True) - 1] - 1
        return torch.where(before >= starts[series], column[before.clamp(min=0)], values)


@dataclass(frozen=True)
class Panel:
    """One or many series, sorted by series and then by time. S series, R rows.

    Attributes:
        schema: the roles of the columns.
        values: float32 [R, Vh], raw; the columns are those of ``schema.group("historical")``, so the target is
            column 0. Category columns hold indices into the dictionaries of the file, also once encoded: it is
            ``gather`` that turns them into vocabulary codes.
        static: float32 [S, Vs]; the columns are those of ``schema.group("static")``.
        time: int64 [R]; see TimeKind.
        series_start: int64 [S + 1]; series s has the rows from series_start[s] up to series_start[s + 1].
        stretch_start: int64 [G + 1], likewise for the runs of rows that no window may leave; None where these are
            the series.
        series_ids: the values of the id columns of each series, as text; () where there is no id column.
        series_code: int64 [S], index of each series among those seen in training, 0 = unseen; 0 before encoding.
        time_kind: what ``time`` counts.
        time_zone: zone named by the file, if any; times are in UTC nevertheless.
        dictionaries: distinct values of each category column; empty once encoded.
        recoding: for each category column of ``values`` the vocabulary code of each index, float32 [values of the
            column]; empty before encoding.
        encoded: whether ``static`` and ``gather`` give vocabulary codes.
        source: the file or files, for messages.
        notes: what a user should know about the data although it is no error; one sentence each.
        preparation: what was done to the rows of the file.
        largest: largest magnitude of real columns of the files that are in ``values``.
        fingerprint: changes whenever a value, time, series or category does; "" where none was taken.
        checked: whether values that are missing without a policy, or infinite, were refused when the rows were read.
        fills: what ``gather`` puts in the place of missing values, which are NaN in ``values``.
    """

    schema: Schema
    values: torch.Tensor
    static: torch.Tensor
    time: torch.Tensor
    series_start: torch.Tensor
    series_ids: list[tuple[str, ...]]
    series_code: torch.Tensor
    time_kind: TimeKind = TimeKind.TIMESTAMP
    time_zone: str | None = None
    dictionaries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    recoding: tuple[torch.Tensor, ...] = ()
    encoded: bool = False
    source: str = ""
    notes: tuple[str, ...] = ()
    preparation: Preparation = NO_PREPARATION
    largest: dict[str, float] = field(default_factory=dict)
    fingerprint: str = ""
    fills: tuple[Fill, ...] = ()
    stretch_start: torch.Tensor | None = None
    checked: bool = True

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.values.shape[0]

    @property
    def target(self) -> torch.Tensor:
        """The target, raw, float32 [R], NaN where it is missing; a view."""
        return self.values[:, 0]

    @property
    def has_every_target(self) -> bool:
        """Whether no row lacks a target."""
        return self.checked and all(fill.place for fill in self.fills)

    @property
    def lengths(self) -> torch.Tensor:
        """Rows of each series, int64 [S]."""
        return self.series_start.diff()

    @property
    def stretches(self) -> torch.Tensor:
        """Runs of rows that no window may leave, int64 [G + 1]: run g has the rows from entry g up to entry g + 1."""
        return self.series_start if self.stretch_start is None else self.stretch_start

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """These rows, float32 [rows, Vh], a copy: missing values filled, category columns as vocabulary codes.

        The latter once encoded; a missing value stays NaN where no fill is declared for its column.
        """
        values = self.values.index_select(0, rows)
        for fill in self.fills:
            missing = values[:, fill.place].isnan()
            there = rows[missing]
            column = self.values[:, fill.place]
            values[missing, fill.place] = fill.at(there, self.series_at(there), column, self.series_start)
        for place, codes in enumerate(self.recoding, start=len(self.schema.group("historical").real)):
            values[:, place] = codes[values[:, place].long()]
        return values

    def series_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Series of each of these rows, int64 of the same shape."""
        return torch.searchsorted(self.series_start, rows.contiguous(), right=True) - 1

    def stretch_at(self, rows: torch.Tensor) -> torch.Tensor:
        """Stretch of each of these rows, int64 of the same shape; its first row is ``stretches`` at that place."""
        return torch.searchsorted(self.stretches, rows.contiguous(), right=True) - 1

    def first_at(self, starts: torch.Tensor, instant: int) -> torch.Tensor:
        """For runs of rows between these starts, the first row at or after an instant, int64 [starts - 1].

        It is the row after the run where the whole run lies before. Times rise within each run.
        """
        low, high = starts[:-1].clone(), starts[1:].clone()
        while bool((open_ := low < high).any()):  # bisection in all runs at once
            middle = torch.where(open_, (low + high) // 2, 0)
            before = self.time[middle] < instant
            low = torch.where(open_ & before, middle + 1, low)
            high = torch.where(open_ & ~before, middle, high)
        return low

    def blocks_before(self, ends: torch.Tensor) -> Iterator[torch.Tensor]:
        """Rows of each series before these ones, ascending int64, some at a time; ``ends`` is int64 [S]."""
        size = max(1, _BLOCK_VALUES // max(1, self.values.shape[1]))
        for begin in range(0, self.rows, size):
            rows = torch.arange(begin, min(begin + size, self.rows))
            rows = rows[rows < ends[self.series_at(rows)]]
            if len(rows):
                yield rows

    def distinct_times(self) -> torch.Tensor:
        """Every time that occurs once, ascending, int64."""
        found = self.time[: int(self.series_start[1])]  # those of a series rise
        for block in self.time.split(_BLOCK_VALUES):
            place = torch.searchsorted(found, block).clamp(max=len(found) - 1)
            new = block[found[place] != block]
            if len(new):
                found = torch.unique(torch.cat([found, new]))
        return found

    def series_name(self, series: int) -> str:
        """A series for messages: ``city=Seattle``."""
        return name_series(self.schema.id, self.series_ids[series])

    def time_text(self, instant: int) -> str:
        """A time as people write it: ISO 8601, or the step."""
        return time_text(instant, self.time_kind)

    def parse_time(self, text: str | int | date) -> int:
        """The inverse of ``time_text``; text without a time zone is UTC. ValueError if it is no such time."""
        return parse_time(text, self.time_kind)


def name_series(id_columns: tuple[str, ...], values: tuple[str, ...]) -> str:
    """A series for messages: ``city=Seattle``, or ``the only series`` without id columns."""
    pairs = (f"{column}={value}" for column, value in zip(id_columns, values, strict=True))
    return " ".join(pairs) or "the only series"
