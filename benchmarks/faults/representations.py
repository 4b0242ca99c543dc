"""The same rows written in many ways: a model forecasts the same from each of them, to the last bit.

Three tables, each with a model of its own: hours on the clock of a zone, business days without one, and steps. What
is written differs in types, units, zones, order, files, folders, row groups, encodings and compression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from faults.tally import Tally
from qat_tft.config.run import RunConfig
from qat_tft.errors import QatTftError
from qat_tft.export.build.run_export import export_run
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.session import ForecastSession
from qat_tft.schema import Columns, Schema
from qat_tft.training import job

HISTORY, HORIZON, SERIES = 10, 4, 3
OBSERVED = Columns(real=("x",), category=("flag",))

Change = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Case:
    """A table, the roles of its columns, and what goes with the time column."""

    name: str
    table: pa.Table
    schema: Schema
    calendar: tuple[str, ...] = ()
    times: tuple[pa.DataType, ...] = ()


@dataclass(frozen=True)
class Writing:
    """A way to write a table.

    Attributes:
        change: of the table before it is written.
        folders: columns that become names of folders.
        files: number of files.
        shuffled: whether rows stand in any order.
        options: of the Parquet writer.
        suffix: what the files' names end with.
        empty: whether a file without rows lies beside the others.
    """

    change: Change = lambda table: table
    folders: tuple[str, ...] = ()
    files: int = 1
    shuffled: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ".parquet"
    empty: bool = False


def measure(work: Path, seed: int, share: float) -> Tally:
    """Train a model on each table, write the table in every way, and compare the forecasts."""
    tally = Tally("different")
    for case in cases():
        home = work / case.name
        model = _model(case, home)
        expected = _forecast(model, home / "plain.parquet")
        ways = list(writings(case))
        for place, (name, writing) in enumerate(ways[: max(1, round(share * len(ways)))]):
            random = np.random.default_rng([seed, place])
            path = write(case.table, writing, home / f"writing {place}", random)
            tally.add(f"{case.name}, {name}", _difference(model, path, expected))
    return tally


def cases() -> tuple[Case, ...]:
    """The tables."""
    return _hours(), _business_days(), _steps()


def _difference(model: Path, path: Path, expected: dict[str, list[Any]]) -> str:
    try:
        found = _forecast(model, path)
    except QatTftError as refusal:
        return f"refused: {refusal}"
    unlike = [column for column in expected if found[column] != expected[column]]
    return f"other {', '.join(unlike)}" if unlike else ""


def _forecast(model: Path, path: Path) -> dict[str, list[Any]]:
    """Ids and times as text and nanoseconds, since they leave in the type they came in; quantiles as they are."""
    table = forecast_parquet(ForecastSession(model, threads=1), path).table
    return {name: _plain(name, table[name].combine_chunks()) for name in table.column_names}


def _plain(name: str, values: pa.Array) -> list[Any]:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if name in ("t", "forecast_origin") and pa.types.is_string(values.type):
        values = values.cast(pa.timestamp("ns"))
    if pa.types.is_temporal(values.type):
        return values.cast(pa.timestamp("ns", getattr(values.type, "tz", None))).cast(pa.int64()).to_pylist()
    if pa.types.is_decimal(values.type) or pa.types.is_boolean(values.type):
        return [str(int(value)) for value in values.to_pylist()]
    if pa.types.is_integer(values.type):
        return [str(value) for value in values.to_pylist()]
    return [str(int(one)) if isinstance(one, float) and one.is_integer() else one for one in values.to_pylist()]


def _model(case: Case, home: Path) -> Path:
    home.mkdir()
    pq.write_table(case.table, home / "plain.parquet")
    config = RunConfig.model_validate(
        {
            "data": {"parquet_files": [str(home / "plain.parquet")], "calendar": list(case.calendar)},
            "model": {"history": HISTORY, "horizon": HORIZON, "hidden": 8},
            "training": {"epochs": 1, "batches_per_epoch": 8, "batch_size": 32},
        }
    )
    run = job.train(config, case.schema, runs_dir=home / "runs", name="plain").folder
    export_run(run, int8=False)
    return run.onnx_file("fp32")


def _hours() -> Case:
    rows = 240
    zoned = pa.timestamp("us", tz="Europe/Berlin")
    hours = pa.array(np.tile(np.arange(rows) * 3_600_000_000, SERIES) + 1_711_600_000_000_000 // 1).cast(zoned)
    table = _table(rows, hours, {"store": np.repeat([7, 12, 10_000_000], rows)})
    schema = Schema(time="t", target="y", id=("store",), static=Columns(category=("store",)), observed=OBSERVED)
    others = tuple(pa.timestamp(unit, tz=zone) for unit in ("ms", "ns") for zone in ("UTC", "Asia/Tokyo"))
    return Case("hours", table, schema, ("hour", "day_of_week:category"), (*others, pa.timestamp("ns", zoned.tz)))


def _business_days() -> Case:
    rows = 240
    days = np.busday_offset("2023-01-02", np.arange(rows), roll="forward").astype("datetime64[D]").astype(np.int32)
    days = pa.array(np.tile(days, SERIES)).cast(pa.date32())
    ids = np.repeat(["007", "7", "a b"], rows)
    schema = Schema(time="t", target="y", id=("store",), observed=OBSERVED)
    naive = (pa.timestamp(unit) for unit in ("ms", "us", "ns"))
    times = (pa.date64(), *naive, pa.timestamp("us", tz="UTC"), pa.string())
    return Case("business days", _table(rows, days, {"store": ids}), schema, ("day_of_week",), times)


def _steps() -> Case:
    rows = 240
    steps = pa.array(np.tile(np.arange(rows) * 5, SERIES))
    ids = np.repeat([2**53, 2**53 + 1, 2**62], rows)
    schema = Schema(time="t", target="y", id=("store",), observed=OBSERVED)
    times = (pa.int16(), pa.uint64(), pa.decimal128(38, 0))
    return Case("steps", _table(rows, steps, {"store": ids}), schema, (), times)


def _table(rows: int, times: pa.Array, columns: dict[str, Any]) -> pa.Table:
    """Values that every type of number holds exactly, so that only their representation can differ."""
    place = np.arange(rows * SERIES)
    wave = np.round(64 * np.sin(place / 9) + place % 7) / 4
    return pa.table({"t": times, **columns, "y": wave, "x": np.float64(place % 11), "flag": place % 3 == 0})


def writings(case: Case) -> Iterator[tuple[str, Writing]]:
    """Every way to write a table, with its name."""
    yield "the plain way", Writing()
    for type_ in case.times:
        yield f"time as {type_}", Writing(_as_type("t", type_))
    if case.table["t"].type != pa.int64() and not getattr(case.table["t"].type, "tz", None):
        old = {"use_deprecated_int96_timestamps": True}
        yield "time of 96 bits", Writing(_as_type("t", pa.timestamp("ns")), options=old)
    flags = (pa.int8(), pa.float64(), pa.decimal128(3, 1), pa.dictionary(pa.int8(), pa.int64()))
    for type_ in flags:
        yield f"flag as {type_}", Writing(_as_type("flag", type_))
    ids = [pa.decimal128(38, 0), pa.string(), pa.uint64()] if pa.types.is_integer(case.table["store"].type) else []
    for type_ in (*ids, pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())):
        yield f"id as {type_}", Writing(_as_type("store", type_))
    for type_ in (pa.float32(), pa.decimal128(12, 2), pa.decimal256(40, 5)):
        yield f"numbers as {type_}", Writing(lambda table, to=type_: _as_type("y", to)(_as_type("x", to)(table)))
    yield "whole numbers", Writing(_as_type("x", pa.int8()))
    for compression in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        yield compression, Writing(options={"compression": compression})
    yield "without dictionaries", Writing(options={"use_dictionary": False})
    yield "pages of version 2", Writing(options={"data_page_version": "2.0", "version": "2.6"})
    yield "split streams", Writing(options={"use_byte_stream_split": ["y", "x"], "use_dictionary": ["store"]})
    yield "small row groups", Writing(options={"row_group_size": 7})
    yield "shuffled", Writing(shuffled=True)
    yield "shuffled files of small row groups", Writing(shuffled=True, files=4, options={"row_group_size": 50})
    yield "one file a series, one without rows", Writing(files=SERIES, empty=True)
    yield "other suffix", Writing(files=2, suffix=".PARQ")
    yield "folders of ids", Writing(folders=("store",))
    yield "folders of ids and flags", Writing(folders=("store", "flag"), shuffled=True)
    yield "columns the other way round, and more", Writing(_reversed_with_more)


def _as_type(column: str, type_: pa.DataType) -> Change:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(column), column, _cast(table[column].combine_chunks(), type_))

    return change


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return _cast(values, type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(value) for value in values.to_pylist()], type_)
    return values.cast(pa.int8()).cast(type_) if pa.types.is_boolean(values.type) else values.cast(type_)


def _reversed_with_more(table: pa.Table) -> pa.Table:
    nested = pa.array([{"a": None}] * table.num_rows)
    table = table.append_column("unused", pa.nulls(table.num_rows)).append_column("nested", nested)
    return table.select(table.column_names[::-1])


def write(table: pa.Table, writing: Writing, path: Path, random: np.random.Generator) -> Path:
    """Write the table and give the file or folder that holds it."""
    table = writing.change(table)
    if writing.shuffled:
        table = table.take(random.permutation(table.num_rows))
    if writing.folders:
        for place, part in enumerate(_by_folder(table, writing.folders, path)):
            _write_file(part[1], part[0] / f"part-{place}{writing.suffix}", writing)
        return path
    if writing.files == 1 and not writing.empty:
        return _write_file(table, path.with_suffix(writing.suffix), writing)
    size = -(-table.num_rows // writing.files)
    for place in range(writing.files):  # in folders with the names of files, as Spark and Dask write them
        _write_file(table.slice(place * size, size), path / f"{place}.parquet" / f"part{writing.suffix}", writing)
    if writing.empty:
        nothing = pa.table({name: pa.nulls(0) for name in table.column_names})
        _write_file(nothing, path / f"nothing{writing.suffix}", writing)
    return path


def _by_folder(table: pa.Table, columns: tuple[str, ...], path: Path) -> Iterator[tuple[Path, pa.Table]]:
    if not columns:
        yield path, table
        return
    column = columns[0]
    for value in pc.unique(table[column]).to_pylist():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        part = table.filter(pc.equal(table[column], value)).drop_columns(column)
        yield from _by_folder(part, columns[1:], path / f"{column}={text}")


def _write_file(table: pa.Table, path: Path, writing: Writing) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **writing.options)
    return path
