"""Windows over a panel, gathered when asked for, a whole batch at a time and without a copy of the panel.

B windows of a batch, V columns of a group.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from qat_tft.data.panel import Panel
from qat_tft.data.split import Part, Split
from qat_tft.data.vocabulary import UNKNOWN
from qat_tft.data.window_index import WindowIndex
from qat_tft.errors import DataError, some_of

DEFAULT_UNKNOWN_RATE = 0.01


class Mask(NamedTuple):
    """Which categories of a batch count as unseen: some windows' share of what a seed draws for more of them.

    Attributes:
        seed: draws.
        first: place of the first of these windows.
        windows: how many it draws for.
    """

    seed: int
    first: int
    windows: int


class Batch(NamedTuple):
    """Raw values of some windows; real columns first, then category codes, all float32 but ``series``.

    ``teacher`` is what another model forecasts for them, scaled, where training shall come close to that.
    """

    static: torch.Tensor  # [B, Vs]
    historical: torch.Tensor  # [B, history, Vh]
    future: torch.Tensor  # [B, horizon, Vf]
    target: torch.Tensor  # [B, horizon]
    series: torch.Tensor  # int64 [B], 0 = not seen in training
    teacher: torch.Tensor | None = None  # [B, horizon, quantiles]

    def to(self, device: torch.device) -> "Batch":
        """The batch with every tensor on a device."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def windows(self, which: slice | torch.Tensor) -> "Batch":
        """Some of the windows: a slice of them, or those at int64 indices."""
        return self.each(lambda tensor: tensor[which])

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        """The batch with every tensor changed."""
        return Batch(
            change(self.static),
            change(self.historical),
            change(self.future),
            change(self.target),
            change(self.series),
            None if self.teacher is None else change(self.teacher),
        )


class Windows(Dataset[Batch]):
    """Every window of one part of a panel: ``history`` rows to look at and the next ``horizon`` to forecast.

    A window without a single target to forecast is left out; a missing target is NaN in a batch. Where the panel's
    preparation has a ``min_history``, windows may begin before their first row: such a history is padded at the
    front with copies of that row, marked by 0 in the column ``history.present``.

    Steps are rows: a gap in time breaks a window only where the panel has stretches. Windows stand in the order of
    series, then of time.

    Args:
        panel: encoded by ``Preprocessing.encode``, unless it has no category column.
        history: rows before the forecast, at least 1.
        horizon: rows to forecast, at least 1.
        split: where the parts lie; None takes the whole panel as one part.
        part: which part must hold all target rows; only with ``split``.
        stride: rows from one window of a series to the next; the first is the first one possible in the part.
        unknown_rate: share of training windows in which a category column, or the series, is replaced by the
            unknown code, each drawn on its own, so that code 0 is trained. Acts in the training part only.

    Attributes:
        needed: rows that a series needs to have a window.
        skipped: names of the series with fewer rows.
        notes: what a user should know, one sentence each.

    Raises:
        DataError: no window is left; the message says how many rows are needed and there.
        ValueError: sizes or rates out of range, or a panel that is not encoded.
    """

    def __init__(
        self,
        panel: Panel,
        *,
        history: int,
        horizon: int,
        split: Split | None = None,
        part: Part | str | None = None,
        stride: int = 1,
        unknown_rate: float = DEFAULT_UNKNOWN_RATE,
    ) -> None:
        _check_arguments(panel, history, horizon, stride, unknown_rate, (split, part))
        self.panel = panel
        self.history = history
        self.horizon = horizon
        shortest = panel.preparation.min_history or history
        self._padding = max(0, history - shortest)  # most rows that a history may lack
        self.needed = history - self._padding + horizon
        self.part = None if part is None else Part(part)
        self.unknown_rate = unknown_rate if self.part is Part.TRAIN else 0.0
        self.skipped = tuple(panel.series_name(series) for series in self._too_short())
        self._index = self._find(split, stride)
        if not len(self):
            raise self._no_windows(split)

    def __len__(self) -> int:
        """Number of windows."""
        return len(self._index)

    def __getitem__(self, indices: int | Sequence[int] | torch.Tensor) -> Batch:
        """The windows of these indices as one batch; a single index gives a batch of one."""
        return self.gather(torch.atleast_1d(torch.as_tensor(indices, dtype=torch.int64)))

    def gather(self, indices: torch.Tensor, mask: Mask | None = None) -> Batch:
        """The windows of int64 ``indices`` [B]; ``mask`` draws what ``unknown_rate`` replaces.

        Without ``mask`` nothing is replaced. The same arguments give the same batch.
        """
        batch = batch_from(self.panel, self._index.rows(indices), self.history, self.horizon)
        return batch if mask is None or not self.unknown_rate else self._with_unknown(batch, mask)

    def origins(self, indices: torch.Tensor) -> torch.Tensor:
        """Row of each window's origin, int64 [B]: the last one of its history."""
        return self._index.rows(indices) + (self.history - 1)

    def target_rows(self, indices: int | Sequence[int] | torch.Tensor) -> torch.Tensor:
        """Rows of the panel that the windows forecast, int64 [B, horizon]."""
        first = self._index.rows(torch.atleast_1d(torch.as_tensor(indices, dtype=torch.int64))).unsqueeze(1)
        return first + torch.arange(self.history, self.history + self.horizon)

    def series_of(self, indices: int | Sequence[int] | torch.Tensor) -> torch.Tensor:
        """Place of each window's series in ``panel.series_ids``, int64 [B]."""
        return self._index.series_of(torch.atleast_1d(torch.as_tensor(indices, dtype=torch.int64)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about these windows."""
        if not self.skipped:
            return ()
        return (
            f"{len(self.skipped)} of {len(self.panel.series_ids)} series are skipped because they have fewer than "
            f"{self.needed} rows: {some_of(self.skipped)}.",
        )

    def _too_short(self) -> list[int]:
        short = self.panel.lengths < self.needed
        return [int(series) for series in torch.nonzero(short).flatten()]

    def _find(self, split: Split | None, stride: int) -> WindowIndex:
        stretches = self.panel.stretches
        begin, end = stretches[:-1] - self._padding, stretches[1:]  # of first rows of windows, and of all their rows
        if split is not None and self.part is not None:
            since, until = split.bounds(self.part)
            target = self.panel.first_at(stretches, since) - self.history
            begin = torch.maximum(begin, target)
            end = self.panel.first_at(stretches, until)
        end = end - self.history - self.horizon + 1
        index = WindowIndex.of(begin, end, self.panel.series_at(stretches[:-1]), stride)
        return index if self.panel.has_every_target else index.where(self._has_target())

    def _has_target(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Tells of the first rows of windows whether there is a target to forecast."""
        present = self.panel.target.isnan().logical_not()
        before = torch.cat([torch.zeros(1, dtype=torch.int32), present.cumsum(0, dtype=torch.int32)])

        def has_target(first: torch.Tensor) -> torch.Tensor:
            return before[first + self.history + self.horizon] > before[first + self.history]

        return has_target

    def _no_windows(self, split: Split | None) -> DataError:
        need = self.needed
        longest = int(self.panel.lengths.max())
        kind = f"{self.part} windows" if self.part else "windows"
        what = f"0 {kind}: need {need} rows per series, longest has {longest}"
        if split is None or self.part is None or longest < need:
            return DataError(
                what, where=self.panel.source, next_step="Use a shorter history or horizon, or longer series."
            )
        name = self.panel.time_text
        return DataError(
            f"{what}, but none has {self.needed - self.horizon} rows followed by {self.horizon} that lie "
            f"{split.place(self.part, self.panel)}",
            where=self.panel.source,
            allowed=f"times from {name(int(self.panel.time.min()))} to {name(int(self.panel.time.max()))}",
            next_step="Move the split, or use a shorter history or horizon.",
        )

    def _with_unknown(self, batch: Batch, mask: Mask) -> Batch:
        schema = self.panel.schema
        columns = schema.category_columns
        generator = torch.Generator().manual_seed(mask.seed)
        drawn = torch.rand(mask.windows, len(columns) + 1, generator=generator) < self.unknown_rate
        drawn = drawn[mask.first : mask.first + len(batch.series)]
        place = {column: at for at, column in enumerate(columns)}
        groups = zip(schema.groups, (batch.static, batch.historical, batch.future), strict=True)
        for group, tensor in groups:  # the batch is ours alone: gather has just made it
            if not group.category:
                continue
            replaced = drawn[:, [place[column] for column in group.category]]
            codes = tensor[..., len(group.real) :]
            codes.masked_fill_(replaced if codes.ndim == 2 else replaced.unsqueeze(1), UNKNOWN)
        return batch._replace(series=batch.series.masked_fill(drawn[:, -1], UNKNOWN))


def batch_from(panel: Panel, first: torch.Tensor, history: int, horizon: int) -> Batch:
    """The windows whose first rows are ``first``, int64 [B]; it may lie before the series where histories are padded.

    Args:
        panel: encoded; it has the ``horizon`` rows after each history.
        first: of each window.
        history: rows of a history; the last one lies in the series.
        horizon: rows to forecast.
    """
    ahead = (first.unsqueeze(1) + torch.arange(history, history + horizon)).flatten()
    series = panel.series_at(first + history - 1)
    return Batch(
        static=panel.static[series],
        historical=history_of(panel, first, history),
        future=panel.gather(ahead).index_select(1, _known_places(panel)).view(len(first), horizon, -1),
        target=panel.target[ahead].view(len(first), horizon),
        series=panel.series_code[series],
    )


def history_of(panel: Panel, first: torch.Tensor, history: int) -> torch.Tensor:
    """The rows from ``first`` on as histories, float32 [B, history, Vh].

    Args:
        panel: where they stand.
        first: int64 [B]; a row before the beginning of its stretch stands for padding.
        history: rows of a history; the last one lies in the stretch.
    """
    rows = first.unsqueeze(1) + torch.arange(history)  # [B, history]
    present = panel.schema.group("historical").present
    if present is None:
        return panel.gather(rows.flatten()).view(len(first), history, -1)
    begin = panel.stretches[panel.stretch_at(rows[:, -1:])]
    values = panel.gather(torch.maximum(rows, begin).flatten()).view(len(first), history, -1)
    values[..., present].masked_fill_(rows < begin, 0)
    return values


def _known_places(panel: Panel) -> torch.Tensor:
    history = panel.schema.group("historical").columns
    return torch.tensor([history.index(column) for column in panel.schema.group("future").columns], dtype=torch.int64)


def _check_arguments(
    panel: Panel,
    history: int,
    horizon: int,
    stride: int,
    unknown_rate: float,
    split_and_part: tuple[Split | None, Part | str | None],
) -> None:
    for name, size in (("history", history), ("horizon", horizon), ("stride", stride)):
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if not 0 <= unknown_rate < 1:
        raise ValueError(f"unknown_rate is {unknown_rate}; it must be from 0 to below 1")
    if panel.schema.category_columns and not panel.encoded:
        raise ValueError("the panel is not encoded: call Preprocessing.encode first")
    if (split_and_part[0] is None) != (split_and_part[1] is None):
        raise ValueError("split and part go together")
