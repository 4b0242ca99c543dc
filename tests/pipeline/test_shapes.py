"""Models of every shape train, quantize and export, and their files forecast what torch does, in ascending order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.export.build.run_export import export_run
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import compare
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema
from qat_tft.training.job import train

# Two float32 evaluations of one formula in another order; the target has a mean of 10.
ROUNDING = 1e-4
# A value that rounds the other way in onnxruntime moves a forecast by a step of a quantizer, about a hundredth of the
# target's deviation, which is 2.
INT8_DEVIATION = 0.05

ROWS = 80
SEVEN = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)


def write_data(path: Path, extra: int = 0) -> Path:
    """Two series of hourly rows, with as many further random columns as asked for."""
    random = np.random.default_rng(0)
    hours = np.tile(np.arange(ROWS), 2)
    columns = {
        "shop": ["a"] * ROWS + ["b"] * ROWS,
        "size": [1.0] * ROWS + [3.0] * ROWS,
        "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
        "y": 10 + 2 * np.sin(hours / 3) + random.normal(size=2 * ROWS),
    }
    columns |= {f"x{number}": random.normal(size=2 * ROWS) for number in range(extra)}
    pq.write_table(pa.table(columns), path)
    return path


def train_once(folder: Path, schema: Schema, *, extra: int = 0, calendar: str = "", **model: object) -> RunFolder:
    """One step in FP32 and one quantization-aware."""
    config = RunConfig.checked(
        {
            "data": {"parquet_files": [str(write_data(folder / "data.parquet", extra))], "calendar": calendar},
            "model": {"hidden": 8, "heads": 2, **model},
            "training": {"epochs": 1, "batches_per_epoch": 1, "batch_size": 16},
            "quantization": {"use_qat": True, "qat_epochs": 1, "calibration_batches": 2},
        },
        where="the test",
    )
    return train(config, schema, runs_dir=folder / "runs", name="shape").folder


def let_quantiles_cross(run: RunFolder) -> None:
    """Give both models a head whose lowest level lies highest."""
    for kind, model in (("fp32", run.load_fp32_model()), ("qat", run.load_qat_model())):
        weights = model.state_dict()
        name = next(name for name in weights if name.endswith("head.bias"))
        weights[name] = torch.linspace(2.0, -2.0, len(weights[name]))
        run.write_weights(kind, weights)


LEAST = Schema(time="time", target="y", id=("shop",))
WITHOUT_OBSERVED = LEAST.model_copy(update={"static": Columns(real=("size",))})

SHAPES = [
    pytest.param(
        LEAST,
        {"history": 1, "horizon": 1, "quantiles": (0.5,)},
        id="one column, one step back, one ahead, one quantile",
    ),
    pytest.param(
        WITHOUT_OBSERVED,
        {"history": 3, "horizon": 2, "quantiles": SEVEN, "calendar": "hour"},
        id="nothing observed, a calendar, seven quantiles",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "settings"), SHAPES)
def test_a_model_of_any_shape_becomes_files_that_forecast_as_it_does(
    tmp_path: Path, schema: Schema, settings: dict[str, object]
) -> None:
    run = train_once(tmp_path, schema, **settings)  # type: ignore[arg-type]
    let_quantiles_cross(run)
    export_run(run, int8=True, with_explanations=True)
    model = run.load_config().model
    for kind, deviation in (("fp32", ROUNDING), ("int8", INT8_DEVIATION)):
        path = run.onnx_file(kind)
        sessions = {str(optimized): ForecastSession(path, optimized=optimized) for optimized in (True, False)}
        found = compare(sessions, run, run.load_check_windows(), seconds=0)
        assert found.first.shape[1:] == (model.horizon, len(model.quantiles))
        assert np.abs(found.first - found.reference).max() < deviation
        assert set(found.explanations) == {spec.name for spec in sessions["True"].metadata.outputs()} - {"quantiles"}
        for expected, weights in found.explanations.values():
            assert np.abs(weights - expected).max() < deviation
        for quantiles in (found.reference, found.fp32, *found.file.values()):
            assert (np.diff(quantiles, axis=-1) >= 0).all()


@pytest.mark.parametrize(
    ("changes", "calendar"),
    [
        pytest.param({"static": Columns(real=("size",))}, "", id="static only"),
        pytest.param({"observed": Columns(real=("x0",))}, "", id="observed only"),
        pytest.param({}, "month:category", id="known category only"),
        pytest.param({"observed": Columns(real=tuple(f"x{number}" for number in range(999)))}, "", id="1,000 columns"),
    ],
)
def test_groups_may_be_empty_or_large(tmp_path: Path, changes: dict[str, Columns], calendar: str) -> None:
    schema = LEAST.model_copy(update=changes)
    run = train_once(tmp_path, schema, extra=999, calendar=calendar, history=3, horizon=1, selection_chunk=250)
    assert set(run.load_results().q_risk) >= {"fp32", "qat"}
