"""No way leads an empty batch to onnxruntime, whose LSTM would end the process without an error."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import onnx
import onnxruntime as ort
import pyarrow.parquet as pq
import pytest

from qat_tft.errors import DataError, RunFolderError, UserError
from qat_tft.export.graph_reader import RECURRENT
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.run_backtest import Span, backtest_run
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import LEAST_BATCH, METADATA_KEY, ModelMetadata
from qat_tft.export.verify.check import check_model
from qat_tft.runs import files
from qat_tft.runs.folder import RunFolder


@pytest.fixture
def run(exported_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A copy of a run whose file has an LSTM; the session of onnxruntime refuses to be run without rows."""
    nodes = onnx.load(exported_run.onnx_file("fp32")).graph.node
    assert any(node.op_type in RECURRENT for node in nodes)
    original = ort.InferenceSession.run

    def run_with_rows(self: ort.InferenceSession, outputs: list[str], inputs: dict[str, np.ndarray], *more: object):
        assert all(len(array) for array in inputs.values()), "an empty batch reached onnxruntime"
        return original(self, outputs, inputs, *more)

    monkeypatch.setattr(ort.InferenceSession, "run", run_with_rows)
    return RunFolder(copytree(exported_run.path, tmp_path / "plants"))


def test_a_session_refuses_it(run: RunFolder) -> None:
    session = ForecastSession(run.onnx_file("fp32"))
    empty = {spec.name: np.zeros((0, *spec.shape[1:]), spec.dtype) for spec in session.inputs}
    with pytest.raises(DataError, match=f"at least {LEAST_BATCH}"):
        session.forecast(empty)


def test_predict_refuses_data_without_a_row_and_without_an_origin(run: RunFolder, tmp_path: Path) -> None:
    session, rows = ForecastSession(run.onnx_file("fp32")), pq.read_table(run.path / "data.parquet")
    for count in (0, 3):
        pq.write_table(rows.slice(0, count), tmp_path / "few.parquet")
        with pytest.raises(DataError):
            forecast_parquet(session, tmp_path / "few.parquet")


def test_a_backtest_refuses_a_span_without_an_origin(run: RunFolder) -> None:
    for span in (
        Span("2100-01-01"),
        Span("1970-01-01T10:00", "1970-01-01T10:00"),
        Span("1970-01-01", "1970-01-01T02:00"),
    ):
        with pytest.raises(UserError):
            backtest_run(run, span, files=[run.path / "data.parquet"])


def test_a_check_refuses_a_run_without_windows(run: RunFolder) -> None:
    windows, _ = files.read_tensors(run.path / "check_windows.safetensors", kind="windows")
    none = {name: tensor[:0] for name, tensor in windows.items()}
    files.write_tensors(run.path / "check_windows.safetensors", none, kind="windows")
    with pytest.raises(RunFolderError, match="there is no window"):
        check_model(run.onnx_file("fp32"))


def test_a_file_says_so_and_one_that_does_not_is_read(metadata: ModelMetadata) -> None:
    fields = json.loads(metadata.to_text())
    assert fields.pop("least_batch") == LEAST_BATCH == 1
    assert ModelMetadata.from_properties({METADATA_KEY: json.dumps(fields)}, "old.onnx") == metadata
