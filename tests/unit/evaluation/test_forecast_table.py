"""Forecasts as rows of a table, and a file of them that appears whole or not at all."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.data.panel import Panel
from qat_tft.data.time.kind import TimeKind
from qat_tft.data.time.written import WrittenTimes
from qat_tft.errors import DataError
from qat_tft.evaluation import forecast_table
from qat_tft.evaluation.forecast_table import ForecastFile, ForecastRows
from qat_tft.schema import Schema

LEVELS = (0.1, 0.5)


def panel() -> Panel:
    """Two series of six and four steps, three apart."""
    return Panel(
        schema=Schema(time="step", target="y", id=("shop", "open")),
        values=torch.zeros(10, 1),
        static=torch.zeros(2, 0),
        time=torch.cat([torch.arange(6), torch.arange(4)]) * 3,
        series_start=torch.tensor([0, 6, 10]),
        series_ids=[("1", "true"), ("2", "false")],
        series_code=torch.tensor([1, 2]),
        time_kind=TimeKind.STEP,
    )


def test_every_window_and_step_is_a_row_with_ids_in_their_own_type() -> None:
    quantiles = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    rows = ForecastRows(panel(), (pa.int16(), pa.bool_()), WrittenTimes(pa.int32()))
    table = rows.table(np.array([1, 0]), np.array([7, 3]), quantiles, LEVELS, {"y": pa.array([1.0, None, 3.0, 4.0])})
    assert table.to_pydict() == {
        "shop": [2, 2, 1, 1],
        "open": [False, False, True, True],
        "forecast_origin": [3, 3, 9, 9],
        "step": [6, 9, 12, 15],
        "forecast_step": [1, 2, 1, 2],
        "y": [1.0, None, 3.0, 4.0],
        "q0.1": [0.0, 2.0, 4.0, 6.0],
        "q0.5": [1.0, 3.0, 5.0, 7.0],
    }
    assert table.schema.field("shop").type == pa.int16()
    assert table.schema.field("step").type == table.schema.field("forecast_origin").type == pa.int32()


def test_a_file_holds_all_tables_and_keeps_few_of_them_in_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(forecast_table, "_GROUP_ROWS", 25)
    tables = [pa.table({"row": np.arange(10 * number, 10 * number + 10)}) for number in range(7)]
    with ForecastFile(tmp_path / "out.parquet") as file:
        for table in tables:
            file.add(table)
            assert sum(waiting.num_rows for waiting in file._waiting) < 25
        assert not (tmp_path / "out.parquet").exists()
    assert pq.read_table(tmp_path / "out.parquet").equals(pa.concat_tables(tables).combine_chunks())
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_after_an_error_the_file_before_it_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "out.parquet").write_text("before")

    def fail() -> None:
        with ForecastFile(tmp_path / "out.parquet") as file:
            file.add(pa.table({"row": [1]}))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (tmp_path / "out.parquet").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_a_place_that_cannot_be_written_to_is_found_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"out\.parquet: the forecasts cannot be written.*--out"):
        ForecastFile(tmp_path / "none" / "out.parquet").__enter__()


@pytest.mark.parametrize("size", [0, 2000], ids=["nothing fits", "some row groups fit"])
def test_a_full_disk_is_one_error_and_leaves_what_was_there(tmp_path: Path, monkeypatch, full_disk, size: int) -> None:
    monkeypatch.setattr(forecast_table, "_GROUP_ROWS", 1)
    (tmp_path / "out.parquet").write_text("before")
    noise = pa.table({"row": np.random.default_rng(0).normal(size=100)})

    def write() -> None:
        with ForecastFile(tmp_path / "out.parquet") as file:
            for _ in range(9):
                file.add(noise)

    with full_disk(size), pytest.raises(DataError, match=r"out\.parquet: the forecasts cannot be written"):
        write()
    assert (tmp_path / "out.parquet").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_an_error_is_told_although_the_end_of_the_file_finds_no_room(tmp_path: Path, monkeypatch, full_disk) -> None:
    """A writer that is closed after an error wants to write the end of the file."""
    monkeypatch.setattr(forecast_table, "_GROUP_ROWS", 1)

    def write() -> None:
        with ForecastFile(tmp_path / "out.parquet") as file:
            file.add(pa.table({"row": [1]}))
            raise KeyError("the cause")

    with full_disk(300), pytest.raises(KeyError, match="the cause"):
        write()
    assert list(tmp_path.iterdir()) == []
