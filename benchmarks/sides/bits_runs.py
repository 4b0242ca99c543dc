"""Runs of the benchmark of bits: a floating-point model of a set, and what quantizing it leaves of its q-risk."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from qat_tft.quantization.fake_quant import weight_scale
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.weights import ScaledWeightRounding, weight_roundings
from qat_tft.runs.build import configured_qat_model
from qat_tft.runs.calibration import calibrate_on
from qat_tft.runs.data import load_data_of
from qat_tft.runs.folder import RunFolder
from qat_tft.training.outcome import test_scores
from sides.forecast_options import OURS
from sides.forecast_ours import set_options
from sides.forecast_sets import BATCH, ForecastSet
from sides.process import qat_tft

FP32, CONTINUED, PLAIN, BEST, QAT = "fp32", "continued", "ptq_plain", "ptq_best", "qat"

BATCHES, EPOCHS, QAT_EPOCHS = 50, 10, 4
"""Batches of an epoch, floating-point epochs, and quantization-aware epochs."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Quantized:
    """A run at some number of bits.

    Attributes:
        run: its folder.
        q_risk: model to the q-risk of each quantile on the test part.
    """

    run: RunFolder
    q_risk: Mapping[str, Mapping[str, float]]

    def risk(self, model: str) -> float:
        """Return a model's mean over the quantiles."""
        return statistics.fmean(self.q_risk[model].values())


def trained(one: ForecastSet, data: Path, runs: Path, seed: int) -> RunFolder:
    """Return the floating-point run of a set and seed, trained unless it is there."""
    name = f"{one.name}-{seed}"
    if not (runs / name).exists():
        ours = OURS[one.name]
        steps = f"--batch-size {BATCH} --batches-per-epoch {BATCHES} --epochs {EPOCHS} --patience {EPOCHS}"
        options = f"{ours.roles} {ours.choices} {steps} --seed {seed} --name {name} --runs-dir {runs}"
        qat_tft("train", *set_options(one, data), *options.split())
    return RunFolder.open(runs / name)


def quantized(run: RunFolder, bits: int, runs: Path) -> Quantized:
    """Return a run quantized to some bits, trained unless it is there, and the q-risks of all its models."""
    name = f"{run.name}-w{bits}"
    if not (runs / name).exists():
        options = f"--weight-bits {bits} --qat-epochs {QAT_EPOCHS} --qat-control --name {name} --runs-dir {runs}"
        qat_tft("quantize", str(run.path), *options.split())
    found = RunFolder.open(runs / name)
    results = found.load_results().to_json()["q_risk"]
    risks = {
        model: results[kept] for model, kept in ((FP32, "fp32"), (CONTINUED, "continued"), (BEST, "ptq"), (QAT, "qat"))
    }
    return Quantized(found, {**risks, PLAIN: _plain(found)})


def _plain(run: RunFolder) -> dict[str, float]:
    """Return the q-risks of the run's floating-point model calibrated in the plainest way."""
    config, data = run.load_config().with_calibrator("moving-average"), load_data_of(run)
    model = configured_qat_model(run.load_fp32_model(), config.model, config.quantization)
    for module in model.modules():
        for place, rounding in weight_roundings(module).items():
            if isinstance(rounding, ScaledWeightRounding):
                _take_largest(rounding, getattr(module, f"weight{place}"))
    scaling = data.preprocessing.scaling()
    calibrate_on(model, config, data.training, scaling, CPU)
    model.set_phase(Phase.FROZEN)
    scores = test_scores(model.eval(), scaling, data.test, config, CPU)
    return {str(level): float(risk or 0.0) for level, risk in zip(config.model.quantiles, scores.q_risk, strict=True)}


@torch.no_grad()
def _take_largest(rounding: ScaledWeightRounding, weight: nn.Parameter) -> None:
    rounding.log_scale.copy_(weight_scale(weight, rounding.codes).log())
