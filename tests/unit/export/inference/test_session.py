import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qat_tft.data.category_text import NULL_CATEGORY
from qat_tft.errors import DataError, OnnxFileError
from qat_tft.export.inference.session import ForecastSession


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_one_file_forecasts_any_batch(persistence_file: Path, inputs_for, batch: int) -> None:
    file = ForecastSession(persistence_file)
    inputs = inputs_for(file.metadata, batch)
    expected = np.broadcast_to(inputs["historical_real"][:, -1, 0, None, None], (batch, 3, 3))
    assert np.array_equal(file.forecast(inputs), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_is_refused_with_its_column_and_place(
    persistence_file: Path, inputs_for, value: float
) -> None:
    file = ForecastSession(persistence_file)
    inputs = inputs_for(file.metadata, 2)
    inputs["historical_real"][1, 4, 1] = value
    with pytest.raises(DataError, match=r"column 'wind'.*'historical_real'.*\(1, 4, 1\)"):
        file.forecast(inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda a: a.pop("series"), "input 'series' is missing", id="missing"),
        pytest.param(lambda a: a.update(price=a["series"]), "there is no input 'price'", id="unknown"),
        pytest.param(
            lambda a: a.update(static_real=a["static_real"].astype(np.float64)),
            r"'static_real' is float64 of shape \(2, 1\).*Allowed: float32",
            id="dtype",
        ),
        pytest.param(
            lambda a: a.update(historical_real=a["historical_real"][:, 1:]),
            r"'historical_real' is float32 of shape \(2, 5, 3\).*\(batch, 6, 3\)",
            id="history too short",
        ),
        pytest.param(
            lambda a: a.update(series=a["series"][:1]), r"'series' is int64 of shape \(1,\)", id="other batch"
        ),
        pytest.param(
            lambda a: a.update({name: array[:0] for name, array in a.items()}),
            r"'static_real' is float32 of shape \(0, 1\)",
            id="empty batch",
        ),
        pytest.param(lambda a: a.update(static_real=np.array(1.0, np.float32)), r"of shape \(\)", id="no dimension"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(persistence_file: Path, inputs_for, change, message) -> None:
    file = ForecastSession(persistence_file)
    inputs = inputs_for(file.metadata, 2)
    change(inputs)
    with pytest.raises(DataError, match=message):
        file.forecast(inputs)


def test_categories_are_encoded_as_their_text_and_the_unseen_as_unknown(persistence_file: Path) -> None:
    file = ForecastSession(persistence_file)
    assert file.encode("shift", ["day", None, "evening"]).tolist() == [2, 1, 0]
    assert file.encode("shift", [NULL_CATEGORY]).tolist() == [1]
    assert file.series_codes([("south",), ("east",)]).tolist() == [2, 0]
    with pytest.raises(DataError, match="'wind' is not a category column"):
        file.encode("wind", ["strong"])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda whole: whole[: len(whole) // 2], id="truncated"),
        pytest.param(lambda whole: b"PAR1 and so on", id="not ONNX"),
        pytest.param(lambda whole: b"", id="empty"),
    ],
)
def test_a_damaged_file_is_one_clear_error(persistence_file: Path, content) -> None:
    persistence_file.write_bytes(content(persistence_file.read_bytes()))
    with pytest.raises(OnnxFileError, match=r"persistence\.onnx: .*export"):
        ForecastSession(persistence_file)


def test_a_missing_and_a_foreign_file_are_told_apart(persistence_file: Path, tmp_path: Path) -> None:
    with pytest.raises(OnnxFileError, match="there is no such file"):
        ForecastSession(tmp_path / "none.onnx")
    foreign = onnx.load(persistence_file)
    helper.set_model_props(foreign, {"author": "someone"})
    onnx.save(foreign, persistence_file)
    with pytest.raises(OnnxFileError, match="was not written by qat-tft"):
        ForecastSession(persistence_file)


def test_running_a_file_imports_neither_torch_nor_onnx(persistence_file: Path) -> None:
    code = (
        "import sys; from qat_tft.export.inference.session import ForecastSession; "
        f"ForecastSession({str(persistence_file)!r}); "
        "print({'torch', 'onnx'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


def test_an_answer_that_is_not_finite_is_refused_where_users_would_keep_it(persistence_file: Path, inputs_for) -> None:
    model = onnx.load(persistence_file)
    copies = next(one for one in model.graph.initializer if one.name == "copies")
    copies.CopyFrom(numpy_helper.from_array(np.full(tuple(copies.dims), np.nan, np.float32), "copies"))
    onnx.save(model, persistence_file)
    file = ForecastSession(persistence_file)
    inputs = inputs_for(file.metadata, 2)
    assert np.isnan(file.forecast(inputs)).all()  # a check reports it
    with pytest.raises(OnnxFileError, match="forecasts nan for step 1"):
        file.finite_forecast(inputs)


def test_what_onnxruntime_raises_it_does_not_print_as_well(persistence_file: Path, inputs_for, capfd) -> None:
    model = onnx.load(persistence_file)
    repeat = next(one for one in model.graph.initializer if one.name == "repeat")
    repeat.CopyFrom(numpy_helper.from_array(np.array([1, -3, 1]), "repeat"))
    onnx.save(model, persistence_file)
    file = ForecastSession(persistence_file)
    with pytest.raises(OnnxFileError, match="cannot run this file"):
        file.forecast(inputs_for(file.metadata, 2))
    assert capfd.readouterr().err == ""


def test_metadata_that_are_no_text_are_refused(persistence_file: Path) -> None:
    persistence_file.write_bytes(persistence_file.read_bytes().replace(b"2.13.0", b"\xff.13.0"))
    with pytest.raises(OnnxFileError, match="not UTF-8"):
        ForecastSession(persistence_file)


def test_an_input_whose_name_is_no_text_is_refused(persistence_file: Path) -> None:
    persistence_file.write_bytes(persistence_file.read_bytes().replace(b"static_category", b"static_categor\xff"))
    with pytest.raises(OnnxFileError, match=r"not UTF-8|cannot load"):
        ForecastSession(persistence_file).signature()
