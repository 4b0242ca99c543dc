"""Missing values: which policy a column has, and what stands in for them, against a loop over the rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_tft.config.run import RunConfig
from qat_tft.data.filling import last_present, with_fills
from qat_tft.data.missing import MissingPolicies
from qat_tft.data.panel import Panel
from qat_tft.data.preparation import Preparation
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Part, Split
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.windows import Windows
from qat_tft.errors import ConfigError, DataError, SchemaError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]

SCHEMA = Schema(
    time="t",
    target="y",
    id=("s",),
    static=Columns(real=("size",)),
    observed=Columns(real=("wind", "rain")),
    known=Columns(real=("price",)),
)
HISTORY = SCHEMA.group("historical").real  # y, wind, rain, price
MEANS = {"y": (0.5, 1.5, 2.5, 3.5), "wind": (10.0,), "rain": (20.0, 21.0, 22.0, 23.0), "price": (30.0,)}


@st.composite
def holed_panels(draw: st.DrawFn) -> Panel:
    """Three series of 1 to 12 rows in which any value may be missing."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=3, max_size=3))
    starts = np.cumsum([0, *lengths])
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    values = random.normal(size=(starts[-1], 4)).astype(np.float32)
    values[random.random(values.shape) < draw(st.sampled_from([0.2, 0.6, 1.0]))] = np.nan
    policies = draw(st.lists(st.sampled_from(["forward", "mean", "zero"]), min_size=4, max_size=4))
    return Panel(
        schema=SCHEMA,
        values=torch.from_numpy(values),
        static=torch.zeros(3, 1),
        time=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        series_start=torch.from_numpy(starts.astype(np.int64)),
        series_ids=[("a",), ("b",), ("c",)],
        series_code=torch.tensor([2, 0, 3]),
        time_kind=TimeKind.STEP,
        encoded=True,
        preparation=Preparation(
            missing=tuple(f"{column}={policy}" for column, policy in zip(HISTORY, policies, strict=True))
        ),
    )


def filled_one_by_one(panel: Panel) -> np.ndarray:
    values = panel.values.numpy().copy()
    for series, code in enumerate(panel.series_code.tolist()):
        for place, column in enumerate(HISTORY):
            policy = panel.preparation.policies.of(column, SCHEMA)
            mean = MEANS[column][code] if len(MEANS[column]) > 1 else MEANS[column][0]
            before = None
            for row in range(int(panel.series_start[series]), int(panel.series_start[series + 1])):
                if not np.isnan(values[row, place]):
                    before = values[row, place]
                elif policy == "forward" and before is not None:
                    values[row, place] = before
                else:
                    values[row, place] = 0.0 if policy == "zero" else mean
    return values


@settings(max_examples=120, deadline=None)
@given(panel=holed_panels(), seed=st.integers(0, 99))
def test_gathered_rows_are_filled_as_a_loop_over_the_series_fills_them(panel: Panel, seed: int) -> None:
    rows = torch.randint(panel.rows, (30,), generator=torch.Generator().manual_seed(seed))
    found = with_fills(panel, MEANS).gather(rows)
    assert torch.equal(found, torch.from_numpy(filled_one_by_one(panel))[rows])


@settings(max_examples=60, deadline=None)
@given(panel=holed_panels(), row=st.integers(0, 35))
def test_what_comes_later_changes_nothing_before_it(panel: Panel, row: int) -> None:
    before = with_fills(panel, MEANS).gather(torch.arange(min(row, panel.rows)))
    panel.values[row:] = 99.0
    assert torch.equal(with_fills(panel, MEANS).gather(torch.arange(min(row, panel.rows))), before)


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_runs_of_missing_values_may_cross_the_blocks_of_a_pass(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("qat_tft.data.filling._BLOCK_VALUES", 4 * block)
    values = torch.arange(48.0).view(12, 4)
    values[[1, 2, 3, 4, 7, 8, 9], 1] = torch.nan
    panel = Panel(
        schema=SCHEMA,
        values=values,
        static=torch.zeros(3, 1),
        time=torch.arange(12),
        series_start=torch.tensor([0, 4, 8, 12]),
        series_ids=[("a",), ("b",), ("c",)],
        series_code=torch.zeros(3, dtype=torch.int64),
        preparation=Preparation(missing=("forward",)),
    )
    found = with_fills(panel, MEANS).gather(torch.arange(12))[:, 1]
    assert found.tolist() == [1, 1, 1, 1, 10, 21, 25, 25, 10, 10, 41, 45]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=4))
def test_the_last_present_row_never_lies_in_another_series(series: list[list[bool]]) -> None:
    starts = np.cumsum([0, *map(len, series)])
    expected = []
    for start, missing in zip(starts, series, strict=False):
        for place in range(len(missing)):
            there = [int(start) + back for back in range(place + 1) if not missing[back]]
            expected.append(there[-1] if there else -1)
    assert last_present(np.concatenate([np.array(one) for one in series]), starts).tolist() == expected


# Policies and the columns that they derive.


def test_a_policy_without_a_column_is_that_of_every_other_column() -> None:
    policies = MissingPolicies.parse(("forward", "wind=mean", "a=b=zero"))
    assert [policies.of(column, SCHEMA) for column in ("y", "wind", "price", "a=b")] == [
        "forward",
        "mean",
        "forward",
        "zero",
    ]


def test_as_soon_as_a_column_has_a_policy_a_missing_target_is_filled_forward() -> None:
    assert MissingPolicies.parse(()).of("y", SCHEMA) == "error"
    policies = MissingPolicies.parse(("wind=zero",))
    assert (policies.of("y", SCHEMA), policies.of("rain", SCHEMA)) == ("forward", "error")
    assert MissingPolicies.parse(("wind=zero", "y=error")).of("y", SCHEMA) == "error"


def test_zero_appends_an_indicator_in_the_role_of_its_column() -> None:
    preparation = Preparation(missing=("wind=zero", "price=zero", "y=zero", "size=zero"))
    effective = preparation.effective_schema(SCHEMA)
    assert effective.static.real == ("size", "size.missing")
    assert effective.observed.real == ("wind", "rain", "y.missing", "wind.missing")
    assert effective.known.real == ("price", "price.missing")
    assert preparation.source_schema(effective) == SCHEMA


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("wind=previous",), "'previous' is not a policy.*error, forward, mean, zero"),
        (("foward",), "'foward' is not a policy"),
        (("wind=mean", "wind=zero"), "'wind' twice"),
        (("mean", "zero"), "a default twice"),
        (("wind=",), "'' is not a policy"),
    ],
    ids=str,
)
def test_policies_that_make_no_sense_are_refused_in_the_configuration(entries: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"data.missing.*{message}"):
        RunConfig.checked({"data": {"missing": entries}}, where="the test")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("winds=mean", "'winds', which is not a real column.*wind"),
        ("kind=mean", "'kind', which is a category column.*category of its own"),
        ("rain=zero", "'rain.missing' has the name of the indicator"),
    ],
)
def test_policies_that_do_not_fit_the_columns_are_refused(entry: str, message: str) -> None:
    schema = SCHEMA.model_copy(update={"observed": Columns(real=("wind", "rain", "rain.missing"), category=("kind",))})
    with pytest.raises(SchemaError, match=message):
        Preparation(missing=(entry,)).effective_schema(schema)


# From a file to windows.


def holed_file(write: Write, rows: int = 40) -> Path:
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "s": ["a"] * rows + ["b"] * rows,
        "t": list(range(rows)) * 2,
        "size": [1.0] * rows + [None] * rows,
    }
    for name in HISTORY:
        values = random.normal(5, 2, 2 * rows)
        columns[name] = [None if random.random() < 0.3 else value for value in values.tolist()]
    return write(columns)


def holed_windows(write: Write, *missing: str, mode: str = "series") -> tuple[Panel, Preprocessing, Panel]:
    raw = read_panel(holed_file(write), SCHEMA, Preparation(missing=missing))
    preprocessing = Preprocessing.fit(raw, Split(25, 32), mode)
    return raw, preprocessing, preprocessing.encode(raw)


def test_without_a_policy_a_missing_value_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match="null or NaN"):
        read_panel(holed_file(write), SCHEMA)
    with pytest.raises(DataError, match="column 'rain' is null or NaN"):
        read_panel(holed_file(write), SCHEMA, Preparation(missing=("forward", "rain=error")))


@pytest.mark.parametrize("mode", ["series", "global"])
def test_statistics_are_those_of_the_training_values_that_are_there(write: Write, mode: str) -> None:
    raw, preprocessing, _ = holed_windows(write, "forward", mode=mode)
    trains, series = raw.time < 25, raw.series_at(torch.arange(raw.rows))
    for place, column in enumerate(HISTORY):
        parts = [trains] if mode == "global" else [trains, *(trains & (series == s) for s in (0, 1))]
        for entry, part in enumerate(parts):
            values = raw.values[part, place].double()
            values = values[~values.isnan()]
            assert preprocessing.statistics[column].center[entry] == pytest.approx(values.mean().item())
            assert preprocessing.statistics[column].scale[entry] == pytest.approx(values.std(correction=0).item())


def test_a_series_without_any_training_value_is_scaled_and_filled_as_one_not_seen(write: Write) -> None:
    rows = 20
    columns = {"s": ["a"] * rows + ["b"] * rows, "t": list(range(rows)) * 2}
    columns |= {"y": [float(row % 7) for row in range(rows)] + [None] * rows, "wind": [float(row) for row in range(40)]}
    schema = Schema(time="t", target="y", id=("s",), observed=Columns(real=("wind",)))
    raw = read_panel(write(columns), schema, Preparation(missing=("mean",)))
    preprocessing = Preprocessing.fit(raw, Split(15, 18), "series")
    found = preprocessing.statistics["y"]
    assert (found.center[2], found.scale[2]) == (found.center[0], found.scale[0])
    filled = preprocessing.encode(raw).gather(torch.arange(rows, 2 * rows))[:, 0]
    assert torch.equal(filled, torch.full((rows,), found.center[0]))


def test_a_column_without_any_training_value_is_refused_by_name(write: Write) -> None:
    rows = 20
    columns = {"t": list(range(rows)), "y": [float(row % 7) for row in range(rows)], "wind": [None] * 15 + [1.0] * 5}
    raw = read_panel(
        write(columns),
        Schema(time="t", target="y", observed=Columns(real=("wind",))),
        Preparation(missing=("wind=forward",)),
    )
    with pytest.raises(DataError, match="'wind' is missing in every training row"):
        Preprocessing.fit(raw, Split(15, 18))


def test_a_static_value_that_is_missing_becomes_the_mean_of_the_series_or_zero_with_an_indicator(write: Write) -> None:
    _, preprocessing, encoded = holed_windows(write, "forward")
    assert encoded.static[:, 0].tolist() == [1.0, preprocessing.statistics["size"].center[0]]
    _, _, encoded = holed_windows(write, "forward", "size=zero")
    assert encoded.static.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_windows_have_filled_inputs_and_targets_that_are_nan_where_they_are_missing(write: Write) -> None:
    raw, _, encoded = holed_windows(write, "forward", "wind=zero")
    windows = Windows(encoded, history=4, horizon=3, split=Split(25, 32), part=Part.TRAIN, unknown_rate=0.0)
    batch = windows[range(len(windows))]
    rows = windows.target_rows(range(len(windows)))

    assert torch.equal(batch.target.nan_to_num(-99.0), raw.target[rows].nan_to_num(-99.0))
    for values in (batch.static, batch.historical, batch.future):
        assert not values.isnan().any()
    history = encoded.schema.group("historical").real
    before = rows[:, :1] + torch.arange(-4, 0)
    marked = batch.historical[..., history.index("wind.missing")]
    assert torch.equal(marked, raw.values[before, history.index("wind")].isnan().float())
    assert (batch.historical[..., history.index("wind")][marked == 1] == 0).all()


@settings(max_examples=60, deadline=None)
@given(panel=holed_panels(), history=st.integers(1, 4), horizon=st.integers(1, 3), stride=st.integers(1, 3))
def test_windows_without_any_target_are_left_out_and_no_other(
    panel: Panel, history: int, horizon: int, stride: int
) -> None:
    expected = []
    for begin, end in zip(panel.series_start[:-1].tolist(), panel.series_start[1:].tolist(), strict=True):
        for first in range(begin, end - history - horizon + 1, stride):
            targets = panel.target[first + history : first + history + horizon]
            if not targets.isnan().all():
                expected.append(first + history)
    filled = with_fills(panel, MEANS)
    if not expected:
        with pytest.raises(DataError, match="0 windows"):
            Windows(filled, history=history, horizon=horizon, stride=stride)
        return
    windows = Windows(filled, history=history, horizon=horizon, stride=stride)
    assert windows.target_rows(range(len(windows)))[:, 0].tolist() == expected
    assert torch.equal(windows.series_of(range(len(windows))), panel.series_at(torch.tensor(expected)))
