"""What the defaults cost beside a plain TFT: CPU time of a training step and of a file's forecast, in turn.

A step is a batch's forward and backward pass, clipping and the optimizer; what goes on between steps is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.data.loading.loader import batches
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.measures import interleaved_medians
from qat_tft.model.loss import loss_of
from qat_tft.runs.build import accelerator_for
from qat_tft.runs.data import load_data_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.optimizer import make_optimizer
from qat_tft.training.steps.step import TrainingStep
from sides.forecast_options import PLAIN
from sides.forecast_ours import trained
from sides.forecast_sets import ForecastSet
from sides.process import qat_tft

Call = Callable[[], object]

BATCHES = (1, 32)
STEP_SECONDS, FILE_SECONDS, LEAST_ROUNDS = 60.0, 20.0, 5
SHORT = ("--epochs", "1", "--batches-per-epoch", "30", "--qat-epochs", "1")
"""How long something takes does not depend on what it has learned; of an option named twice the last one counts."""


@dataclass(frozen=True)
class TimeRatios:
    """CPU time with the defaults over that of a plain TFT: of a training step, and of a forecast by batch."""

    step: float
    file: dict[str, float]


def time_ratios(one: ForecastSet, data: Path, runs: Path) -> TimeRatios | None:
    """Train both shortly on a set, unless the runs are there, and time them in turn; None without a plain one."""
    if not PLAIN:
        return None
    ours = trained(one, data, runs, f"{one.name}-timed", *SHORT)
    plain = trained(one, data, runs, f"{one.name}-plain", *SHORT, *PLAIN.split())
    return TimeRatios(
        step=_ratio(*(training_step(run, run.load_fp32_model()) for run in (ours, plain)), STEP_SECONDS),
        file={f"b{batch}": _ratio(forecast(ours, batch), forecast(plain, batch), FILE_SECONDS) for batch in BATCHES},
    )


def _ratio(ours: Call, plain: Call, seconds: float) -> float:
    calls = {"ours": ours, "plain": plain}
    medians = interleaved_medians(calls, seconds, clock=time.process_time, least=LEAST_ROUNDS)
    return medians["ours"] / medians["plain"]


def training_step(run: RunFolder, model: nn.Module, *, distill: float = 0.0) -> Call:
    """Return what makes a training step of a model of a run, on the same batch each time.

    Args:
        run: whose data and settings hold.
        model: floating-point or quantization-aware.
        distill: weight of the distance to a teacher, for which the model's own forecast stands in.
    """
    config, data = run.load_config(), load_data_of(run)
    training = config.training
    accelerator = accelerator_for(training)
    optimizer = make_optimizer(model, learning_rate=training.learning_rate, weight_decay=training.weight_decay)
    step = TrainingStep(
        accelerator=accelerator,
        model=model,
        scaling=data.preprocessing.scaling(),
        schema=data.schema,
        optimizer=accelerator.prepare_optimizer(optimizer),
        run_segment=runner_for("off"),
        loss=loss_of(config.model.quantiles),
        gradient_clip=training.gradient_clip,
        distill=distill,
    )
    batch = next(iter(batches(data.training, training.batch_size, shuffle=True, seed=0, epoch=0)))
    if distill:
        with torch.no_grad():
            batch = batch._replace(teacher=step.forecast(step.scaled(batch)[0], runner_for("off")).quantiles)
    return lambda: step([batch], place="a timed step")


def forecast(run: RunFolder, batch: int) -> Call:
    """Return what forecasts so many windows with a run's INT8 file, which is exported unless it is there."""
    if not run.onnx_file("int8").exists():
        qat_tft("export", run.name, "--int8", "--runs-dir", str(run.path.parent))
    session, windows = ForecastSession(run.onnx_file("int8"), threads=1), run.load_check_windows()
    inputs = window_inputs(windows, torch.arange(batch) % len(windows.target), session.metadata)
    return lambda: session.forecast(inputs)
