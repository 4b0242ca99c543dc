"""`qat-tft predict` refuses what it cannot forecast: exit code 2, one message, and no file of forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper

from qat_tft.cli.app import main

ROWS = 30
Write = Callable[[Path], None]


def table(**changes: object) -> pa.Table:
    """Two plants, one after the other; `changes` replace whole columns."""
    hours = np.tile(np.arange(ROWS), 2)
    columns: dict[str, object] = {
        "plant": ["north"] * ROWS + ["south"] * ROWS,
        "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
        "load": np.arange(2.0 * ROWS),
        "height": np.repeat([100.0, 300.0], ROWS),
        "wind": np.zeros(2 * ROWS),
        "hour": (hours % 24).astype(np.float64),
        "shift": ["day"] * (2 * ROWS),
    }
    return pa.table({**columns, **changes})


MIDNIGHT, LAST = "1970-01-02T00:00:00 in plant=north", "1970-01-02T05:00:00 in plant=north"


def changed(column: str, row: int, value: object) -> pa.Table:
    values = table().column(column).to_pylist()
    values[row] = value
    return table(**{column: values})


@pytest.fixture
def refused(tmp_path: Path, refusal: Callable[..., str]) -> Callable[..., None]:
    """Run `predict` with a file and some data, and expect a message that says these words."""

    def run(model: Path, data: Path, said: Sequence[str], *options: str) -> None:
        out = tmp_path / "forecasts.parquet"
        message = refusal("predict", model, "--parquet-file", data, "--out", out, *options)
        assert [word for word in said if word not in message] == [], message
        assert not out.exists()
        assert [path for path in tmp_path.iterdir() if "unfinished" in path.name] == []

    return run


DATA = [
    *(
        pytest.param(lambda column=column: table().drop_columns(column), [f"no column '{column}'"], id=f"no {column}")
        for column in ("plant", "time", "height", "hour", "shift")
    ),
    pytest.param(lambda: table().slice(0, 4), ["0 forecasts", "6 rows"], id="too short"),
    pytest.param(lambda: table().slice(0, 0), ["no rows"], id="no rows"),
    pytest.param(lambda: table(load=["high"] * (2 * ROWS)), ["'load'", "string"], id="target that is text"),
    pytest.param(lambda: table(load=pa.nulls(2 * ROWS, pa.float64())), ["0 rows with a target"], id="no target at all"),
    pytest.param(
        lambda: changed("wind", 24, None),
        ["'wind' is null", MIDNIGHT],
        id="null in the history",
    ),
    pytest.param(
        lambda: changed("hour", 29, None),
        ["'hour' is null", LAST],
        id="null in the future",
    ),
    pytest.param(lambda: changed("wind", 56, float("inf")), ["'wind' is infinite", "plant=south"], id="infinity"),
    pytest.param(lambda: changed("load", 24, None), ["'load' is null", MIDNIGHT], id="target"),
    pytest.param(lambda: changed("height", 3, 5.0), ["'height' changes within plant=north"], id="static that changes"),
    pytest.param(lambda: pa.concat_tables([table(), table()]), ["60 rows repeat"], id="every row twice"),
]


@pytest.mark.parametrize(("make", "said"), DATA)
def test_data_that_a_file_cannot_take_are_refused(
    make: Callable[[], pa.Table], said: Sequence[str], persistence_file: Path, tmp_path: Path, refused
) -> None:
    pq.write_table(make(), tmp_path / "data.parquet")
    refused(persistence_file, tmp_path / "data.parquet", ["data.parquet", *said])


OPTIONS = [
    pytest.param(["--origin", "soon"], ["soon", "ISO 8601"], id="no time"),
    pytest.param(["--origin", "2031-01-01"], ["2031-01-01"], id="after the data"),
    pytest.param(["--origin", "1950-01-01"], ["1950-01-01"], id="before the data"),
    pytest.param(["--future-file", "nowhere.parquet"], ["nowhere.parquet", "no such file"], id="no future file"),
    pytest.param(["--out", "nowhere/forecasts.parquet"], ["nowhere/forecasts.parquet", "cannot be"], id="no folder"),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS)
def test_options_that_cannot_be_are_refused(
    options: list[str], said: Sequence[str], persistence_file: Path, tmp_path: Path, refused
) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    refused(persistence_file, tmp_path / "data.parquet", said, *options)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_program(path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negation", [value], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def with_broken_metadata(path: Path) -> None:
    model = onnx.load(path)
    model.metadata_props[0].value = model.metadata_props[0].value[:-9]
    onnx.save(model, path)


FILES = [
    pytest.param(Path.unlink, ["no such file"], id="not there"),
    pytest.param(lambda path: path.write_bytes(b""), ["persistence.onnx"], id="empty"),
    pytest.param(lambda path: path.write_text("model"), ["persistence.onnx"], id="text"),
    pytest.param(cut_short, ["persistence.onnx"], id="cut short"),
    pytest.param(of_another_program, ["persistence.onnx", "qat-tft"], id="of another program"),
    pytest.param(with_broken_metadata, ["persistence.onnx", "metadata"], id="broken metadata"),
]


@pytest.mark.parametrize(("damage", "said"), FILES)
def test_a_file_that_is_no_model_of_ours_is_refused(
    damage: Write, said: Sequence[str], persistence_file: Path, tmp_path: Path, refused
) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    damage(persistence_file)
    refused(persistence_file, tmp_path / "data.parquet", said)


def test_the_same_data_unbroken_are_forecast(persistence_file: Path, tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    out = tmp_path / "forecasts.parquet"
    words = ["predict", str(persistence_file), "--parquet-file", str(tmp_path / "data.parquet"), "--out", str(out)]
    assert main(words) == 0
    assert pq.read_table(out).num_rows == 6
