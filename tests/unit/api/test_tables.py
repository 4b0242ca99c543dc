"""Tables in memory become Parquet files with the same rows, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from qat_tft.api import tables
from qat_tft.api.tables import as_files, as_own_file, is_table, paths_of, require_columns, write_table
from qat_tft.errors import DataError, RunFolderError, SchemaError

TABLE = pa.table({"series": ["a", "b", "a"], "y": [1.0, None, 3.0]})


class Stream:
    """Speaks Arrow's stream interface and nothing else."""

    def __init__(self, rows: pa.Table | pa.RecordBatchReader) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class Batch:
    """Speaks Arrow's array interface and nothing else."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return TABLE.combine_chunks().to_batches()[0].__arrow_c_array__(requested_schema)


class Broken:
    """Fails as a library fails whose table cannot be an Arrow table."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        raise pa.ArrowInvalid(*self.words)


def written(table: object, path: Path) -> pa.Table:
    assert is_table(table)
    write_table(table, path / "table.parquet")
    return pq.read_table(path / "table.parquet")


@pytest.mark.parametrize("table", [TABLE, Stream(TABLE), Batch()], ids=["pyarrow", "stream", "array"])
def test_whatever_speaks_the_interface_is_written(table: object, tmp_path: Path) -> None:
    assert written(table, tmp_path).equals(TABLE)


def test_a_stream_that_can_be_read_once_is_read_once_and_its_small_batches_are_stored_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_GROUP_ROWS", 100)
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 1000, 10):
            taken.append(first)
            yield pa.record_batch({"x": np.arange(first, first + 10)})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), batches())
    assert written(Stream(reader), tmp_path)["x"].to_pylist() == [*range(1000)]
    assert taken == [*range(0, 1000, 10)]
    assert pq.read_metadata(tmp_path / "table.parquet").num_row_groups == 10


def test_of_a_stream_no_more_than_a_row_group_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_GROUP_BYTES", 2**20)
    before, most = pa.total_allocated_bytes(), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for _ in range(64):
            yield pa.record_batch({"x": pc.add(pa.array(np.zeros(2**16)), 1.0)})  # half a MiB of Arrow's each
            most = max(most, pa.total_allocated_bytes() - before)

    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.float64())]), batches())
    assert written(Stream(reader), tmp_path).num_rows == 64 * 2**16
    assert most < 8 * 2**20


@pytest.mark.parametrize(
    "type_",
    [
        pa.dictionary(pa.uint32(), pa.string_view()),
        pa.dictionary(pa.int8(), pa.large_string()),
        pa.string_view(),
        pa.run_end_encoded(pa.int32(), pa.string()),
    ],
    ids=["categories of polars", "categories", "text of polars", "runs"],
)
def test_columns_of_types_that_parquet_has_not_are_stored_by_their_values(type_: pa.DataType, tmp_path: Path) -> None:
    texts = ["a", "b", None, "b"]
    if pa.types.is_run_end_encoded(type_):
        column = pc.run_end_encode(pa.array(texts))
    elif pa.types.is_dictionary(type_):
        values = pa.array(["a", "b"], type_.value_type)
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1], type_.index_type), values)
    else:
        column = pa.array(texts, type_)
    assert written(pa.table({"x": column}), tmp_path)["x"].cast(pa.string()).to_pylist() == texts


def test_a_table_without_rows_is_a_file_without_rows(tmp_path: Path) -> None:
    assert written(pa.RecordBatchReader.from_batches(TABLE.schema, []), tmp_path).equals(TABLE.slice(0, 0))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param(
            Broken("Expected bytes, got a 'int' object", "Conversion failed for column wind with type object"),
            r"column 'wind' of the Broken holds values that have no common type \(Expected bytes", id="mixed",
        ),
        pytest.param(
            Broken("Unsupported numpy type 15", "Conversion failed for column z with type complex128"),
            "column 'z' of the Broken holds values of a type that Arrow has not", id="no Arrow type",
        ),
        pytest.param(
            Broken("Duplicate column names found: ['a', 'a']"),
            r"cannot be handed over as an Arrow table: Duplicate column names found: \['a', 'a'\]", id="two of a name",
        ),
        pytest.param(pa.chunked_array([[1.0]]), "the data are one column, a ChunkedArray", id="a column"),
        pytest.param(pa.array([1.0]), "the data are one column, a DoubleArray", id="an array"),
        pytest.param(
            pa.table({"a": [1], "b": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}),
            "column 'b' is month_day_nano_interval, which Parquet files do not hold", id="not storable",
        ),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_written_is_refused_by_name(table: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        written(table, tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_stream_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise OSError("the line went dead")

    with pytest.raises(DataError, match=r"cannot be read to their end: .*the line went dead"):
        written(pa.RecordBatchReader.from_batches(TABLE.schema, batches()), tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("data", [{"y": [1.0]}, None, 3, [TABLE], np.zeros(3)], ids=lambda data: type(data).__name__)
def test_what_is_neither_a_table_nor_paths_is_refused(data: object) -> None:
    with pytest.raises(DataError, match=f"the data are of type {type(data).__name__}"):
        paths_of(data)


def test_paths_and_urls_are_taken_as_they_are_and_an_empty_list_is_none() -> None:
    assert paths_of(Path("a/b")) == ("a/b",)
    assert paths_of(["s3://bucket/key", Path("a")]) == ("s3://bucket/key", "a")
    with pytest.raises(DataError, match="empty"):
        paths_of([])


def test_tables_are_files_until_the_block_ends_and_errors_call_them_by_argument() -> None:
    with as_files(data=TABLE, future="plans.parquet", other=None) as files:
        assert files["future"] == ("plans.parquet",)
        assert pq.read_table(files["data"][0]).equals(TABLE)
    assert not Path(files["data"][0]).exists()
    with pytest.raises(DataError) as caught, as_files(data=TABLE) as files:
        raise DataError("no rows", where=files["data"][0], next_step="Add --future-file, see `qat-tft predict --help`")
    assert str(caught.value) == "the table given as `data`: no rows. Add `future`, see `qat-tft predict --help`."


def test_a_file_beside_the_runs_can_be_taken_and_leaves_nothing_else(tmp_path: Path) -> None:
    runs = tmp_path / "deep" / "runs"
    with as_own_file(TABLE, runs) as file:
        assert file.parent.parent == runs
        file.rename(runs / "taken.parquet")
    assert [path.name for path in runs.iterdir()] == ["taken.parquet"]
    with pytest.raises(DataError, match="the table: odd"), as_own_file(TABLE, tmp_path / "new") as file:
        raise DataError("odd", where=str(file))
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_told_with_the_argument_that_names_another_one(
    tmp_path: Path, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    table = pa.table({"x": np.random.default_rng(0).normal(size=10_000)})
    with full_disk(1000), pytest.raises(RunFolderError, match=r"cannot write the table: .*another `runs_dir`"):
        as_own_file(table, tmp_path / "runs").__enter__()
    assert not (tmp_path / "runs").exists()


def test_a_column_that_stands_in_the_index_of_pandas_is_not_found_but_told_of(tmp_path: Path) -> None:
    path = str(tmp_path / "table.parquet")
    pq.write_table(TABLE, path)
    require_columns(path, ["series", "y"])
    with pytest.raises(SchemaError) as plain:
        require_columns(path, ["series", "time"])
    assert "index" not in str(plain.value)
    pq.write_table(TABLE.replace_schema_metadata({b"pandas": b"{}"}), path)
    with pytest.raises(SchemaError, match=r"no column 'time'.*call reset_index\(\) and name the column 'time'"):
        require_columns(path, ["series", "time"])
