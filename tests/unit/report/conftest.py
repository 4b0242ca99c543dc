"""A run folder as training, export and check leave it, without any of the three: weights are random."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.data.windows import Batch
from qat_tft.quantization.calibrate import calibrate
from qat_tft.report.content import ReportContent, collect
from qat_tft.report.evidence import FileForecasts, explained
from qat_tft.runs import layout
from qat_tft.runs.build import build_model, build_qat_model
from qat_tft.runs.data import load_data
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.schema import Columns, Schema

MARKUP = "<b>x</b> & $y$"
PLANTS = ("north", "south", "<i>east</i>", "west")
LATE, LATE_FROM = "west", 38
"""A series that begins shortly before the test part: its first histories are padded, and training never saw it."""
ROWS, HISTORY, HORIZON, LEVELS = 60, 6, 3, (0.1, 0.5, 0.9)
PLANT_SCHEMA = Schema(
    time="time",
    target="load",
    id=("plant",),
    static=Columns(category=("plant",)),
    observed=Columns(real=(MARKUP,)),
    known=Columns(real=("hour",)),
)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of four series with padded histories and a column whose name is markup; tests must not change it."""
    root = tmp_path_factory.mktemp("report")
    pq.write_table(_table(), root / "plants.parquet")
    config = RunConfig.checked(
        {
            "data": {"parquet_files": [str(root / "plants.parquet")], "min_history": 3, "test": 0.3},
            "model": {"history": HISTORY, "horizon": HORIZON, "hidden": 8, "heads": 2, "quantiles": LEVELS},
            "quantization": {"use_qat": True, "products": "integer"},
        },
        where="the test",
    )
    data = load_data(config.data, config.model, PLANT_SCHEMA)
    run = RunFolder.create(root / "runs", "mine")
    run.write_setup(config, PLANT_SCHEMA, data.preprocessing)
    torch.manual_seed(0)
    model = build_model(config.model, data.preprocessing, data.schema)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    run.write_weights("fp32", model.state_dict())
    windows = data.test[list(range(len(data.test)))]
    qat = build_qat_model(model, "x86", products="integer")
    scaling = data.preprocessing.scaling()
    calibrate(qat, [scaling.scale_inputs(windows.static, windows.historical, windows.future, windows.series)])
    run.write_weights("qat", qat.state_dict())
    run.write_check_windows(windows)
    run.write_results(RESULTS)
    run.write_check(CHECK)
    (run.path / layout.METRICS).write_text("".join(json.dumps(line) + "\n" for line in METRICS))
    run.onnx_file("fp32").write_bytes(bytes(4000))
    run.onnx_file("int8").write_bytes(bytes(1000))
    run.finish()
    return run


@pytest.fixture
def changeable(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the run that a test may change."""
    return RunFolder(copytree(finished.path, tmp_path / "mine"))


@pytest.fixture(scope="session")
def integer_file(finished: RunFolder) -> FileForecasts:
    """What an exported file would be: it forecasts what the quantization-aware model does."""
    model, scaling = finished.load_qat_model(), finished.load_preprocessing().scaling()

    def forecast(windows: Batch) -> torch.Tensor:
        with torch.no_grad():
            return explained(model, scaling, windows).quantiles

    return FileForecasts("model.int8.onnx", {"torch": "2.13.0"}, forecast)


@pytest.fixture(scope="session")
def content(finished: RunFolder, integer_file: FileForecasts) -> ReportContent:
    return collect(finished, integer_file)


@pytest.fixture
def results_without() -> Callable[[RunFolder, str], None]:
    """Take a key out of results.json, as an earlier version did not write it."""

    def take_out(run: RunFolder, key: str) -> None:
        path = run.path / layout.RESULTS
        kept = {name: value for name, value in json.loads(path.read_text()).items() if name != key}
        path.write_text(json.dumps(kept))

    return take_out


def _table() -> pa.Table:
    random = np.random.default_rng(0)
    tables = []
    for number, plant in enumerate(PLANTS):
        hours = np.arange(LATE_FROM if plant == LATE else 0, ROWS)
        count = len(hours)
        tables.append(
            pa.table(
                {
                    "plant": [plant] * count,
                    "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                    "load": 40.0 + 10 * number + 5 * np.sin(hours / 4) + random.normal(size=count),
                    MARKUP: random.normal(size=count),
                    "hour": (hours % 24).astype(np.float64),
                }
            )
        )
    return pa.concat_tables(tables)


RESULTS = RunResults(
    run="mine",
    quantiles=LEVELS,
    season=2,
    q_risk={
        "fp32": (0.1, 0.2, 0.1),
        "qat": (0.1, 0.21, 0.1),
        "ridge": (0.2, 0.3, 0.2),
        "seasonal_naive": (0.2, 0.4, 0.2),
    },
    windows={"train": 90, "validation": 9, "test": 56, "test_evaluated": 56},
    validation_loss={"fp32": 0.5, "qat": 0.4},
    parameters=777,
    seconds=12.0,
    checkpointing={
        **{"mode": "full", "windows": 32, "without_bytes": 80 * 2**20, "with_bytes": 40 * 2**20, "saved": 0.5},
        **{"without_seconds": 1.25, "with_seconds": 1.5},
    },
    version="0.1.0",
    notes=("A note that says <em>something</em>.",),
    coverage=dict.fromkeys(("fp32", "qat", "ridge", "seasonal_naive"), (0.12, 0.5, 0.88)),
)
CHECK = {
    "passed": True,
    "reasons": [],
    "rows": 56,
    "sqnr_db": {"optimized": 78.1},
    "integer_share": 0.64,
    "q_risk": {name: {"0.1": 0.1, "0.5": 0.2, "0.9": 0.1} for name in ("fp32", "qat", "int8")},
    "layers": [
        {"name": "lstm_encoder.cell", "qat_db": 36.7, "file_db": {"optimized": 130.0, "unoptimized": 120.0}},
        {"name": "head", "qat_db": 43.0, "file_db": {"optimized": None}},
    ],
    "latency_ms": {"fp32": {"1": 2.0, "32": 60.0}, "int8": {"1": 1.0, "32": 40.0}},
}
EPOCH = {"event": "epoch", "phase": "fp32"}
METRICS = [
    {**EPOCH, "epoch": 1, "train_loss": 0.9, "validation_loss": 0.8, "best": True, "seconds": 3},
    {**EPOCH, "event": "out_of_memory", "epoch": 9, "train_loss": 0.1, "validation_loss": 0.1},
    {**EPOCH, "epoch": 2, "train_loss": 0.7, "validation_loss": 0.9, "best": False, "seconds": 4},
    {**EPOCH, "phase": "qat", "epoch": 1, "train_loss": 0.6, "validation_loss": 0.7},
]
