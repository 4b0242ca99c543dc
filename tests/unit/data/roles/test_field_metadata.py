"""Roles in field metadata survive a file, and what is no role is refused by column."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.data.reading.source import open_source
from qat_tft.data.roles.field_metadata import ROLE_KEY, declared_schema, with_declared_roles
from qat_tft.data.roles.partial_schema import PartialSchema
from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, Schema

SCHEMA = Schema(
    time="t",
    target="y",
    id=("shop", "item"),
    static=Columns(real=("size",), category=("item",)),
    observed=Columns(real=("stock",), category=("mood",)),
    known=Columns(real=("price",), category=("day",)),
)
TYPES = {"shop": pa.string(), "item": pa.string(), "mood": pa.string(), "day": pa.int64(), "t": pa.int64()}


@pytest.fixture
def declare(tmp_path: Path) -> Callable[..., Path]:
    """Write a file whose fields declare these roles."""

    def write(name: str = "data.parquet", **declared: str) -> Path:
        fields = [
            pa.field(column, TYPES.get(column, pa.float64()), metadata={ROLE_KEY: role} if role else None)
            for column, role in declared.items()
        ]
        pq.write_table(pa.schema(fields).empty_table(), tmp_path / name)
        return tmp_path / name

    return write


def test_a_schema_written_into_the_fields_is_read_back(tmp_path: Path) -> None:
    columns = ("unused", *reversed(SCHEMA.used_columns))
    fields = pa.schema(
        [pa.field(name, TYPES.get(name, pa.float64()), metadata={"unit": "kg"}) for name in columns],
        metadata={"title": "stock"},
    )
    declared = with_declared_roles(fields, SCHEMA)
    pq.write_table(declared.empty_table(), tmp_path / "data.parquet")
    read = declared_schema(open_source(tmp_path / "data.parquet"))
    assert read is not None
    assert read.complete().model_copy(update={"id": SCHEMA.id}) == SCHEMA
    assert set(read.id or ()) == set(SCHEMA.id)
    assert declared.field("unused").metadata == {b"unit": b"kg"}
    assert declared.field("y").metadata[b"unit"] == b"kg"
    assert declared.metadata == {b"title": b"stock"}


def test_types_decide_the_kind_that_is_not_declared(declare: Callable[..., Path]) -> None:
    path = declare(t="time", y="target", mood="observed", day="known", price="known:category", extra="")
    expected = PartialSchema(
        time="t",
        target="y",
        id=(),
        static=Columns(),
        observed=Columns(category=("mood",)),
        known=Columns(real=("day",), category=("price",)),
    )
    assert declared_schema(open_source(path)) == expected


def test_without_declarations_there_is_no_schema(declare: Callable[..., Path]) -> None:
    assert declared_schema(open_source(declare(t="", y=""))) is None


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        pytest.param({"y": "goal"}, "of column 'y' is 'goal': 'goal' is not a valid Role", id="role"),
        pytest.param({"y": "known:text"}, "'text' is not a valid Kind", id="kind"),
        pytest.param({"y": "time:real"}, "time has no kind", id="kind of a time"),
        pytest.param({"y": "id+known"}, "id.known is not one role", id="two roles"),
        pytest.param({"y": "target", "z": "target"}, "2 columns are declared as target: y, z", id="two targets"),
    ],
)
def test_what_is_no_role_is_refused(declare: Callable[..., Path], declared: dict[str, str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        declared_schema(open_source(declare(**declared)))


def test_files_that_disagree_are_refused(declare: Callable[..., Path]) -> None:
    files = [declare("a.parquet", y="observed"), declare("b.parquet", y="known")]
    with pytest.raises(SchemaError, match=r"b\.parquet: column 'y' is declared as known, in other files as observed"):
        declared_schema(open_source(files))
