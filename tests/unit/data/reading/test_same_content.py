"""The same rows in another representation are the same series, categories and times; other rows are not."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qat_tft.data.category_text import category_text
from qat_tft.data.panel import Panel
from qat_tft.data.reading.columns import float64
from qat_tft.data.reading.parquet import read_panel
from qat_tft.errors import DataError
from qat_tft.schema import Columns, Schema

Write = Callable[..., Path]

PANEL = Schema(time="t", target="y", id=("store",), observed=Columns(category=("flag",)))
DAY = 86_400


def flags(panel: Panel) -> list[str]:
    return [panel.dictionaries["flag"][int(code)] for code in panel.values[:, 1]]


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(pa.array([Decimal(2**53), Decimal(2**53 + 1)], pa.decimal128(38, 0)), id="above 2^53"),
        pytest.param(pa.array([Decimal(10**19), Decimal(10**19 + 1)], pa.decimal128(38, 0)), id="of 20 digits"),
        pytest.param(pa.array([Decimal("12.00"), Decimal("13.00")], pa.decimal256(60, 2)), id="wide"),
        pytest.param(pa.array([1e20, 3e20]), id="large floats"),
        pytest.param(pa.array([2**63, 2**64 - 1], pa.uint64()), id="of 64 bits without a sign"),
        pytest.param(pa.array(["007", "7"]), id="text with zeros in front"),
    ],
)
def test_ids_keep_every_digit(write: Write, ids: pa.Array) -> None:
    panel = read_panel(write({"t": [1, 1], "y": [1.0, 2.0], "store": ids, "flag": ["a", "a"]}), PANEL)
    expected = {value if isinstance(value, str) else str(int(value)) for value in ids.to_pylist()}
    assert {name for (name,) in panel.series_ids} == expected
    assert len(expected) == 2


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pa.array([1, 0], pa.int8()), id="integers"),
        pytest.param(pa.array([1.0, 0.0]), id="floats"),
        pytest.param(pa.array([Decimal("1.0"), Decimal("0.0")], pa.decimal128(3, 1)), id="decimals"),
        pytest.param(pa.array(["true", "false"]), id="text"),
        pytest.param(pa.array([True, False]).dictionary_encode(), id="dictionary"),
    ],
)
def test_a_flag_is_the_same_two_categories_in_every_file(write: Write, other: pa.Array) -> None:
    for name, values in (("a", pa.array([True, False])), ("b", other)):
        write({"t": [1, 2], "y": [1.0, 2.0], "store": [name] * 2, "flag": values}, f"set/{name}.parquet")
    folder = write({}, "aside.parquet").parent / "set"
    assert flags(read_panel(folder, PANEL)) == ["1", "0", "1", "0"]


def test_a_category_has_one_text_in_every_type() -> None:
    for value in (7, 7.0, np.float32(7), np.int8(7), Decimal("7.00"), Decimal("7"), "7"):
        assert category_text(value) == "7"
    assert [category_text(value) for value in (True, np.bool_(False), date(2020, 1, 2))] == ["1", "0", "2020-01-02"]
    assert [category_text(value) for value in (None, float("nan"), -0.0, 2.0**70)] == [None, None, "0", str(2**70)]
    for broken in (1.5, float("inf"), Decimal("0.5"), Decimal("NaN")):
        with pytest.raises(ValueError, match="not a whole number"):
            category_text(broken)


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        pytest.param(("007", "7"), {"007", "7"}, id="zeros in front are text"),
        pytest.param(("07", "8"), {"07", "8"}, id="one with zeros"),
        pytest.param(("-3", "12"), {"-3", "12"}, id="numbers"),
        pytest.param(("true", "false"), {"1", "0"}, id="booleans"),
        pytest.param(("a%2Fb", "c d"), {"a/b", "c d"}, id="escaped"),
    ],
)
def test_folders_give_the_ids_that_their_names_say(write: Write, folders: tuple[str, ...], expected: set[str]) -> None:
    for folder in folders:
        write({"t": [1], "y": [1.0], "flag": ["a"]}, f"set/store={folder}/x.parquet")
    panel = read_panel(write({}, "aside.parquet").parent / "set", PANEL)
    assert {name for (name,) in panel.series_ids} == expected


def test_a_folder_with_the_name_of_a_file_is_a_folder(write: Write) -> None:
    for name in ("set/a.parquet/part-0.snappy.parquet", "set/b.parquet/part.0.PARQUET", "set/c.pq"):
        write({"t": [1], "y": [1.0], "flag": ["a"], "store": [name]}, name)
    assert len(read_panel(write({}, "aside.parquet").parent / "set", PANEL).series_ids) == 3


def test_files_without_rows_say_nothing(write: Write) -> None:
    nothing = {"t": pa.nulls(0), "y": pa.nulls(0), "flag": pa.array([], pa.binary()), "store": pa.nulls(0)}
    write(nothing, "set/0.parquet")
    write({"t": [1, 2], "y": [1.0, 2.0], "store": [1, 1], "flag": [True, False]}, "set/1.parquet")
    panel = read_panel(write({}, "aside.parquet").parent / "set", PANEL)
    assert (panel.rows, panel.notes) == (2, ())


def test_old_times_of_96_bits_are_read_to_the_nanosecond_or_refused(write: Write) -> None:
    schema = Schema(time="t", target="y")
    exact = pa.array([1_600_000_000_123_456_789, 1_600_000_001_123_456_789], pa.timestamp("ns"))
    path = write({"t": exact, "y": [1.0, 2.0]}, use_deprecated_int96_timestamps=True)
    assert {column.physical_type for column in pq.ParquetFile(path).schema} == {"INT96", "DOUBLE"}
    assert read_panel(path, schema).time.tolist() == exact.cast(pa.int64()).to_pylist()
    late = pa.array([1_600_000_000, 253_370_764_800], pa.timestamp("s"))  # the second is in the year 9999
    with pytest.raises(DataError, match=r"64-bit nanoseconds cannot represent.*9999-12-31"):
        read_panel(write({"t": late, "y": [1.0, 2.0]}, use_deprecated_int96_timestamps=True), schema)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(pa.array([3, 4, 6]).cast(pa.decimal128(38, 0)), id="decimal"),
        pytest.param(pa.array([3, 4, 6]), id="int"),
    ],
)
def test_steps_may_be_decimals(write: Write, steps: pa.Array) -> None:
    panel = read_panel(write({"t": steps, "y": [1.0, 2.0, 3.0]}), Schema(time="t", target="y"))
    assert panel.time.tolist() == [3, 4, 6]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**20), max_value=10**20)))
def test_decimals_become_the_nearest_double(values: list[Decimal]) -> None:
    found = float64(pa.array(values, pa.decimal128(38, 9))).to_pylist()
    assert found == [float(value) for value in values]


UNITS = [pa.timestamp(unit, tz=zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")]
NUMBERS = [pa.int16(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(20, 4), pa.uint32()]
NAMES = [
    pa.int32(),
    pa.string(),
    pa.large_string(),
    pa.decimal128(38, 0),
    pa.float64(),
    pa.dictionary(pa.int8(), pa.string()),
]
FLAGS = [pa.bool_(), pa.int8(), pa.float64(), pa.decimal128(3, 0)]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_table_written_in_any_way_is_the_same_panel(write: Write, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    stores, days = 3, 12
    order = random.permutation(stores * days)
    columns = {
        "t": pa.array(np.tile(np.arange(days) * DAY, stores)[order]).cast(pa.timestamp("s")),
        "y": pa.array(np.arange(stores * days)[order]),
        "store": pa.array(np.repeat(np.arange(stores) + 10, days)[order]),
        "flag": pa.array((np.arange(stores * days) % 2)[order]),
    }
    plain = read_panel(write(columns, "plain.parquet"), PANEL)
    time = data.draw(st.sampled_from([type_ for type_ in UNITS if type_.tz != "Europe/Berlin"] + [pa.date32()]))
    types = {"y": NUMBERS, "store": NAMES, "flag": FLAGS}
    chosen = {name: data.draw(st.sampled_from(of), label=name) for name, of in types.items()} | {"t": time}
    columns = {name: as_type(values, chosen[name]) for name, values in columns.items()}
    table, files = pa.table(columns), data.draw(st.integers(1, 3))
    borders = [0, *sorted(random.integers(0, len(order) + 1, files - 1).tolist()), len(order)]
    for place in range(files):
        part = table.slice(borders[place], borders[place + 1] - borders[place])
        write(
            dict(zip(part.column_names, part.columns, strict=True)),
            f"set/{place}.parquet",
            compression=data.draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
            use_dictionary=data.draw(st.booleans()),
            row_group_size=data.draw(st.integers(1, 40)),
            data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        )
    found = read_panel(
        [write({}, "aside.parquet").parent / "set" / f"{place}.parquet" for place in range(files)], PANEL
    )
    assert found.series_ids == plain.series_ids
    assert flags(found) == flags(plain)
    assert torch.equal(found.time, plain.time)
    assert torch.equal(found.target, plain.target)


def as_type(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return values.cast(type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(value) for value in values.to_pylist()], type_)
    return values.cast(type_)
