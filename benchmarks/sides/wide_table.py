"""One wide model in three forms: accurate, small and fast at once?

Simulated bars of 225 columns, of which the traded volume is forecast: it has hours and days that can be learned, which
prices do not have. One model is trained in floating point, and quantized to 8 and to 4 bits.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from int8 import STATIC, baseline

from qat_tft.data.sample.samples import simulated_schema
from qat_tft.evaluation.names import SIMPLE
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.measures import interleaved_medians
from qat_tft.runs.folder import RunFolder
from sides.process import qat_tft

NAME, EXACT = "wide", "wide-exact"
TARGET, ROWS = "volume", 20_000
SHAPE = "--hidden 128 --history 50 --horizon 10 --season 276 --target-transform log"
TRAINING = "--batch-size 64 --batches-per-epoch 60 --epochs 5 --learning-rate 1e-3 --validation 0.15 --test 0.15"
QUANTIZED = "--qat-epochs 1"
BATCHES, SECONDS = (1, 32), 30.0


def wide_figures(runs: Path) -> dict[str, Any]:
    """Train the models unless they are there, export and check them; return `file_ratio`, `speedup` and `wide`."""
    run, four, exact = _runs(runs)
    reports = {8: _checked(run), 4: _checked(four)}
    files = {
        "exact_fp32": exact.onnx_file("fp32"),
        "fp32": run.onnx_file("fp32"),
        "int8": run.onnx_file("int8"),
        "int4": four.onnx_file("int4"),
    }
    sizes = {name: path.stat().st_size for name, path in files.items()}
    medians = _medians(files, run)
    results = run.load_results()
    risks = {bits: _over_fp32(report["q_risk"], "int8") for bits, report in reports.items()}
    simple = [_best(results.q_risk[one]) for one in SIMPLE if one in results.q_risk]
    static = baseline(STATIC, run)
    return {
        "file_ratio": sizes["int4"] / sizes["exact_fp32"],
        "speedup": {f"b{batch}": medians[batch]["exact_fp32"] / medians[batch]["int4"] for batch in BATCHES},
        "wide": {
            "fp32_over_best_simple": _best(results.q_risk["fp32"]) / min(simple),
            "int8_over_fp32": risks[8],
            "int4_over_fp32": risks[4],
            "static_over_fp32": _mean(static["q_risk"]) / _mean(reports[8]["q_risk"]["fp32"]),
            "int4_time_over_int8": {f"b{batch}": medians[batch]["int4"] / medians[batch]["int8"] for batch in BATCHES},
            "bytes": sizes,
            "milliseconds": {f"b{batch}": medians[batch] for batch in BATCHES},
            "passed": all(report["passed"] for report in reports.values()),
        },
    }


def _runs(runs: Path) -> tuple[RunFolder, RunFolder, RunFolder]:
    runs.mkdir(parents=True, exist_ok=True)
    data, schema = runs / "wide.parquet", runs / "wide.toml"
    if not data.exists():
        qat_tft("sample-data", "--preset", "tft225", "--rows", str(ROWS), "--out", str(data), "--overwrite")
    schema.write_text(_schema_text())
    given = ("--parquet-file", str(data), "--schema", str(schema), *SHAPE.split())
    where = ("--runs-dir", str(runs), "--name")
    if not (runs / NAME).exists():
        qat_tft("train", *given, *TRAINING.split(), "--use-qat", *QUANTIZED.split(), *where, NAME)
    if not (runs / f"{NAME}-w4").exists():
        qat_tft("quantize", str(runs / NAME), "--weight-bits", "4", *QUANTIZED.split(), *where, f"{NAME}-w4")
    if not (runs / EXACT).exists():
        qat_tft("train", *given, *TRAINING.split(), "--epochs", "0", "--selection", "exact", *where, EXACT)
        qat_tft("export", str(runs / EXACT))
    run, four, exact = (RunFolder.open(runs / name) for name in (NAME, f"{NAME}-w4", EXACT))
    return run, four, exact


def _schema_text() -> str:
    schema = simulated_schema()
    observed = tuple(name for name in (schema.target, *schema.observed.real) if name != TARGET)
    roles = {"target": TARGET, "observed": schema.observed.model_copy(update={"real": observed})}
    return schema.model_copy(update=roles).to_toml()


def _checked(run: RunFolder) -> dict[str, Any]:
    if not run.integer_file.is_file():
        qat_tft("export", str(run.path), "--int8")
    program = Path(sys.executable).with_name("qat-tft")
    words = [program, "check", str(run.integer_file), "--seconds", "60", "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout)
    return found


def _medians(files: Mapping[str, Path], run: RunFolder) -> dict[int, dict[str, float]]:
    windows = run.load_check_windows()
    sessions = {name: ForecastSession(path, threads=1) for name, path in files.items()}
    found = {}
    for batch in BATCHES:
        rows = torch.arange(batch) % len(windows.target)
        calls = {
            name: partial(session.forecast, window_inputs(windows, rows, session.metadata))
            for name, session in sessions.items()
        }
        found[batch] = interleaved_medians(calls, SECONDS)
    return found


def _over_fp32(risks: Mapping[str, Mapping[str, float]], model: str) -> float:
    return _mean(risks[model]) / _mean(risks["fp32"])


def _mean(risks: Mapping[str, float]) -> float:
    return statistics.fmean(risks.values())


def _best(risks: tuple[float | None, ...]) -> float:
    return statistics.fmean(risk for risk in risks if risk is not None)
