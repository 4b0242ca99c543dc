"""What a `Forecaster` does with exported files is what the commands do; a run without them is exported first."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copy2

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from qat_tft import Forecaster
from qat_tft.api import forecaster
from qat_tft.cli.app import main
from qat_tft.errors import ConfigError, DataError, SchemaError
from qat_tft.runs.folder import RunFolder


@pytest.fixture
def table(exported_run: RunFolder) -> pa.Table:
    return pq.read_table(exported_run.path / "data.parquet")


NOTHING_AHEAD = pytest.mark.filterwarnings("ignore:. series have no rows after their last target:UserWarning")


@NOTHING_AHEAD
def test_a_forecast_is_the_table_that_the_command_writes(
    exported_run: RunFolder, table: pa.Table, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    data = str(exported_run.path / "data.parquet")
    assert main(["predict", str(exported_run.onnx_file("fp32")), "--parquet-file", data, "--out", str(out)]) == 0
    loaded = Forecaster.load(exported_run.path)
    for given in (table, data, [Path(data)]):
        assert loaded.predict(given).equals(pq.read_table(out))


def test_rows_to_forecast_may_be_a_table_of_their_own(exported_run: RunFolder, table: pa.Table) -> None:
    loaded, newest = Forecaster.load(exported_run.path), pc.max(table["time"]).as_py()
    coming = pc.greater(table["time"], pa.scalar(newest - timedelta(hours=3), table["time"].type))
    past, future = table.filter(pc.invert(coming)), table.filter(coming)
    plans = future.select(["plant", "time", "height", "hour", "shift"])
    assert loaded.predict(past, plans).equals(loaded.predict(table, origin=newest - timedelta(hours=3)))
    with pytest.raises(SchemaError, match="the table given as `future`: there is no column 'shift'"):
        loaded.predict(past, plans.drop_columns(["shift"]))
    with pytest.raises(DataError, match=r"`origin` 1980-01-01 00:00:00 is outside the data"):
        loaded.predict(table, origin=datetime(1980, 1, 1))


@NOTHING_AHEAD
def test_what_the_command_prints_as_notes_are_warnings(exported_run: RunFolder, table: pa.Table) -> None:
    loaded = Forecaster.load(exported_run.path)
    short = table.filter(
        pc.or_(
            pc.equal(table["plant"], "north"),
            pc.less(table["time"], pa.scalar(datetime(1970, 1, 1, 2), pa.timestamp("ns"))),
        )
    )
    with pytest.warns(UserWarning, match="south") as caught:
        assert loaded.predict(short)["plant"].unique().to_pylist() == ["north"]
    assert {Path(one.filename).name for one in caught} == {Path(__file__).name}


@NOTHING_AHEAD
def test_a_run_without_files_is_exported_first(
    exported_run: RunFolder,
    damaged: Callable[[RunFolder], RunFolder],
    table: pa.Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, asked = damaged(exported_run), []
    run.onnx_file("fp32").unlink()

    def export(to: RunFolder, *, int8: bool, **_: object) -> None:
        asked.append(int8)
        copy2(exported_run.onnx_file("fp32"), to.path)

    monkeypatch.setattr(forecaster, "export_run", export)
    loaded = Forecaster.load(run.path)
    first = loaded.predict(table)
    assert asked == [True]  # the run has quantized weights
    assert loaded.predict(table, model="fp32").equals(first)
    assert asked == [True]
    loaded.export(int8=False)
    assert asked == [True, False]
    with pytest.raises(ConfigError, match=r"`model` is 'qat'. Allowed: 'fp32', 'int8'"):
        loaded.predict(table, model="qat")  # type: ignore[arg-type]


def test_a_check_is_what_check_json_holds(exported_run: RunFolder, damaged: Callable[[RunFolder], RunFolder]) -> None:
    run = damaged(exported_run)
    report = Forecaster.load(run.path).check(seconds=0.0)
    assert report.passed
    assert json.loads((run.path / "check.json").read_text()) == json.loads(json.dumps(report.to_json()))
