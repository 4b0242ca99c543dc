import io
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from qat_tft.data.preparation import Preparation
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.windows import batch_from
from qat_tft.errors import DataError, SchemaError
from qat_tft.evaluation.forecast_table import ORIGIN_COLUMN, STEP_COLUMN
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.predict_report import Predictions, write_predictions
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import ModelMetadata
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Schema

ROUNDING = 1e-4  # torch and onnxruntime, two float32 evaluations of forecasts of about 50
START, ROWS = datetime(1970, 1, 1), 120


@pytest.fixture(scope="module")
def table(exported_run: RunFolder) -> pa.Table:
    return pq.read_table(exported_run.path / "data.parquet")


@pytest.fixture(scope="module")
def file(exported_run: RunFolder) -> ForecastSession:
    return ForecastSession(exported_run.onnx_file("fp32"))


@pytest.fixture
def forecast(file: ForecastSession, tmp_path: Path) -> Callable[..., dict[str, list]]:
    """Write a table and forecast it; the forecasts as columns, the notes under ``notes``."""

    def run(table: pa.Table, *, future: pa.Table | None = None, **options: str) -> dict[str, list]:
        pq.write_table(table, tmp_path / "data.parquet")
        if future is not None:
            pq.write_table(future, tmp_path / "future.parquet")
        coming = None if future is None else tmp_path / "future.parquet"
        predictions = forecast_parquet(file, tmp_path / "data.parquet", future=coming, **options)
        return predictions.table.to_pydict() | {"notes": list(predictions.notes)}

    return run


def without_future(table: pa.Table, rows: int) -> pa.Table:
    """The last rows of each plant lose their target and observed column."""
    newest = pc.max(table["time"]).as_py()
    unknown = pc.greater(table["time"], pa.scalar(newest - timedelta(hours=rows), table["time"].type))
    for column in ("load", "wind"):
        values = pc.if_else(unknown, pa.scalar(None, pa.float64()), table[column])
        table = table.set_column(table.column_names.index(column), column, values)
    return table


@torch.no_grad()
def test_forecasts_are_those_of_the_trained_model_from_the_last_possible_origin(
    exported_run: RunFolder, table: pa.Table, forecast
) -> None:
    panel = read_panel(exported_run.path / "data.parquet", exported_run.load_schema())
    preprocessing = exported_run.load_preprocessing()
    last = batch_from(preprocessing.encode(panel), torch.tensor([ROWS - 9, 2 * ROWS - 9]), 6, 3)
    scaling, model = preprocessing.scaling(), exported_run.load_fp32_model()
    scaled = scaling.scale_inputs(last.static, last.historical, last.future, last.series)
    expected = scaling.unscale_target(model(*scaled).quantiles, last.series).numpy()

    found = forecast(table)
    actual = np.stack([found[name] for name in ("q0.1", "q0.5", "q0.9")], -1).reshape(2, 3, 3)
    assert np.allclose(actual, expected, atol=ROUNDING)
    assert found["plant"] == ["north"] * 3 + ["south"] * 3
    assert found["forecast_step"] == [1, 2, 3] * 2
    assert found["forecast_origin"] == [START + timedelta(hours=116)] * 6
    assert found["time"] == [START + timedelta(hours=hour) for hour in (117, 118, 119)] * 2


def test_rows_without_a_target_are_the_ones_forecast(table: pa.Table, forecast) -> None:
    full, future = forecast(table), forecast(without_future(table, rows=3))
    (said,) = full.pop("notes")
    assert said.startswith(
        "2 series have no rows after their last target, so that their last 3 rows were forecast: plant=north"
    )
    assert said.endswith("with the time, id and known columns, here or in a --future-file.")
    assert future == {**full, "notes": []}  # the values that were taken away lie after the origin


def test_more_future_rows_than_the_horizon_move_the_origin_to_the_last_target(table: pa.Table, forecast) -> None:
    found = forecast(without_future(table, rows=10))
    assert set(found["forecast_origin"]) == {START + timedelta(hours=109)}


def test_the_order_of_rows_and_the_other_series_do_not_matter(table: pa.Table, forecast) -> None:
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    assert forecast(shuffled) == forecast(table)
    alone = forecast(table.filter(pc.equal(table["plant"], "south")))
    assert alone["q0.5"] == pytest.approx(forecast(table)["q0.5"][3:], rel=1e-6)  # kernels differ by batch


def test_an_origin_can_be_named(table: pa.Table, forecast) -> None:
    found = forecast(table, origin="1970-01-03T02:00")
    assert set(found["forecast_origin"]) == {datetime(1970, 1, 3, 2)}
    rows = pc.less_equal(table["time"], pa.scalar(datetime(1970, 1, 3, 5), table["time"].type))
    assert found["q0.5"] == forecast(table.filter(rows))["q0.5"]


def test_an_origin_between_two_rows_is_the_earlier_one(table: pa.Table, forecast) -> None:
    expected = forecast(table, origin="1970-01-03T02:00")
    assert forecast(table, origin="1970-01-03T02:59:59.999") == expected


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        pytest.param("1970-01-05T23:00", r"0 forecasts: .* around 1970-01-05T23:00.*origins from", id="nothing after"),
        pytest.param("1970-01-01T02:00", "0 forecasts: every series needs 6 rows", id="too little history"),
        pytest.param(
            "1969-12-31", r"origin 1969-12-31 is outside.*1970-01-01T00:00:00 to 1970-01-05T23:00:00", id="before"
        ),
        pytest.param("1970-01-06T00:00", "origin 1970-01-06T00:00 is outside the data", id="after"),
        pytest.param("tomorrow", r"origin 'tomorrow' is not a time.*ISO 8601.*Targets run from", id="not a time"),
    ],
)
def test_an_origin_that_cannot_be_is_refused(table: pa.Table, forecast, origin: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        forecast(table, origin=origin)


def before(table: pa.Table, plant: str, hour: int) -> pa.Array:
    """Whether a row is of another plant, or lies before an hour."""
    early = pc.less(table["time"], pa.scalar(START + timedelta(hours=hour), table["time"].type))
    return pc.or_(pc.not_equal(table["plant"], plant), early)


def test_a_series_without_a_row_at_the_origin_is_skipped_and_counted(table: pa.Table, forecast) -> None:
    found = forecast(table.filter(before(table, "south", 40)), origin="1970-01-03T02:00")
    assert set(found["plant"]) == {"north"}
    assert found["notes"] == ["1 series skipped, with no target at 1970-01-03T02:00: plant=south."]


def test_a_series_that_is_too_short_is_skipped_by_name(table: pa.Table, forecast) -> None:
    found = forecast(table.filter(before(table, "south", 8)))
    assert set(found["plant"]) == {"north"}
    assert found["notes"][0] == "1 series skipped, with fewer than 6 rows up to the origin: plant=south."


def test_no_series_long_enough_says_what_is_needed_and_there(table: pa.Table, forecast) -> None:
    with pytest.raises(DataError, match="every series needs 6 rows up to the origin and 3 after it, the longest has 8"):
        forecast(table.slice(0, 8))


def test_too_few_rows_to_forecast_move_the_origin_back_and_the_series_is_named(table: pa.Table, forecast) -> None:
    found = forecast(without_future(table, rows=2))
    assert set(found["forecast_origin"]) == {START + timedelta(hours=116)}
    assert found["notes"] == [
        "2 series forecast from before their last target, which fewer than 3 rows follow: plant=north, plant=south."
    ]


KNOWN = ["plant", "time", "hour", "shift"]


def halves(table: pa.Table, hour: int) -> tuple[pa.Table, pa.Table]:
    """The rows before an hour, and the known columns of those from it on."""
    early = pc.less(table["time"], pa.scalar(START + timedelta(hours=hour), table["time"].type))
    return table.filter(early), table.filter(pc.invert(early)).select(KNOWN)


def test_future_rows_may_come_from_a_second_file(table: pa.Table, forecast) -> None:
    past, coming = halves(table, 117)
    assert forecast(past, future=coming) == forecast(without_future(table, rows=3))
    shuffled = coming.take(np.random.default_rng(0).permutation(coming.num_rows))
    assert forecast(past, future=shuffled)["q0.5"] == forecast(table)["q0.5"]


def test_series_that_the_second_file_lacks_rows_of_are_skipped_and_named(table: pa.Table, forecast) -> None:
    past, coming = halves(table, 117)
    found = forecast(past, future=coming.filter(before(coming, "south", 119)))
    assert set(found["plant"]) == {"north"}
    assert found["notes"] == [
        "1 series skipped, with fewer than 3 rows after the origin (the first has 2 after 1970-01-05T20:00:00): "
        "plant=south."
    ]


@pytest.mark.parametrize("column", KNOWN)
def test_a_second_file_without_a_known_column_is_refused(table: pa.Table, forecast, column: str) -> None:
    past, coming = halves(table, 117)
    with pytest.raises(SchemaError, match=rf"future\.parquet: there is no column '{column}'"):
        forecast(past, future=coming.drop_columns([column]))


def test_what_was_measured_is_never_lost_to_what_a_second_file_plans(table: pa.Table, forecast) -> None:
    measured, planned = without_future(table, rows=3), halves(table, 115)[1]
    found = forecast(measured, future=planned)
    assert found["q0.5"] == forecast(measured)["q0.5"]
    assert found["notes"] == ["4 planned rows gave way to what was measured at the same time."]


def test_a_second_file_replaces_what_was_planned_before(table: pa.Table, forecast) -> None:
    past, coming = halves(table, 117)
    place = coming.column_names.index("hour")
    other = coming.set_column(place, "hour", pc.add(coming["hour"], 1.0))
    found = forecast(without_future(table, rows=3), future=other)
    assert found == forecast(past, future=other)
    assert found["q0.5"] != forecast(past, future=coming)["q0.5"]


def test_of_a_second_file_only_what_is_known_ahead_is_read(table: pa.Table, forecast) -> None:
    past, coming = halves(table, 117)
    broken = coming.append_column("load", pa.array(["?"] * coming.num_rows))
    assert forecast(past, future=broken) == forecast(past, future=coming)


def test_an_unseen_category_is_counted_once_and_forecast_as_unknown(table: pa.Table, forecast) -> None:
    plants = pc.replace_substring(table["plant"], "south", "east")
    found = forecast(table.set_column(0, "plant", plants))
    assert found["plant"] == ["east"] * 3 + ["north"] * 3
    category, series, _ = found["notes"]
    assert category == "column 'plant' holds 1 value that no training row has, read as unknown in 1 series: east."
    assert series == "1 series have no training row and are scaled by the statistics over all series: plant=east."
    assert found["q0.5"][3:] == forecast(table)["q0.5"][:3]


def test_a_missing_column_and_a_gap_in_the_target_are_refused(table: pa.Table, forecast) -> None:
    with pytest.raises(SchemaError, match="no column 'hour'"):
        forecast(table.drop_columns(["hour"]))
    with pytest.raises(DataError, match="column 'load' is null or NaN at 1970-01-05T19:00:00 in plant=north, where"):
        forecast(with_value(table, "load", 115, None))


def with_value(table: pa.Table, column: str, hour: int, value: object) -> pa.Table:
    """The table with another value at an hour of both plants."""
    values = table[column].to_pylist()
    for row in np.flatnonzero(pc.equal(table["time"], table["time"][hour])):
        values[row] = value
    return table.set_column(table.column_names.index(column), column, pa.array(values))


@pytest.mark.parametrize(
    ("column", "value"),
    [("load", None), ("wind", None), ("wind", float("inf")), ("wind", 1e300), ("hour", None), ("shift", "never seen")],
)
def test_what_no_window_reads_is_neither_refused_nor_noted(table: pa.Table, forecast, column: str, value) -> None:
    at_noon = {"origin": "1970-01-04T12:00:00"}  # hour 84 of 120; windows read the hours 79 to 87
    expected = forecast(table, **at_noon)
    for hour in (3, 78, 100, 119):
        assert forecast(with_value(table, column, hour, value), **at_noon) == expected


def test_few_rows_of_nearly_one_value_are_no_alarm(table: pa.Table, forecast) -> None:
    large = table.set_column(table.column_names.index("wind"), "wind", pc.add(pa.array(np.arange(240.0)), 2.0**26))
    assert not any("float32" in note for note in forecast(large)["notes"])


def test_a_null_in_a_column_of_another_role_does_not_matter(table: pa.Table, forecast) -> None:
    assert forecast(table.append_column("price", pa.nulls(table.num_rows))) == forecast(table)


@pytest.mark.parametrize(
    ("id_type", "ids", "times", "steps"),
    [
        pytest.param(
            pa.int16(),
            [7],
            pa.array(np.arange(8) * 3600 * 10**6, pa.timestamp("us", tz="Europe/Berlin")),
            pa.array(np.array([8, 9, 10]) * 3600 * 10**6, pa.timestamp("us", tz="Europe/Berlin")),
            id="hours in a zone, integer ids",
        ),
        pytest.param(pa.bool_(), [True], pa.array(range(8)), pa.array([8, 9, 10]), id="steps, boolean ids"),
        pytest.param(
            pa.decimal128(38, 0),
            [10**20],
            pa.array(range(8), pa.int16()),
            pa.array([8, 9, 10], pa.int16()),
            id="narrow steps, decimal ids",
        ),
        pytest.param(
            pa.dictionary(pa.int8(), pa.string()),
            ["a"],
            pa.array([f"2024-05-31 1{hour}:00Z" for hour in range(8)]),
            pa.array(["2024-05-31 18:00Z", "2024-05-31 19:00Z", "2024-05-31 20:00Z"]),
            id="text, dictionary of ids",
        ),
        pytest.param(
            pa.string(),
            ["a"],
            pa.array(range(0, 56, 7), pa.date32()),
            pa.array([56, 63, 70], pa.date32()),
            id="weeks",
        ),
    ],
)
def test_without_known_columns_the_origin_is_the_last_row_and_types_are_kept(
    persistence_for, metadata: ModelMetadata, tmp_path: Path, id_type, ids, times, steps
) -> None:
    schema = Schema(time="when", target="load", id=("shop",))
    alone = replace(metadata, schema=schema, vocabularies={}, series=None)
    shops = pa.array(ids * 8, id_type)
    pq.write_table(pa.table({"shop": shops, "when": times, "load": np.arange(8.0)}), tmp_path / "data.parquet")
    found = forecast_parquet(ForecastSession(persistence_for(alone)), tmp_path / "data.parquet").table
    assert found["shop"].combine_chunks().equals(shops[:3])
    assert found["when"].combine_chunks().equals(steps)
    assert found["q0.5"].to_pylist() == [7.0] * 3


def test_times_finer_than_microseconds_leave_as_they_are_and_are_shown(
    persistence_for, metadata: ModelMetadata, tmp_path: Path
) -> None:
    alone = replace(metadata, schema=Schema(time="when", target="load"), vocabularies={}, series=None)
    times = pa.array(np.arange(8) * 3600 * 10**9 + 7, pa.timestamp("ns", tz="Asia/Tokyo"))
    pq.write_table(pa.table({"when": times, "load": np.arange(8.0)}), tmp_path / "data.parquet")
    found = forecast_parquet(ForecastSession(persistence_for(alone)), tmp_path / "data.parquet")
    assert found.table["when"].type == times.type
    assert found.table["when"].cast(pa.int64()).to_pylist() == [hour * 3600 * 10**9 + 7 for hour in (8, 9, 10)]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*found.tables())
    assert "1970-01-01 17:00:00+09:00" in console.export_text()


def test_with_calendar_features_alone_no_rows_to_forecast_are_needed(
    persistence_for, metadata: ModelMetadata, tmp_path: Path
) -> None:
    preparation = Preparation(calendar=("hour", "month:category"))
    schema = preparation.effective_schema(Schema(time="when", target="load", id=("shop",)))
    months = {"calendar.month": ("1", "2")}
    alone = replace(metadata, schema=schema, vocabularies=months, series=None, preparation=preparation)
    when = [START + timedelta(hours=hour) for hour in (*range(8), *range(20, 28))]
    rows = {"shop": ["a"] * 8 + ["b"] * 8, "when": pa.array(when), "load": np.arange(16.0)}
    pq.write_table(pa.table(rows), tmp_path / "data.parquet")
    file = ForecastSession(persistence_for(alone))
    found = forecast_parquet(file, tmp_path / "data.parquet").table.to_pydict()
    assert found["when"] == [START + timedelta(hours=hour) for hour in (8, 9, 10, 28, 29, 30)]
    assert found["q0.5"] == [7.0] * 3 + [15.0] * 3
    earlier = forecast_parquet(file, tmp_path / "data.parquet", origin="1970-01-02T02:30")
    assert earlier.table["q0.5"].to_pylist() == [14.0] * 3
    assert earlier.notes == ("1 series skipped, with no target at 1970-01-02T02:30: shop=a.",)


def test_forecasts_are_written_whole_or_not_at_all(table: pa.Table, file: ForecastSession, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "data.parquet")
    predictions = forecast_parquet(file, tmp_path / "data.parquet")
    written = write_predictions(predictions, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").equals(predictions.table)
    assert written.to_json()["rows"] == 6
    with pytest.raises(DataError, match=r"out\.parquet: the forecasts cannot be written"):
        write_predictions(predictions, tmp_path / "none" / "out.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.parquet", "out.parquet"]


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        pytest.param([datetime(2020, 1, 31), datetime(2020, 2, 29)], "2020-02-29", id="days"),
        pytest.param([datetime(2020, 1, 1, 23), datetime(2020, 1, 2)], "2020-01-02 00:00", id="hours"),
        pytest.param([5, 6], "6", id="steps"),
    ],
)
def test_the_first_forecasts_are_shown_in_one_line_each_on_a_terminal_of_80_columns(times: list, shown: str) -> None:
    columns = {"series_id": ["ETTh1"] * 2, ORIGIN_COLUMN: times, "date": times, STEP_COLUMN: [1, 2]}
    levels = {"q0.1": [-0.5, -15.8591], "q0.5": [0.5, 36.9551], "q0.9": [1.5, 22526.61]}
    predictions = Predictions(pa.table(columns | levels), 1, (), Path("forecasts.parquet"))
    console = Console(width=80, file=StringIO())
    for table in predictions.tables():
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert ["ETTh1", *f"{shown} {shown} 2 -15.859 36.955 22527".split()] in [line.split() for line in lines]


def test_values_far_outside_of_training_are_forecast_from_and_said_once(table, forecast):
    place = table.column_names.index("wind")
    far = pc.multiply(table["wind"], 1e6)
    found = forecast(table.set_column(place, "wind", far))
    sentences = [note for note in found["notes"] if "far outside" in note]
    assert len(sentences) == 1
    named = sentences[0].split(": ")[-1]
    assert named.startswith("wind ")
    assert named.endswith("%")
    assert "load" not in named
    assert np.isfinite(found["q0.5"]).all()
    assert not any("far outside" in note for note in forecast(table)["notes"])
