"""Our models on a set: trained through the commands that users have, scored on the windows that all models forecast.

A run that lies in the folder of runs already is taken as it is. N windows, F horizon, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from qat_tft.data.windows import Windows
from qat_tft.evaluation.window_forecasts import batches_at, forecast_windows
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.build import configured_qat_model
from qat_tft.runs.calibration import calibrate_on
from qat_tft.runs.data import RunData, load_data_of
from qat_tft.runs.folder import RunFolder
from sides.forecast_options import OURS
from sides.forecast_rows import Column, Ints, Rows
from sides.forecast_scores import Score, score
from sides.forecast_sets import QUANTILES, ForecastSet
from sides.process import qat_tft

ROLES = Path(__file__).resolve().parents[2] / "examples"
FORECAST_BATCH = 256
CPU = torch.device("cpu")

FP32, PTQ, QAT, INT8 = "fp32", "ptq", "qat", "int8"
"""The floating-point model, the same calibrated only, the quantization-aware model, and its file."""


@dataclass(frozen=True)
class Scorable:
    """A run with its data and where the scored windows stand among its test windows, in the order of the rows."""

    run: RunFolder
    data: RunData
    rows: Rows
    places: Tensor

    @classmethod
    def of(cls, run: RunFolder, rows: Rows) -> Scorable:
        """Read the data of a run and find the windows.

        Raises:
            ValueError: its rows are not those of the set, or a window is missing.
        """
        data = load_data_of(run)
        if not np.array_equal(data.panel.target.numpy(), rows.target.astype(np.float32)):
            raise ValueError(f"the run {run.name} holds other targets than {rows.of.name}")
        return cls(run, data, rows, torch.from_numpy(places_of(rows.scored, first_rows(data.test))))

    def model(self, model: nn.Module) -> Score:
        """Score a model in torch."""
        found = forecast_windows(
            model, self.data.preprocessing.scaling(), self.data.test, self.places, batch_size=FORECAST_BATCH, device=CPU
        )
        return score(self.rows, found.quantiles.numpy())

    def file(self, path: Path) -> Score:
        """Score an ONNX file."""
        session = ForecastSession(path, threads=1)
        batches = batches_at(self.data.test, self.places, FORECAST_BATCH, CPU)
        asked = (window_inputs(batch, torch.arange(len(batch.target)), session.metadata) for batch in batches)
        return score(self.rows, np.concatenate([session.forecast(inputs) for inputs in asked]))

    def calibrated(self) -> nn.Module:
        """Return the floating-point model quantized without training: calibrated on the run's batches."""
        config = self.run.load_config()
        model = configured_qat_model(self.run.load_fp32_model(), config.model, config.quantization)
        calibrate_on(model, config, self.data.training, self.data.preprocessing.scaling(), CPU)
        model.set_phase(Phase.FROZEN)
        return model.eval()


def our_scores(rows: Rows, data: Path, runs: Path, seed: int) -> dict[str, Score]:
    """Return the score of each of our models from one seed."""
    run = trained(rows.of, data, runs, f"{rows.of.name}-{seed}", "--seed", str(seed))
    if not run.onnx_file("int8").exists():
        qat_tft("export", run.name, "--int8", "--runs-dir", str(runs))
    scorable = Scorable.of(run, rows)
    scores: dict[str, Callable[[], Score]] = {
        FP32: lambda: scorable.model(run.load_fp32_model()),
        PTQ: lambda: scorable.model(scorable.calibrated()),
        QAT: lambda: scorable.model(run.load_qat_model()),
        INT8: lambda: scorable.file(run.onnx_file("int8")),
    }
    return {name: find() for name, find in scores.items()}


def trained(one: ForecastSet, data: Path, runs: Path, name: str, *more: str) -> RunFolder:
    """Return a run of a set, trained with these options beside those of the table unless it is there."""
    if not (runs / name).exists():
        where = ("--name", name, "--runs-dir", str(runs))
        qat_tft("train", *set_options(one, data), *options_of(one), *more, *where)
    return RunFolder.open(runs / name)


def set_options(one: ForecastSet, data: Path) -> list[str]:
    """Return the options that name the set's file, roles, split and windows."""
    roles = ROLES / f"{one.name}.toml"
    split = {"validation-from": one.validation_from, "test-from": one.test_from, "test-until": one.test_until}
    shape = {"history": one.history, "horizon": one.horizon, "hidden": one.hidden, "season": one.season}
    named = {
        "parquet-file": data / f"{one.name}.parquet",
        "schema": roles if OURS[one.name].schema and roles.exists() else None,
        **split,
        **shape,
    }
    named["quantiles"] = ",".join(map(str, QUANTILES))
    return [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]


def options_of(one: ForecastSet) -> list[str]:
    """Return the options of the table for a set."""
    ours = OURS[one.name]
    return f"{ours.roles} {ours.choices} {ours.training}".split()


def first_rows(windows: Windows) -> Ints:
    """Return the first target row of every window, [N]."""
    rows: Ints = windows.target_rows(torch.arange(len(windows)))[:, 0].numpy()
    return rows


def places_of(wanted: Column, offered: Column) -> Ints:
    """Return where each wanted number stands among those offered, which ascend.

    Raises:
        ValueError: one is not offered.
    """
    places = np.searchsorted(offered, wanted)
    if not np.array_equal(offered[np.minimum(places, len(offered) - 1)], wanted):
        raise ValueError("some windows to score are none of the run's test windows")
    return places.astype(np.int64)
