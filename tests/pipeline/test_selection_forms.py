"""Runs whose selection networks are exact: tabulated for QAT and the file, or of a version that knew no tables."""

import json
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft.config.run import RunConfig
from qat_tft.export.build.run_export import export_run
from qat_tft.export.verify.check import check_model
from qat_tft.model.selection import VariableSelection
from qat_tft.model.tabulated import TabulatedSelection
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema
from qat_tft.training.job import train
from qat_tft.training.progress import Silent

SCHEMA = Schema(time="time", target="load", id=("plant",), known=Columns(category=("shift",)))
NEW_SETTINGS = {"selection", "knots", "products"}


class Notes(Silent):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def train_exact(data: Path, runs: Path, notes: Notes, **quantization: object) -> RunFolder:
    config = RunConfig.checked(
        {
            "data": {"parquet_files": [str(data)]},
            "model": {"history": 8, "horizon": 3, "hidden": 16, "heads": 2, "selection": "exact", "knots": 33},
            "training": {"epochs": 1, "batches_per_epoch": 3, "batch_size": 16},
            "quantization": {"use_qat": True, "qat_epochs": 1, "calibration_batches": 3, **quantization},
        },
        where="the test",
    )
    return train(config, SCHEMA, runs_dir=runs, progress=notes).folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, hours = np.random.default_rng(0), np.arange(160)
    table = pa.table(
        {
            "plant": ["north"] * len(hours),
            "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
            "load": 10 + 3 * np.sin(hours / 4) + 0.3 * random.normal(size=len(hours)),
            "shift": ["day" if 6 <= hour % 24 < 18 else "night" for hour in hours],
        }
    )
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    pq.write_table(table, path)
    return path


def names_in(file: Path) -> set[str]:
    return {tensor.name for tensor in onnx.load(file).graph.initializer}


def test_a_model_trained_exact_is_tabulated_for_qat_and_its_file_proven(data, tmp_path):
    notes = Notes()
    run = train_exact(data, tmp_path / "runs", notes, qat_selection="tabulated")
    (said,) = [note for note in notes.said if note.startswith("The selection networks, trained exact, are tabulated")]
    assert float(said.split()[-2]) > 40, "dB"
    assert type(run.load_fp32_model().historical_selection) is VariableSelection
    tabulated = run.load_qat_model().model.historical_selection
    assert type(tabulated) is TabulatedSelection
    config = run.load_config()
    assert config.model.selection_chunk == 4, "what suits exact selection on a CPU, recorded"
    assert config.quantization.qat_selection_chunk == 32, "and what suits tables"
    assert tabulated.rows == 32 * 33
    export_run(run, int8=True)
    assert "model.historical_selection.table.codes" in names_in(run.onnx_file("int8"))
    assert not any("table.rows" in name for name in names_in(run.onnx_file("fp32")))
    for kind in ("fp32", "int8"):
        report = check_model(run.onnx_file(kind), seconds=0.0)
        assert report.passed, report.reasons
        assert report.found.tensors.equal


def test_a_run_of_a_version_without_tables_loads_exports_and_checks(data, tmp_path):
    run = train_exact(data, tmp_path / "runs", Notes(), products="integer")
    path = run.path / "config.toml"
    kept = [line for line in path.read_text().splitlines() if line.split(" = ")[0] not in NEW_SETTINGS]
    assert len(kept) == len(path.read_text().splitlines()) - 3, "two of the model's, one of quantization"
    path.write_text("\n".join(kept))
    export_run(run, int8=True)
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert report.passed, report.reasons
    assert not any(".table.codes" in name for name in names_in(run.onnx_file("int8")))
    assert json.loads((run.path / "check.json").read_text())["passed"] is True
