"""Named roles go over a schema file or over field metadata, and the note says what came from where."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.data.roles.choice import ChosenSchema, Roles, choose_schema
from qat_tft.data.roles.field_metadata import with_declared_roles
from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, Schema

DECLARED = Schema(time="t", target="y", observed=Columns(real=("wind",), category=("sky",)))
IN_FILE = Schema(time="t", target="wind", known=Columns(real=("hour",)))


@pytest.fixture
def data(tmp_path: Path) -> str:
    table = pa.table({"t": [1, 2], "y": [1.0, 2.0], "wind": [1.0, 2.0], "sky": ["a", "b"], "hour": [3, 4]})
    pq.write_table(table, tmp_path / "plain.parquet")
    pq.write_table(table.cast(with_declared_roles(table.schema, DECLARED)), tmp_path / "declared.parquet")
    (tmp_path / "roles.toml").write_text(IN_FILE.to_toml())
    return str(tmp_path)


def chosen(data: str, name: str, *, toml: bool = False, **roles: str) -> ChosenSchema | None:
    return choose_schema([f"{data}/{name}.parquet"], Roles(**roles), Path(data, "roles.toml") if toml else None)


def test_without_any_source_there_is_no_schema(data: str) -> None:
    assert chosen(data, "plain") is None


def test_field_metadata_serve_where_nothing_else_does(data: str) -> None:
    assert chosen(data, "declared") == ChosenSchema(DECLARED, "Schema: the field metadata of the data")


def test_a_schema_file_goes_before_field_metadata_as_a_whole(data: str) -> None:
    assert chosen(data, "declared", toml=True) == ChosenSchema(IN_FILE, f"Schema: {data}/roles.toml")


def test_options_alone_are_a_schema_with_kinds_from_types_and_suffixes(data: str) -> None:
    found = chosen(data, "plain", time="t", target="y", known="hour:category", observed="wind, sky")
    assert found is not None
    assert found.schema == Schema(
        time="t",
        target="y",
        known=Columns(category=("hour",)),
        observed=Columns(real=("wind",), category=("sky",)),
    )


def test_names_of_a_list_are_taken_as_they_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [1], "y": [1.0], "wind, m/s": [1.0], " a": [1]}), tmp_path / "odd.parquet")
    found = choose_schema([f"{tmp_path}/odd.parquet"], Roles("t", ["y"], observed=["wind, m/s", " a:category"]), None)
    assert found is not None
    assert found.schema == Schema(time="t", target="y", observed=Columns(real=("wind, m/s",), category=(" a",)))


@pytest.mark.parametrize(
    ("name", "toml", "roles", "expected", "note"),
    [
        pytest.param(
            "declared", False, {"known": "sky"},
            Schema(time="t", target="y", observed=Columns(real=("wind",)), known=Columns(category=("sky",))),
            "Schema: the field metadata of the data, with --known over it", id="field metadata",
        ),
        pytest.param(
            "declared", True, {"target": "y", "id": "sky"},
            Schema(time="t", target="y", id=("sky",), known=Columns(real=("hour",))),
            "Schema: {data}/roles.toml, with --target, --id over it; without a role now: wind", id="schema file",
        ),
        pytest.param(
            "plain", True, {"known": ""}, Schema(time="t", target="wind"),
            "Schema: {data}/roles.toml, with --known over it; without a role now: hour", id="none of a role",
        ),
    ],
)  # fmt: skip
def test_options_win_and_a_note_says_so(
    data: str, name: str, toml: bool, roles: dict[str, str], expected: Schema, note: str
) -> None:
    assert chosen(data, name, toml=toml, **roles) == ChosenSchema(expected, note.format(data=data))


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        pytest.param({"target": "y,wind"}, "--target names 2 columns.*Train one model per target", id="two targets"),
        pytest.param({"time": ""}, "--time names 0 columns", id="no time"),
        pytest.param({"known": "hours"}, "no column 'hours'.*Did you mean 'hour'", id="unknown column"),
        pytest.param({"target": "y"}, "no column is named as time. Add --time", id="no time named"),
    ],
)
def test_options_that_make_no_schema_are_refused(data: str, roles: dict[str, str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        chosen(data, "plain", **roles)
