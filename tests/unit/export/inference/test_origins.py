"""Origins against a plain loop over the series, and what is said of those that are skipped."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.data.panel import Panel
from qat_tft.data.time.kind import TimeKind
from qat_tft.errors import DataError
from qat_tft.export.inference.origins import Needs, find_origins
from qat_tft.schema import Schema

Series = list[tuple[int, bool, bool]]
"""Rows: time, whether there is a target, whether a stretch ends before it."""


def panel_of(series: list[Series]) -> Panel:
    rows = list(itertools.chain(*series))
    starts = [0, *itertools.accumulate(map(len, series))]
    cuts = {place for place, (_, _, cut) in enumerate(rows) if cut}
    return Panel(
        schema=Schema(time="t", target="y", id=("id",)),
        values=torch.tensor([[1.0 if known else torch.nan] for _, known, _ in rows]),
        static=torch.zeros(len(series), 0),
        time=torch.tensor([time for time, _, _ in rows]),
        series_start=torch.tensor(starts),
        series_ids=[(f"s{number}",) for number in range(len(series))],
        series_code=torch.zeros(len(series), dtype=torch.int64),
        time_kind=TimeKind.STEP,
        source="test",
        stretch_start=torch.tensor(sorted({*starts, *cuts})),
    )


@st.composite
def some_series(draw: st.DrawFn) -> list[Series]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        times = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=12)))
        found.append([(time, draw(st.booleans()), draw(st.integers(0, 4)) == 0) for time in times])
    return found


def plain_origin(series: Series, needs: Needs, at: int | None, strict: bool) -> int | None:
    """The row of a series' origin, or None; one condition after the other."""
    known = [row for row, (_, target, _) in enumerate(series) if target]
    if not known:
        return None
    row = known[-1]
    if at is not None:
        until = [place for place, (time, _, _) in enumerate(series) if time <= at]
        if not until or until[-1] > known[-1]:
            return None
        row = until[-1]
        if row == len(series) - 1 and series[row][0] < at:
            return None
    begin = max([place for place in range(row + 1) if series[place][2]] or [0])
    end = min([place for place in range(row + 1, len(series)) if series[place][2]] or [len(series)])
    if at is None and not strict:
        row = min(row, end - 1 - needs.future)
    if end - 1 - row < needs.future or row - begin + 1 < needs.history:
        return None
    return row


@given(
    series=some_series(),
    needs=st.builds(Needs, history=st.integers(1, 4), future=st.integers(0, 3)),
    at=st.none() | st.integers(0, 20),
    strict=st.booleans(),
)
def test_origins_are_those_of_a_plain_loop(series: list[Series], needs: Needs, at: int | None, strict: bool) -> None:
    panel = panel_of(series)
    plain = [plain_origin(one, needs, at, strict) for one in series]
    expected = [(place, int(panel.series_start[place]) + row) for place, row in enumerate(plain) if row is not None]
    try:
        found = find_origins(panel, needs, at=None if at is None else str(at), strict=strict)
    except DataError:
        targets = [time for one in series for time, target, _ in one if target]
        beyond_all = at is not None and bool(targets) and at > max(targets)
        assert beyond_all or expected == []
        return
    assert list(zip(found.series.tolist(), found.rows.tolist(), strict=True)) == expected
    skipped = sum(int(note.split()[0]) for note in found.notes if "skipped" in note)
    assert skipped == len(series) - len(expected)


def rows(*known: bool, first: int = 0) -> Series:
    return [(first + step, target, False) for step, target in enumerate(known)]


def test_every_reason_names_and_counts_its_series() -> None:
    whole = rows(*[True] * 6, False, False)
    panel = panel_of([whole, rows(False, False), rows(True, *[False] * 5), rows(*[True] * 6, False)])
    found = find_origins(panel, Needs(history=3, future=2), strict=True)
    assert found.rows.tolist() == [5]
    assert found.notes == (
        "1 series skipped, without any target: id=s1.",
        "1 series skipped, with fewer than 2 rows after the origin (the first has 1 after 5): id=s3.",
        "1 series skipped, with fewer than 3 rows up to the origin: id=s2.",
    )


def test_no_message_asks_for_rows_that_are_appended_by_themselves() -> None:
    panel = panel_of([rows(True, True, False, False)])
    with pytest.raises(
        DataError, match=r"needs 3 rows up to the origin, the longest has 2 rows with a target"
    ) as caught:
        find_origins(panel, Needs(history=3, future=2, appended=True))
    assert "--future-file" not in str(caught.value)
