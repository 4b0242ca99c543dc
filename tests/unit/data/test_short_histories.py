"""Histories with fewer rows than the model sees: padded at the front, marked, and otherwise as any other."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.config.run import RunConfig
from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Part, Split
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.windows import Windows
from qat_tft.errors import ConfigError, DataError, SchemaError
from qat_tft.schema import PRESENT, Columns, Schema

SCHEMA = Schema(time="t", target="y", id=("s",), known=Columns(real=("price",), category=("kind",)))
HISTORY = SCHEMA.with_observed(PRESENT).group("historical").columns  # y, history.present, price, kind


def panel_of(lengths: list[int], min_history: int | None) -> Panel:
    """Series of whole numbers, each row unlike any other."""
    rows = sum(lengths)
    preparation = Preparation(min_history=min_history)
    schema = preparation.effective_schema(SCHEMA)
    columns = {"y": torch.arange(rows) + 1.0, "price": torch.arange(rows) + 1000.0, PRESENT: torch.ones(rows)}
    columns["kind"] = torch.arange(rows) % 3 + 1.0
    return Panel(
        schema=schema,
        values=torch.stack([columns[name] for name in schema.group("historical").columns], 1),
        static=torch.zeros(len(lengths), 0),
        time=torch.cat([torch.arange(length) for length in lengths]),
        series_start=torch.tensor([0, *itertools.accumulate(lengths)]),
        series_ids=[(f"s{place}",) for place in range(len(lengths))],
        series_code=torch.arange(len(lengths)) + 1,
        time_kind=TimeKind.STEP,
        encoded=True,
        preparation=preparation,
    )


def padded_one_by_one(panel: Panel, begins: list[int], history: int, target: int) -> tuple[torch.Tensor, int]:
    """The history before a target row, and how many steps of it are padding; `begins` holds first rows."""
    begin = max(first for first in begins if first < target)
    steps, lacking = [], max(0, history - (target - begin))
    for place in range(history):
        row = panel.values[max(begin, target - history + place)].clone()
        if place < lacking:
            row[HISTORY.index(PRESENT)] = 0.0
        steps.append(row)
    return torch.stack(steps), lacking


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    history=st.integers(2, 6),
    shortest=st.integers(1, 5),
    horizon=st.integers(1, 3),
)
def test_every_row_with_enough_rows_before_it_is_forecast_from_what_is_there(
    lengths: list[int], history: int, shortest: int, horizon: int
) -> None:
    shortest = min(shortest, history - 1)
    panel = panel_of(lengths, shortest)
    begins = panel.series_start[:-1].tolist()
    targets = [
        row
        for begin, length in zip(begins, lengths, strict=True)
        for row in range(begin + shortest, begin + length - horizon + 1)
    ]
    if not targets:
        with pytest.raises(DataError, match=f"need {shortest + horizon} rows per series"):
            Windows(panel, history=history, horizon=horizon)
        return
    windows = Windows(panel, history=history, horizon=horizon)
    batch = windows[range(len(windows))]
    assert windows.target_rows(range(len(windows)))[:, 0].tolist() == targets
    for place, target in enumerate(targets):
        expected, _ = padded_one_by_one(panel, begins, history, target)
        assert torch.equal(batch.historical[place], expected)
        assert torch.equal(batch.target[place], panel.values[target : target + horizon, 0])
    assert windows.skipped == tuple(
        f"s=s{place}" for place, length in enumerate(lengths) if length < shortest + horizon
    )


def test_padding_begins_at_a_gap_that_windows_may_not_span() -> None:
    panel = replace(panel_of([12], 2), stretch_start=torch.tensor([0, 7, 12]))
    windows = Windows(panel, history=4, horizon=2)
    targets = windows.target_rows(range(len(windows)))[:, 0].tolist()
    assert targets == [2, 3, 4, 5, 9, 10]
    batch = windows[range(len(windows))]
    for place, target in enumerate(targets):
        assert torch.equal(batch.historical[place], padded_one_by_one(panel, [0, 7], 4, target)[0])


def test_without_a_shortest_history_no_column_is_derived_and_no_window_is_padded() -> None:
    panel = panel_of([12, 5], None)
    assert PRESENT not in panel.schema.group("historical").columns
    windows = Windows(panel, history=6, horizon=2)
    assert windows.target_rows(range(len(windows)))[:, 0].tolist() == [6, 7, 8, 9, 10]
    assert windows.skipped == ("s=s1",)


def test_gathering_in_another_order_gives_the_same_windows() -> None:
    windows = Windows(panel_of([9, 3, 7], 1), history=5, horizon=2)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    together, shuffled = windows[range(len(windows))], windows[order]
    for ours, theirs in zip(shuffled[:5], together[:5], strict=True):
        assert torch.equal(ours, theirs[order])


@pytest.mark.parametrize("mode", ["series", "global"])
def test_the_mark_of_padding_is_not_scaled(write: Callable[..., Path], mode: str) -> None:
    columns = {"s": ["a"] * 9 + ["b"] * 9, "t": list(range(9)) * 2, "kind": ["x", "y", "z"] * 6}
    columns |= {"y": [float(row % 5) for row in range(18)], "price": [float(row) for row in range(18)]}
    raw = read_panel(write(columns), SCHEMA, Preparation(min_history=2))
    split = Split(6, 8)
    preprocessing = Preprocessing.fit(raw, split, mode)
    windows = Windows(preprocessing.encode(raw), history=4, horizon=2, split=split, part=Part.TRAIN, unknown_rate=0.0)
    batch = windows[range(len(windows))]
    present = raw.schema.group("historical").present
    assert present == preprocessing.group_sizes()[1].present
    _, historical, _ = preprocessing.scaling().scale_inputs(batch.static, batch.historical, batch.future, batch.series)
    assert set(historical[..., present].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(historical[..., present], batch.historical[..., present])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": {"min_history": 6}, "model": {"history": 6}}, "min_history 6 must be below model.history 6"),
        ({"data": {"min_history": 0}}, "data.min_history"),
        (
            {
                "data": {"min_history": 3},
                "model": {"history": 12, "seasonal_difference": 4, "linear_path": "off", "normalize": "series"},
            },
            "seasonal_difference 4 needs a whole season",
        ),
    ],
    ids=["not shorter", "none", "shorter than a season"],
)
def test_a_shortest_history_that_makes_no_sense_is_refused(settings: dict[str, dict[str, int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.checked(settings, where="the test")


def test_a_file_with_a_column_of_the_derived_name_is_refused() -> None:
    with pytest.raises(SchemaError, match=PRESENT):
        Preparation(min_history=2).effective_schema(SCHEMA.with_observed(PRESENT))
