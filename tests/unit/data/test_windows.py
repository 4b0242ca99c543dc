"""Splits do not leak, windows equal slices taken one by one, and batches are the same every time."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qat_tft.data.loading.loader import batches
from qat_tft.data.panel import Panel
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Part, Split
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.windows import Batch, Mask, Windows
from qat_tft.errors import ConfigError, DataError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]
Cities = Callable[..., dict[str, Any]]

SCHEMA = Schema(
    time="time",
    target="y",
    id=("id",),
    static=Columns(category=("kind",)),
    observed=Columns(real=("x",), category=("c",)),
    known=Columns(real=("k",), category=("h",)),
)


def panel_of(times: list[list[int]]) -> Panel:
    """Series at these times; every value tells its column and row, so that a wrong gather cannot go unseen."""
    rows = sum(map(len, times))
    values = torch.arange(rows, dtype=torch.float32)[:, None] * 10 + torch.arange(5, dtype=torch.float32)
    return Panel(
        schema=SCHEMA,
        values=values + 1,
        static=torch.arange(len(times), dtype=torch.float32)[:, None] + 1,
        time=torch.tensor(list(itertools.chain(*times)), dtype=torch.int64),
        series_start=torch.tensor([0, *itertools.accumulate(map(len, times))]),
        series_ids=[(f"s{number}",) for number in range(len(times))],
        series_code=torch.arange(len(times)) + 1,
        time_kind=TimeKind.STEP,
        encoded=True,
        source="test",
    )


@st.composite
def series_times(draw: st.DrawFn) -> list[list[int]]:
    """One to four series with gaps, at different times and of different lengths."""
    return [sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=40))) for _ in range(draw(st.integers(1, 4)))]


def naive_windows(panel: Panel, history: int, horizon: int, split: Split, part: Part) -> list[tuple[int, int]]:
    """Series and first row of each window, found by trying every row."""
    found = []
    for series in range(len(panel.series_ids)):
        begin, end = panel.series_start[series : series + 2].tolist()
        for first in range(begin, end - history - horizon + 1):
            targets = panel.time[first + history : first + history + horizon].tolist()
            inside = {
                Part.TRAIN: all(time < split.validation_from for time in targets),
                Part.VALIDATION: all(split.validation_from <= time < split.test_from for time in targets),
                Part.TEST: all(split.test_from <= time for time in targets),
            }
            if inside[part]:
                found.append((series, first))
    return found


def naive_batch(panel: Panel, windows: list[tuple[int, int]], history: int, horizon: int) -> Batch:
    past = [panel.values[first : first + history] for _, first in windows]
    ahead = [panel.values[first + history : first + history + horizon] for _, first in windows]
    return Batch(
        static=torch.stack([panel.static[series] for series, _ in windows]),
        historical=torch.stack(past),
        future=torch.stack([rows[:, [2, 4]] for rows in ahead]),
        target=torch.stack([rows[:, 0] for rows in ahead]),
        series=torch.stack([panel.series_code[series] for series, _ in windows]),
    )


def assert_equal(first: Batch, second: Batch) -> None:
    for name, ours, theirs in zip(Batch._fields[:5], first[:5], second[:5], strict=True):
        assert torch.equal(ours, theirs), name
    assert first.teacher is second.teacher is None


@settings(max_examples=150)
@given(
    times=series_times(),
    history=st.integers(1, 6),
    horizon=st.integers(1, 4),
    cuts=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    part=st.sampled_from(Part),
)
def test_windows_and_their_values_equal_slices_taken_one_by_one(
    times: list[list[int]], history: int, horizon: int, cuts: tuple[int, int], part: Part
) -> None:
    panel, split = panel_of(times), Split(min(cuts), max(cuts))
    expected = naive_windows(panel, history, horizon, split, part)
    if not expected:
        with pytest.raises(DataError, match=f"0 {part} windows: need {history + horizon} rows per series"):
            Windows(panel, history=history, horizon=horizon, split=split, part=part)
        return
    windows = Windows(panel, history=history, horizon=horizon, split=split, part=part)
    assert len(windows) == len(expected)
    assert_equal(windows[range(len(windows))], naive_batch(panel, expected, history, horizon))


@settings(max_examples=60)
@given(times=series_times(), history=st.integers(1, 6), horizon=st.integers(1, 4), share=st.floats(0.05, 0.4))
def test_no_target_row_is_shared_by_two_parts_and_training_targets_come_before_every_cut(
    times: list[list[int]], history: int, horizon: int, share: float
) -> None:
    panel = panel_of(times)
    split = Split.by_fraction(panel, share, share)
    seen: dict[Part, set[int]] = {}
    for part in Part:
        try:
            windows = Windows(panel, history=history, horizon=horizon, split=split, part=part)
        except DataError:
            continue
        rows = windows.target_rows(range(len(windows)))
        seen[part] = set(rows.flatten().tolist())
        if part is Part.TRAIN:
            assert int(panel.time[rows].max()) < split.validation_from
        if part is Part.TEST:
            assert int(panel.time[rows].min()) >= split.test_from
    for first, second in itertools.combinations(seen.values(), 2):
        assert not first & second


@given(series_times(), st.floats(0, 0.45), st.floats(0, 0.45))
def test_fractions_cut_the_distinct_times_in_these_shares(
    times: list[list[int]], validation: float, test: float
) -> None:
    panel = panel_of(times)
    split = Split.by_fraction(panel, validation, test)
    distinct = sorted(set(itertools.chain(*times)))
    in_test = sum(time >= split.test_from for time in distinct)
    in_training = sum(time < split.validation_from for time in distinct)
    assert abs(in_test - len(distinct) * test) <= 1
    assert in_training >= 1
    assert abs(in_training - len(distinct) * (1 - validation - test)) <= 1


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((1.0, 0.1), "the validation fraction is 1.0"),
        ((0.1, -0.1), "the test fraction is -0.1"),
        ((0.5, 0.5), "leave nothing for training"),
    ],
)
def test_fractions_that_leave_no_training_part_are_refused(fractions: tuple[float, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Split.by_fraction(panel_of([[1, 2, 3]]), *fractions)


def test_dates_cut_where_they_say(write: Write, cities: Cities, city_schema: Schema) -> None:
    panel = read_panel(write(cities(48)), city_schema)
    split = Split.by_time(panel, "2020-01-01T12:00", "2020-01-02")
    assert panel.time_text(split.validation_from) == "2020-01-01T12:00:00"
    assert panel.time_text(split.test_from) == "2020-01-02T00:00:00"
    assert Split.by_time(panel, "2020-01-01T13:00+01:00").validation_from == split.validation_from


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        pytest.param(("soon", None), "validation_from is 'soon'.*ISO 8601", id="no time"),
        pytest.param(("2020-01-02", "2020-01-01"), "is after test_from", id="wrong order"),
        pytest.param(("2020-01-01", "2020-01-02", "2020-01-01T12:00"), "is after test_until", id="ends too early"),
        pytest.param(("2020-01-01", "2020-01-02", "later"), "test_until is 'later'.*ISO 8601", id="no end"),
    ],
)
def test_dates_that_cannot_cut_are_refused(
    write: Write, cities: Cities, city_schema: Schema, cuts: tuple[str, str | None], message: str
) -> None:
    panel = read_panel(write(cities(48)), city_schema)
    with pytest.raises(ConfigError, match=message):
        Split.by_time(panel, *cuts)


@pytest.mark.parametrize("make", [Split.by_time, Split.by_fraction], ids=["times", "shares"])
def test_no_row_at_or_after_test_until_is_in_a_target(make, write: Write, cities: Cities, city_schema: Schema) -> None:
    panel = replace(read_panel(write(cities(48)), city_schema), encoded=True)
    end = panel.parse_time("2020-01-02T06:00")
    cuts = ("2020-01-01T12:00", "2020-01-02") if make == Split.by_time else (0.2, 0.2)
    split = make(panel, *cuts, test_until="2020-01-02T06:00")
    test = Windows(panel, history=3, horizon=2, split=split, part=Part.TEST)
    last = panel.time[test.target_rows(torch.arange(len(test)))].max()
    assert int(last) == end - 3_600_000_000_000
    assert split.place(Part.TEST, panel).endswith("and before 2020-01-02T06:00:00")


def test_shares_are_of_the_times_before_test_until() -> None:
    panel = panel_of([list(range(100))])
    assert Split.by_fraction(panel, 0.25, 0.25, test_until=40) == Split(20, 30, 40)


@pytest.mark.parametrize("split", [Split(0, 5), Split(-3, 5)], ids=["at the first row", "before it"])
def test_a_training_part_without_rows_is_refused(split: Split) -> None:
    with pytest.raises(ConfigError, match=r"validation_from .* for training.*after 0; the data end at 9"):
        split.require_training_rows(panel_of([list(range(10))]))
    with pytest.raises(ConfigError, match="test_until 0 leaves no row for training"):
        Split.by_fraction(panel_of([list(range(10))]), test_until=0)


def test_series_that_are_too_short_are_skipped_named_and_counted() -> None:
    windows = Windows(panel_of([list(range(20)), [1], list(range(5))]), history=10, horizon=4)
    assert windows.skipped == ("id=s1", "id=s2")
    assert windows.notes == ("2 of 3 series are skipped because they have fewer than 14 rows: id=s1, id=s2.",)
    assert set(windows.series_of(range(len(windows))).tolist()) == {0}


def test_no_window_at_all_says_how_many_rows_are_needed_and_there() -> None:
    with pytest.raises(DataError, match="0 windows: need 14 rows per series, longest has 5"):
        Windows(panel_of([list(range(5)), [1]]), history=10, horizon=4)


def test_no_window_in_a_part_says_where_the_part_lies() -> None:
    panel = panel_of([list(range(30))])
    with pytest.raises(DataError, match="followed by 4 that lie at or after 25 and before 27") as caught:
        Windows(panel, history=10, horizon=4, split=Split(25, 27), part="validation")
    assert caught.value.allowed == f"times from {panel.time_text(0)} to {panel.time_text(29)}"


def test_a_stride_keeps_every_nth_window_of_each_series() -> None:
    panel = panel_of([list(range(20)), list(range(17))])
    every, third = (Windows(panel, history=5, horizon=2, stride=stride) for stride in (1, 3))
    expected = [row for row in every.target_rows(range(len(every)))[:, 0].tolist() if (row - 5) % 20 % 3 == 0]
    assert third.target_rows(range(len(third)))[:, 0].tolist() == expected


def test_a_stride_begins_with_the_first_window_of_the_part() -> None:
    panel, split = panel_of([list(range(40)), list(range(7, 40))]), Split(20, 21, 37)
    test = Windows(panel, history=5, horizon=3, split=split, part="test", stride=4)
    targets = panel.time[test.target_rows(range(len(test)))[:, 0]].tolist()
    assert targets == [21, 25, 29, 33] * 2


def test_one_index_gives_a_batch_of_one() -> None:
    windows = Windows(panel_of([list(range(20))]), history=5, horizon=2)
    assert windows[3].historical.shape == (1, 5, 5)
    assert_equal(windows[3], windows[torch.tensor([3])])


def test_empty_groups_have_the_last_size_0(write: Write) -> None:
    panel = read_panel(
        write({"time": list(range(9)), "y": [float(row) for row in range(9)]}), Schema(time="time", target="y")
    )
    batch = Windows(panel, history=3, horizon=2)[[0, 1]]
    assert batch.static.shape == (2, 0)
    assert batch.future.shape == (2, 2, 0)
    assert batch.historical.shape == (2, 3, 1)


def test_a_panel_that_is_not_encoded_is_a_programmers_error() -> None:
    with pytest.raises(ValueError, match=r"call Preprocessing\.encode first"):
        Windows(replace(panel_of([[1, 2, 3]]), encoded=False), history=1, horizon=1)


@pytest.mark.parametrize(
    "arguments", [{"history": 0}, {"horizon": 0}, {"stride": 0}, {"unknown_rate": 1.0}, {"part": "train"}]
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|go together"):
        Windows(panel_of([list(range(9))]), **{"history": 2, "horizon": 2, **arguments})


# Unknown values in training.


def masked(rate: float, part: Part = Part.TRAIN, seed: int = 1) -> tuple[Batch, Batch]:
    panel = panel_of([list(range(600)), list(range(600))])
    split = Split(500, 550)
    windows = Windows(panel, history=4, horizon=2, split=split, part=part, unknown_rate=rate)
    indices = torch.arange(len(windows))
    return windows.gather(indices, Mask(seed, 0, len(indices))), windows[indices]


def test_masking_replaces_whole_category_columns_and_series_at_about_the_rate() -> None:
    batch, plain = masked(0.2)
    replaced = {
        "kind": batch.static[:, 0] == 0,
        "c": (batch.historical[..., 3] == 0).all(dim=1),
        "h": (batch.historical[..., 4] == 0).all(dim=1),
        "series": batch.series == 0,
    }
    for name, rows in replaced.items():
        assert 0.15 < rows.float().mean() < 0.25, name
    assert torch.equal((batch.future[..., 1] == 0).all(dim=1), replaced["h"])
    assert torch.equal((batch.historical[..., 3] == 0).any(dim=1), replaced["c"])
    assert torch.equal(batch.historical[..., :3], plain.historical[..., :3])
    assert torch.equal(batch.future[..., 0], plain.future[..., 0])
    assert torch.equal(batch.target, plain.target)
    kept = ~replaced["c"]
    assert torch.equal(batch.historical[kept][..., 3], plain.historical[kept][..., 3])


def test_masking_changes_neither_the_panel_nor_other_parts() -> None:
    first, plain = masked(0.5)
    assert (plain.historical != 0).all()
    for part in (Part.VALIDATION, Part.TEST):
        assert_equal(*masked(0.5, part))
    assert_equal(first, masked(0.5)[0])


def test_another_seed_masks_other_windows() -> None:
    assert not torch.equal(masked(0.2, seed=1)[0].series, masked(0.2, seed=2)[0].series)


# Batches.


@pytest.fixture
def city_windows(write: Write, cities: Cities, city_schema: Schema) -> Windows:
    panel = read_panel(write(cities(60)), city_schema)
    split = Split.by_fraction(panel, 0.2, 0.2)
    encoded = Preprocessing.fit(panel, split, "series").encode(panel)
    return Windows(encoded, history=6, horizon=3, split=split, part="train", unknown_rate=0.3)


def assert_same_batches(first: Any, second: Any) -> None:
    for ours, theirs in itertools.zip_longest(first, second):
        assert_equal(ours, theirs)


def test_an_epoch_holds_every_window_once_and_differs_from_the_next(city_windows: Windows) -> None:
    orders = []
    for epoch in (0, 1):
        stream = batches(city_windows, 7, shuffle=True, seed=3, epoch=epoch)
        orders.append(torch.cat([draw.indices for draw in stream.plan()]))
        assert sorted(orders[-1].tolist()) == list(range(len(city_windows)))
        assert len(list(stream)) == len(stream) == -(-len(city_windows) // 7)
    assert not torch.equal(*orders)


def test_seed_and_epoch_alone_decide_the_batches(city_windows: Windows) -> None:
    stream = batches(city_windows, 7, shuffle=True, seed=3, epoch=2)
    torch.rand(5)  # the global generator has no say
    assert_same_batches(stream, batches(city_windows, 7, shuffle=True, seed=3, epoch=2))


@given(skip=st.integers(0, 12))
@settings(max_examples=13, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_going_on_after_an_interruption_gives_exactly_the_batches_that_were_left(
    city_windows: Windows, skip: int
) -> None:
    whole = list(batches(city_windows, 7, shuffle=True, epoch=4))
    rest = batches(city_windows, 7, shuffle=True, epoch=4, skip=skip)
    assert len(rest) == len(whole[skip:])
    assert_same_batches(rest, whole[skip:])


def test_workers_give_the_same_batches_as_none(city_windows: Windows) -> None:
    assert_same_batches(batches(city_windows, 7, shuffle=True, workers=2), batches(city_windows, 7, shuffle=True))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_every_batch_and_each_window_comes_once(
    city_windows: Windows, world: int, shuffle: bool
) -> None:
    whole = [draw.indices for draw in batches(city_windows, 7, shuffle=shuffle).plan()]
    shares = [list(batches(city_windows, 7, shuffle=shuffle, rank=rank, world=world).plan()) for rank in range(world)]
    for batch, draws in zip(whole, zip(*shares, strict=True), strict=True):
        own = [draw.indices for draw in draws if not draw.idle]
        assert torch.equal(torch.cat(own), batch)
        assert max(map(len, own)) - min(map(len, own)) <= 1


def test_a_process_without_a_window_of_a_batch_gets_one_that_does_not_count(city_windows: Windows) -> None:
    count = len(city_windows)
    *_, last = batches(city_windows, count - 1, rank=1, world=2)
    assert last.target.isnan().all()
    assert torch.equal(last.historical[..., :3], city_windows[count - 1].historical[..., :3])  # masked categories


def test_processes_draw_the_masks_of_the_whole_batch() -> None:
    panel = panel_of([list(range(60)), list(range(60))])
    windows = Windows(panel, history=4, horizon=2, split=Split(50, 55), part=Part.TRAIN, unknown_rate=0.3)
    (whole, *_), (first, *_), (second, *_) = (
        list(batches(windows, 20, shuffle=True, rank=rank, world=world)) for rank, world in ((0, 1), (0, 2), (1, 2))
    )
    assert whole.series.eq(0).any()
    assert all(map(torch.equal, whole[:5], (torch.cat(pair) for pair in zip(first[:5], second[:5], strict=True))))


@pytest.mark.parametrize("arguments", [{"batch_size": 0}, {"rank": 1}, {"workers": -1}, {"skip": -1}])
def test_impossible_loaders_are_refused(city_windows: Windows, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at least|is not one of"):
        batches(city_windows, **{"batch_size": 4, **arguments})  # type: ignore[arg-type]
