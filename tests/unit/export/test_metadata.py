import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.errors import OnnxFileError
from qat_tft.export.metadata import FORMAT_VERSION, METADATA_KEY, InputSpec, ModelMetadata
from qat_tft.schema import Columns, Schema

NAMES = st.text(min_size=1, max_size=8)


LIMITS = st.tuples(st.floats(-1e9, 0), st.floats(0, 1e9))


@st.composite
def described_models(draw: st.DrawFn) -> ModelMetadata:
    names = draw(st.lists(NAMES, min_size=4, max_size=9, unique=True))
    schema = Schema(
        time=names[0],
        target=names[1],
        id=(names[2],),
        known=Columns(category=(names[3],)),
        observed=Columns(real=tuple(names[4:])),
    )
    series = draw(st.none() | st.lists(st.tuples(NAMES), max_size=4).map(tuple))
    codes = 1 if series is None else len(series) + 1
    columns = st.sampled_from(schema.real_columns)
    return ModelMetadata(
        kind=draw(st.sampled_from(["fp32", "int8"])),
        schema=schema,
        vocabularies={names[3]: tuple(draw(st.lists(NAMES, unique=True, max_size=5)))},
        series=series,
        quantiles=tuple(sorted(draw(st.sets(st.floats(0.01, 0.99), min_size=1, max_size=5)))),
        history=draw(st.integers(1, 400)),
        horizon=draw(st.integers(1, 99)),
        target=draw(st.sampled_from(["", "x86", "portable"])),
        products=draw(st.sampled_from(["integer", "float"])),
        quantized_layers=tuple(draw(st.lists(NAMES, max_size=3))),
        float_layers=tuple(draw(st.lists(st.tuples(NAMES, NAMES), max_size=3))),
        weights=draw(NAMES),
        versions=draw(st.dictionaries(NAMES, NAMES, max_size=3)),
        fills=draw(
            st.dictionaries(
                columns, st.lists(st.floats(-1e9, 1e9), min_size=codes, max_size=codes).map(tuple), max_size=3
            )
        ),
        explained=draw(
            st.dictionaries(
                st.sampled_from(["static", "historical", "future"]), st.lists(NAMES, max_size=3).map(tuple), max_size=3
            )
        ),
        usual=draw(st.dictionaries(columns, st.lists(LIMITS, min_size=codes, max_size=codes).map(tuple), max_size=3)),
    )


@given(described_models())
def test_metadata_are_read_back_as_they_were_written(metadata: ModelMetadata) -> None:
    assert ModelMetadata.from_text(metadata.to_text(), "a.onnx") == metadata


def test_a_file_of_before_there_was_a_choice_multiplies_integers(metadata: ModelMetadata) -> None:
    fields = json.loads(replace(metadata, products="float").to_text())
    del fields["products"]
    assert ModelMetadata.from_text(json.dumps(fields), "old.onnx").products == "integer"


def test_inputs_stand_in_the_order_of_the_groups_and_carry_their_columns(metadata: ModelMetadata) -> None:
    assert metadata.inputs() == (
        InputSpec("static_real", "float32", ("batch", 1), ("height",)),
        InputSpec("static_category", "int64", ("batch", 1), ("plant",)),
        InputSpec("historical_real", "float32", ("batch", 6, 3), ("load", "wind", "hour")),
        InputSpec("historical_category", "int64", ("batch", 6, 1), ("shift",)),
        InputSpec("future_real", "float32", ("batch", 3, 1), ("hour",)),
        InputSpec("future_category", "int64", ("batch", 3, 1), ("shift",)),
        InputSpec("series", "int64", ("batch",)),
    )


def test_an_empty_group_and_global_scaling_have_no_inputs(metadata: ModelMetadata) -> None:
    alone = replace(metadata, schema=Schema(time="t", target="y"), vocabularies={}, series=None)
    assert [spec.name for spec in alone.inputs()] == ["historical_real"]


def test_a_file_of_another_origin_is_refused_by_name() -> None:
    with pytest.raises(OnnxFileError, match=r"other\.onnx: this ONNX file was not written by qat-tft"):
        ModelMetadata.from_properties({"author": "someone"}, "other.onnx")


def test_a_file_of_a_later_version_asks_for_a_newer_package(metadata: ModelMetadata) -> None:
    fields = json.loads(metadata.to_text()) | {"format_version": FORMAT_VERSION + 1}
    with pytest.raises(OnnxFileError, match="format version 2, this qat-tft reads up to 1"):
        ModelMetadata.from_text(json.dumps(fields), "new.onnx")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[: len(text) // 2], id="cut short"),
        pytest.param(lambda text: "[]", id="not an object"),
        pytest.param(lambda text: text.replace('"history": 6', '"history": "six"'), id="wrong type"),
        pytest.param(lambda text: text.replace('"quantiles"', '"levels"'), id="missing key"),
        pytest.param(lambda text: text.replace('"fp32"', '"fp64"'), id="unknown kind"),
        pytest.param(lambda text: text.replace('"target": "load"', '"goal": "load"'), id="other schema"),
        pytest.param(lambda text: text.replace('"format_version": 1', '"format_version": "1"'), id="version"),
    ],
)
def test_damaged_metadata_are_refused_with_the_files_name(metadata: ModelMetadata, damage) -> None:
    with pytest.raises(OnnxFileError, match=r"bad\.onnx: the metadata of the file is damaged"):
        ModelMetadata.from_properties({METADATA_KEY: damage(metadata.to_text())}, "bad.onnx")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda fields: fields.update(horizon=0), id="no horizon"),
        pytest.param(lambda fields: fields.update(history="6"[:0]), id="no history"),
        pytest.param(lambda fields: fields.update(quantiles=[0.9, 0.1]), id="levels that fall"),
        pytest.param(lambda fields: fields.update(quantiles=[0.5, 1.5]), id="level beyond 1"),
        pytest.param(lambda fields: fields["vocabularies"].pop("shift"), id="vocabulary less"),
        pytest.param(lambda fields: fields["vocabularies"].update(shift=[1, 2]), id="numbers for categories"),
        pytest.param(lambda fields: fields["vocabularies"].update(shift="day"), id="text for categories"),
        pytest.param(lambda fields: fields.update(series=["north"]), id="text for ids"),
        pytest.param(lambda fields: fields.update(series=[["north", "x"]]), id="other ids"),
        pytest.param(lambda fields: fields.update(target_transform="square"), id="transform"),
        pytest.param(lambda fields: fields.update(fills={"wind": []}), id="fills of no series"),
        pytest.param(lambda fields: fields.update(usual={"nowhere": [[0, 1]]}), id="usual of no column"),
        pytest.param(lambda fields: fields.update(low_bits={"head": 3}), id="bits"),
        pytest.param(lambda fields: fields.update(versions=[1]), id="versions"),
        pytest.param(lambda fields: fields["preparation"].update(min_history=99), id="shortest history"),
        pytest.param(lambda fields: fields["preparation"].update(step=["", 0]), id="step"),
    ],
)
def test_metadata_whose_parts_do_not_go_together_are_refused(metadata: ModelMetadata, change) -> None:
    fields = json.loads(metadata.to_text())
    change(fields)
    with pytest.raises(OnnxFileError, match=r"bad\.onnx: the metadata of the file is damaged"):
        ModelMetadata.from_text(json.dumps(fields), "bad.onnx")
