"""What packing the codes of a file changes, which is nothing, and what a quantization-aware step takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import onnx
import torch

from qat_tft.config.quantization import QuantizationConfig
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.measures import interleaved_medians
from qat_tft.export.verify.twin import compare_with_twin
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.folder import RunFolder
from sides.forecast_times import LEAST_ROUNDS, STEP_SECONDS, training_step
from sides.ours_shape import synthetic_step
from sides.process import qat_tft
from sides.workloads import WORKLOADS

WINDOWS = 64
DISTILL = 0.5


def twins_are_equal(runs: Sequence[RunFolder]) -> bool:
    """Export runs with weights of few bits, unless they are, and say whether each file equals its twin in 8 bits."""
    return all(_is_equal(run) for run in runs)


def step_ratio(run: RunFolder) -> float:
    """Return the CPU time of a quantization-aware step with distillation over that of a floating-point step."""
    quantized = run.load_qat_model()
    quantized.set_phase(Phase.QAT)
    calls = {
        "fp32": training_step(run, run.load_fp32_model()),
        "qat": training_step(run, quantized, distill=DISTILL),
    }
    medians = interleaved_medians(calls, STEP_SECONDS, clock=time.process_time, least=LEAST_ROUNDS)
    return medians["qat"] / medians["fp32"]


def peak_ratio() -> float:
    """Return the live tensors of a QAT step with 4 bits over those with 8, everything recomputed, at 225 columns."""
    step = synthetic_step(WORKLOADS["w1"])
    peaks = []
    for bits in ("4", "8"):
        quantization = QuantizationConfig.model_validate({"weight_bits": bits, "products": "integer"})
        peaks.append(replace(step, quantization=quantization)("qat", "full", WORKLOADS["w1"].batch).peak)
    return peaks[0] / peaks[1]


def _is_equal(run: RunFolder) -> bool:
    if not run.integer_file.is_file():
        qat_tft("export", str(run.path), "--int8")
    model, windows = onnx.load(run.integer_file), run.load_check_windows()
    metadata = ForecastSession(run.integer_file, threads=1).metadata
    rows = torch.arange(WINDOWS) % len(windows.target)
    found = compare_with_twin(model, window_inputs(windows, rows, metadata), threads=1)
    return metadata.packed and (found.differing, found.packed, found.missing_products) == (0, 0, 0)
