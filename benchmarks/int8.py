"""What the INT8 file is worth: fidelity, forecast quality, size and speed, beside onnxruntime's own quantization.

    python benchmarks/int8.py [--json] [--data FOLDER] [--runs FOLDER] [--rows N]

Each set is trained, exported and checked by the commands that users have; runs that lie in the folder of runs
already are taken as they are. Without --data the embedded bike rentals and simulated bars of 225 columns are
measured. With it, the folder must hold ett_h1.parquet, vic_electricity.parquet and oxford_man_volatility.parquet
(docs/examples.md and docs/data.md say where they come from). Selection networks are exact and products on integers.
One thread; timed comparisons are interleaved.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in every process started from here

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from plain_tft import PlainTFT

from qat_tft.data.windows import Batch
from qat_tft.export.build.contract import RawForecaster, example_inputs
from qat_tft.export.inference.session import ForecastSession, session_options
from qat_tft.export.metadata import OUTPUT, ModelMetadata
from qat_tft.export.verify.compare import window_inputs
from qat_tft.export.verify.measures import interleaved_medians, spread_order, sqnr_db
from qat_tft.model.loss import q_risk
from qat_tft.runs.data import load_data
from qat_tft.runs.folder import RunFolder

Inputs = dict[str, npt.NDArray[Any]]

SCHEMAS = Path(__file__).parent.parent / "examples"
WIDE = "tft225"
BATCHES = (1, 32)
CALIBRATION_WINDOWS = 256
TIMING_SECONDS = 20.0
PRODUCTS = ["MatMul", "Gemm"]
STATIC, STATIC_ALL, DYNAMIC = "quantize_static of products", "quantize_static", "quantize_dynamic"
BASELINES = (STATIC, STATIC_ALL, DYNAMIC)


@dataclass(frozen=True)
class DataSet:
    """One set: its file, none for the embedded bike rentals, and how it is trained."""

    name: str
    file: str | None
    options: str


QAT = "--use-qat --use-gradient-checkpointing --selection exact --products integer"
SMALL = f"--hidden 16 {QAT}"
SETS = (
    DataSet("demo", None, QAT),
    DataSet(
        WIDE,
        f"{WIDE}.parquet",
        "--history 50 --horizon 10 --hidden 128 --batch-size 32 --epochs 1 --batches-per-epoch 30 --qat-epochs 1 "
        f"{QAT}",
    ),
    DataSet(
        "ett_h1",
        "ett_h1.parquet",
        "--validation-from 2017-06-26 --test-from 2017-10-24 --history 168 --horizon 24 --dropout 0.3 --epochs 8 "
        f"--batches-per-epoch 60 --hidden 32 {QAT}",
    ),
    DataSet(
        "vic_electricity",
        "vic_electricity.parquet",
        "--time time --target demand --id series_id --known holiday:category --observed temperature "
        "--calendar hour,day_of_week:category --validation-from 2014-07-01 --test-from 2014-10-01 --history 96 "
        f"--horizon 48 --epochs 10 --batches-per-epoch 100 {SMALL}",
    ),
    DataSet(
        "oxford_man_volatility",
        "oxford_man_volatility.parquet",
        "--validation-from 2016-01-01 --test-from 2018-01-01 --history 66 --horizon 5 --dropout 0.2 --season 1 "
        f"--epochs 6 --batches-per-epoch 200 {SMALL}",
    ),
)


@dataclass(frozen=True)
class Measured:
    """One set: what `qat-tft check` found, what onnxruntime's own quantization gives, and seconds of the export."""

    report: dict[str, Any]
    baselines: dict[str, dict[str, Any]]
    export_seconds: float


def main() -> None:
    """Train what is not there yet, measure and print."""
    arguments = _arguments()
    ort.set_default_logger_severity(4)  # what fails is in the result
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # onnxruntime divides by ranges of zero width
    runs = Path(arguments.runs)
    runs.mkdir(parents=True, exist_ok=True)
    found = {}
    for one in SETS:
        file = _file_of(one, runs, arguments)
        if one.file is None or file is not None:
            found[one.name] = measure(one, file, runs)
    result = figures(found, plain_speedup(RunFolder.open(runs / WIDE)))
    print(json.dumps(result, indent=2) if arguments.json else "\n".join(_tables(result)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of Markdown")
    parser.add_argument("--data", help="folder of the sets that are not part of qat-tft")
    parser.add_argument("--runs", default="runs/int8-benchmark", help="folder of the runs (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the simulated bars (default: %(default)s)")
    return parser.parse_args()


def _file_of(one: DataSet, runs: Path, arguments: argparse.Namespace) -> Path | None:
    """Return the set's Parquet file, simulated where it is the wide one; None where it is not to be had."""
    if one.name == WIDE:
        path = runs / f"{WIDE}.parquet"
        if not path.exists():
            _command("sample-data", "--preset", WIDE, "--rows", str(arguments.rows), "--out", str(path))
        return path
    return Path(arguments.data) / one.file if arguments.data and one.file else None


def measure(one: DataSet, file: Path | None, runs: Path) -> Measured:
    """Train a set unless its run is there, export and check it, and quantize its FP32 file with onnxruntime."""
    where = ("--runs-dir", str(runs))
    if not (runs / one.name).exists():
        schema = SCHEMAS / f"{one.name}.toml"
        named = () if file is None else ("--parquet-file", str(file))
        roles = ("--schema", str(schema)) if schema.exists() else ()
        _command("train", *named, *roles, "--name", one.name, *where, *one.options.split())
    start = time.monotonic()
    _command("export", one.name, "--int8", *where)
    seconds = time.monotonic() - start
    report = json.loads(_command("check", "--run", one.name, *where, "--seconds", "60", "--json"))
    run = RunFolder.open(runs / one.name)
    return Measured(report, {name: baseline(name, run) for name in BASELINES}, seconds)


def _command(*words: str) -> str:
    print("qat-tft", *words, file=sys.stderr)
    program = Path(sys.executable).with_name("qat-tft")
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode and words[0] != "check":  # a check that fails has a report too
        raise SystemExit(f"qat-tft {words[0]} ended with exit code {done.returncode}")
    return done.stdout


class _Windows(CalibrationDataReader):
    """Training windows, one block after the other, as onnxruntime's calibration asks for them."""

    def __init__(self, blocks: Iterator[Inputs]) -> None:
        self._blocks = blocks

    def get_next(self) -> Inputs | None:
        return next(self._blocks, None)


def baseline(name: str, run: RunFolder) -> dict[str, Any]:
    """Quantize the run's FP32 file with onnxruntime and return its quality, bytes and latency beside that file's.

    Weights have 7 bits, as CPUs without VNNI need, and with static quantization a scale per channel; dynamic
    quantization writes batched products per channel that do not run. Activations are unsigned. Static quantization
    rounds the categories' codes as well, if it is not told to keep to products.
    """
    print(f"onnxruntime's {name} of {run.onnx_file('fp32')}", file=sys.stderr)
    metadata = ForecastSession(run.onnx_file("fp32")).metadata
    with tempfile.TemporaryDirectory() as folder:
        shaped, quantized = Path(folder) / "shaped.onnx", Path(folder) / "quantized.onnx"
        options = {"reduce_range": True, "weight_type": QuantType.QInt8}
        try:
            quant_pre_process(str(run.onnx_file("fp32")), str(shaped), skip_symbolic_shape=True)
            if name == DYNAMIC:
                quantize_dynamic(str(shaped), str(quantized), **options)
            else:
                reader = _Windows(_training_blocks(run, metadata))
                form = {"quant_format": QuantFormat.QDQ, "per_channel": True}
                kinds = PRODUCTS if name == STATIC else None
                quantize_static(str(shaped), str(quantized), reader, op_types_to_quantize=kinds, **form, **options)
            return _quality(quantized, run, metadata)
        except Exception as failure:  # theirs, of any kind; it is the result
            return {"failure": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}


def _training_blocks(run: RunFolder, metadata: ModelMetadata) -> Iterator[Inputs]:
    config = run.load_config()
    data = load_data(config.data, config.model, run.load_schema(), preprocessing=run.load_preprocessing())
    chosen = torch.from_numpy(spread_order(len(data.training))[:CALIBRATION_WINDOWS])
    for rows in chosen.split(BATCHES[-1]):
        windows = data.training.gather(rows)
        yield window_inputs(windows, torch.arange(len(rows)), metadata)


def _quality(path: Path, run: RunFolder, metadata: ModelMetadata) -> dict[str, Any]:
    windows = run.load_check_windows()
    fp32, file = (_session(one) for one in (run.onnx_file("fp32"), path))
    rows = torch.from_numpy(spread_order(len(windows.target)))
    answers = [[session(window_inputs(windows, part, metadata)) for session in (fp32, file)] for part in rows.split(64)]
    reference, found = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    risks = q_risk(torch.from_numpy(found), windows.target[rows], metadata.quantiles).tolist()
    return {
        "sqnr_to_fp32_db": sqnr_db(reference, found),
        "q_risk": dict(zip(map(str, metadata.quantiles), risks, strict=True)),
        "bytes": path.stat().st_size,
        "latency_ms": _latencies({"fp32": fp32, "int8": file}, windows, metadata),
    }


def _session(path: Path) -> Callable[[Inputs], npt.NDArray[np.float32]]:
    session = ort.InferenceSession(str(path), session_options(optimized=True, threads=1), ["CPUExecutionProvider"])
    return lambda inputs: session.run([OUTPUT], inputs)[0]


def _latencies(
    sessions: Mapping[str, Callable[[Inputs], object]], windows: Batch, metadata: ModelMetadata
) -> dict[str, dict[str, float]]:
    medians: dict[str, dict[str, float]] = {name: {} for name in sessions}
    for batch in BATCHES:
        inputs = window_inputs(windows, torch.arange(batch) % len(windows.target), metadata)
        timed = {name: partial(session, inputs) for name, session in sessions.items()}
        for name, median in interleaved_medians(timed, TIMING_SECONDS / len(BATCHES)).items():
            medians[name][str(batch)] = median
    return medians


def plain_speedup(run: RunFolder) -> dict[str, Any]:
    """Time the run's INT8 file against an ordinary export of the same model with plain selection networks."""
    print("Exporting the plain model", file=sys.stderr)
    metadata = ForecastSession(run.onnx_file("fp32")).metadata
    scaling, windows = run.load_preprocessing().scaling(), run.load_check_windows()
    plain = RawForecaster(PlainTFT.of(run.load_fp32_model()), scaling, metadata).eval()
    specs = metadata.inputs()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.onnx"
        batch = torch.export.Dim("batch", min=1)
        torch.onnx.export(
            plain,
            example_inputs(specs, 3),
            str(path),
            input_names=[spec.name for spec in specs],
            output_names=[OUTPUT],
            dynamic_shapes={"inputs": tuple({0: batch} for _ in specs)},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        sessions = {name: _session(one) for name, one in (("plain", path), ("int8", run.onnx_file("int8")))}
        size = path.stat().st_size
    inputs = window_inputs(windows, torch.arange(3), metadata)
    ours = _session(run.onnx_file("fp32"))(inputs)
    agreement = sqnr_db(ours, sessions["plain"](inputs))
    latency = _latencies(sessions, windows, metadata)
    return {"bytes": size, "latency_ms": latency, "sqnr_to_our_fp32_db": agreement}


def figures(found: Mapping[str, Measured], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that were asked for, and what they come from."""
    reports = {name: one.report for name, one in found.items()}
    wide = found[WIDE]
    return {
        "sqnr_db": {name: report["sqnr_db"] for name, report in reports.items()},
        "layer_max_steps": max(report["layer_max_steps"] for report in reports.values()),
        "layer_off": max(max(report["layer_off"].values()) for report in reports.values()),
        "saturating_products": max(report["saturating_products"] for report in reports.values()),
        "q_risk_ratio": {name: _ratios(report["q_risk"]["int8"], report) for name, report in reports.items()},
        "ptq_q_risk_ratio": {
            name: _ratios(one.baselines[STATIC].get("q_risk"), one.report) for name, one in found.items()
        },
        "file_ratio": wide.report["bytes"]["int8_file"] / wide.report["bytes"]["fp32_file"],
        "speedup_own": _speedup(wide.report["latency_ms"], "fp32"),
        "speedup_plain": _speedup(plain["latency_ms"], "plain"),
        "export_seconds": wide.export_seconds,
        "speedup_by_set": {name: _speedup(report["latency_ms"], "fp32") for name, report in reports.items()},
        "int8_against_fp32": {name: _against_fp32(one) for name, one in found.items()},
        "plain": dict(plain),
        "baselines": {name: one.baselines for name, one in found.items()},
    }


def _against_fp32(one: Measured) -> dict[str, Any]:
    """Return q-risk, bytes and speed of our file and of onnxruntime's, each as a ratio to the FP32 file."""
    report = one.report
    sizes = report["bytes"]

    def against(risks: Mapping[str, float], size: int, latency: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        return {
            "q_risk": _ratios(risks, report),
            "bytes": size / sizes["fp32_file"],
            "speedup": _speedup(latency, "fp32"),
        }

    theirs = {
        name: row if "failure" in row else against(row["q_risk"], row["bytes"], row["latency_ms"])
        for name, row in one.baselines.items()
    }
    return {"qat-tft": against(report["q_risk"]["int8"], sizes["int8_file"], report["latency_ms"]), **theirs}


def _ratios(risks: Mapping[str, float] | None, report: Mapping[str, Any]) -> dict[str, float] | None:
    fp32 = report["q_risk"]["fp32"]
    return None if risks is None else {quantile: risk / fp32[quantile] for quantile, risk in risks.items()}


def _speedup(latency: Mapping[str, Mapping[str, float]], slow: str) -> dict[str, float]:
    return {f"b{batch}": latency[slow][str(batch)] / latency["int8"][str(batch)] for batch in BATCHES}


def _tables(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| set | SQNR optimized / not, dB | q-risk INT8 / FP32 | the same, static PTQ | time FP32 / INT8, b1, b32 |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, ratio in result["sqnr_db"].items():
        cells = (
            f"{ratio['optimized']:.1f} / {ratio['unoptimized']:.1f}",
            _numbers(result["q_risk_ratio"][name]),
            _numbers(result["ptq_q_risk_ratio"][name]),
            _numbers(result["speedup_by_set"][name], 2),
        )
        yield f"| {name} | {' | '.join(cells)} |"
    yield from (
        "",
        "| set | quantized by | q-risk / FP32, worst quantile | bytes / FP32 | time FP32 / it, batch 1, 32 |",
    )
    yield "| --- | --- | ---: | ---: | ---: |"
    for name, rows in result["int8_against_fp32"].items():
        for by, row in rows.items():
            yield f"| {name} | {by} | {_cells(row)} |"
    yield from ("", "| figure | key | asked for | reached |", "| --- | --- | ---: | ---: |")
    for what, key, asked, reached in _asked(result):
        yield f"| {what} | `{key}` | {asked} | {reached:.4g} |"


def _cells(row: Mapping[str, Any]) -> str:
    if "failure" in row:
        return f"{row['failure'][:60]}... | |"
    return f"{max(row['q_risk'].values()):.3f} | {row['bytes']:.2f} | {_numbers(row['speedup'], 2)}"


def _asked(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float]]:
    """Yield what was asked for, its key, the bound and what is reached: the worst of several."""
    trained = [
        name for name in result["q_risk_ratio"] if name in ("ett_h1", "vic_electricity", "oxford_man_volatility")
    ]
    yield (
        "lowest SQNR against the QAT model, dB",
        "sqnr_db",
        "at least 45",
        min(value for ratio in result["sqnr_db"].values() for value in ratio.values()),
    )
    yield "largest difference of a layer, steps", "layer_max_steps", "at most 1", result["layer_max_steps"]
    yield "values of layers that differ", "layer_off", "less than 1e-4", result["layer_off"]
    yield "products that could saturate", "saturating_products", "0", result["saturating_products"]
    for name in trained:
        worst = max(result["q_risk_ratio"][name].values())
        yield f"q-risk INT8 / FP32, {name}, worst quantile", "q_risk_ratio", "at most 1.005", worst
        ptq = result["ptq_q_risk_ratio"][name]
        if ptq is not None:
            ratio = sum(result["q_risk_ratio"][name].values()) / sum(ptq.values())
            yield f"q-risk ours / static PTQ, {name}, mean", "ptq_q_risk_ratio", "below 1", ratio
    yield f"bytes INT8 / FP32, {WIDE}", "file_ratio", "at most 0.28", result["file_ratio"]
    for key, what, bounds in (
        ("speedup_own", "time FP32 / INT8", (1.3, 1.15)),
        ("speedup_plain", "time of a plain FP32 export / INT8", (2.5, 1.9)),
    ):
        for batch, bound in zip(BATCHES, bounds, strict=True):
            yield f"{what}, {WIDE}, batch {batch}", key, f"at least {bound}", result[key][f"b{batch}"]
    for batch, value in result["speedup_by_set"].get("ett_h1", {}).items():
        yield f"time FP32 / INT8, ett_h1, batch {batch[1:]}", "speedup_by_set", "at least 1", value
    yield f"export of {WIDE}, s", "export_seconds", "less than 60", result["export_seconds"]


def _numbers(values: Mapping[str, float] | None, digits: int = 3) -> str:
    return "failed" if values is None else ", ".join(f"{value:.{digits}f}" for value in values.values())


if __name__ == "__main__":
    main()
