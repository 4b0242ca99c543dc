"""The schema refuses what cannot work, orders the groups, and survives TOML."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.errors import SchemaError
from qat_tft.schema import Columns, GroupSize, Role, Schema

FULL = Schema(
    time="time",
    target="y",
    id=("city",),
    static=Columns(real=("height",), category=("city",)),
    observed=Columns(real=("wind", "rain"), category=("sky",)),
    known=Columns(real=("hour_sin",), category=("hour", "holiday")),
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=14, unique=True))
    time, target, *rest = names
    ends = sorted(draw(st.lists(st.integers(0, len(rest)), min_size=6, max_size=6)))
    pieces = [tuple(rest[a:b]) for a, b in zip([0, *ends], [*ends, len(rest)], strict=True)]
    ids = pieces[0]
    static = Columns(real=pieces[1], category=pieces[2] + (ids if draw(st.booleans()) else ()))
    return Schema(
        time=time,
        target=target,
        id=ids,
        static=static,
        observed=Columns(real=pieces[3], category=pieces[4]),
        known=Columns(real=pieces[5], category=pieces[6]),
    )


@given(schemas())
def test_a_schema_written_as_toml_is_read_back_equal_whatever_its_names(schema: Schema) -> None:
    assert Schema.from_toml(schema.to_toml()) == schema


def test_several_targets_are_refused_with_a_way_to_go_on() -> None:
    with pytest.raises(SchemaError, match=r"s\.toml: target names 2 columns: 'y', 'z'.*Train one model per target"):
        Schema.from_toml('time = "t"\ntarget = ["y", "z"]', where="s.toml")


@given(schemas())
def test_the_history_holds_the_target_the_observed_and_the_known_columns_once_each(schema: Schema) -> None:
    columns = schema.group("historical").columns
    assert columns[0] == schema.target
    assert sorted(columns) == sorted((schema.target, *schema.observed.names, *schema.known.names))


def test_groups_put_real_columns_before_categories_in_the_order_of_the_schema() -> None:
    static, historical, future = FULL.groups
    assert static.columns == ("height", "city")
    assert historical.columns == ("y", "wind", "rain", "hour_sin", "sky", "hour", "holiday")
    assert future.columns == ("hour_sin", "hour", "holiday")
    assert (historical.size, historical.real_input, historical.category_input) == (
        7,
        "historical_real",
        "historical_category",
    )


def test_a_group_that_does_not_exist_is_a_programmers_error() -> None:
    with pytest.raises(ValueError, match="no group is called 'past'"):
        FULL.group("past")  # type: ignore[arg-type]


def test_every_used_column_is_listed_once_although_an_id_is_static_too() -> None:
    assert FULL.used_columns.count("city") == 1
    assert FULL.roles()["city"] == (Role.ID, Role.STATIC)


def test_a_group_size_counts_real_and_category_columns() -> None:
    assert GroupSize(real=3, cardinalities=(5, 7)).total == 5


def test_one_id_may_stand_as_a_plain_string() -> None:
    assert Schema.from_toml('time = "t"\ntarget = "y"\nid = "city"').id == ("city",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("time = ", "this is not TOML", id="not TOML"),
        pytest.param('time = "t"', "key 'target' is missing", id="no target"),
        pytest.param('time = "t"\ntarget = "y"\nknwon = 1', "unknown key 'knwon'", id="unknown key"),
        pytest.param(
            'time = "t"\ntarget = "y"\n[known]\nreals = ["a"]', "unknown key 'known.reals'", id="unknown nested key"
        ),
        pytest.param('time = 3\ntarget = "y"', "key 'time'", id="wrong type"),
        pytest.param('time = "t"\ntarget = "t"', "column 't' is both time and target", id="time is target"),
        pytest.param(
            'time = "t"\ntarget = "y"\n[observed]\nreal = ["y"]', "leave it out of observed", id="target observed"
        ),
        pytest.param(
            'time = "t"\ntarget = "y"\n[observed]\nreal = ["a"]\n[known]\nreal = ["a"]',
            "A known column is part of the history already",
            id="observed and known",
        ),
        pytest.param(
            'time = "t"\ntarget = "y"\n[known]\nreal = ["a"]\ncategory = ["a"]',
            "'a' is listed more than once under known",
            id="two kinds",
        ),
        pytest.param(
            'time = "t"\ntarget = "y"\n[static]\nreal = ["a"]\n[known]\nreal = ["a"]',
            "column 'a' is both static and known",
            id="static and known",
        ),
    ],
)
def test_a_malformed_schema_is_refused_with_the_file_and_the_key(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(text, "s.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("s.toml: ")


def test_a_schema_file_that_is_missing_or_not_text_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"missing\.toml: the schema file cannot be read: No such file"):
        Schema.read(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SchemaError, match="it is not UTF-8 text"):
        Schema.read(tmp_path / "binary.toml")


def test_many_columns_are_written_as_a_paragraph_that_fits_a_terminal() -> None:
    schema = FULL.model_copy(update={"known": Columns(real=tuple(f"column_{n}" for n in range(200)))})
    assert max(map(len, schema.to_toml().splitlines())) < 80
