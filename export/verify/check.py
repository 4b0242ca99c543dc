"""Is an exported file the model that was validated? Its contract first, then its values, its size, its speed."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch

from qat_tft.data.windows import Batch
from qat_tft.errors import OnnxFileError, RunFolderError
from qat_tft.export.build.export_report import reasons_to_names
from qat_tft.export.build.graph_rules import quantized_constants, unchanged_bytes, weight_bytes
from qat_tft.export.build.run_export import weights_fingerprint
from qat_tft.export.inference.session import ForecastSession, Signature
from qat_tft.export.metadata import OUTPUT, ModelMetadata
from qat_tft.export.verify.check_report import CheckReport, Thresholds
from qat_tft.export.verify.compare import LARGE_BATCH, Array, Comparison, compare, window_inputs
from qat_tft.export.verify.layers import layer_reports, most_windows
from qat_tft.export.verify.measures import crossings, interleaved_medians, largest_steps, spread_order, sqnr_db
from qat_tft.export.verify.operators import Operators, operators_of
from qat_tft.export.verify.output_step import Steps, output_step
from qat_tft.export.verify.runtimes import ROWS as OTHER_ROWS
from qat_tft.export.verify.runtimes import OtherRuntime, other_runtimes
from qat_tft.export.verify.saturation import saturation
from qat_tft.model.loss import q_risk
from qat_tft.quantization.prepare import LEFT_OUT
from qat_tft.quantization.scheme import scheme_for
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder

HEAD = "head"  # the last layer; where it stays float, the network's output has no quantization step
THREADS = 1  # one thread is what a latency can be compared by
_TIMED_BATCHES = (1, 32)
_TIMING_SECONDS = 4.0


def find_export(run: RunFolder) -> Path:
    """The file of a run that a check is about: the INT8 one, or the FP32 one where there is no other.

    Raises:
        OnnxFileError: the run was not exported yet.
    """
    for file in (run.onnx_file("int8"), run.onnx_file("fp32")):
        if file.is_file():
            return file
    raise OnnxFileError(
        "this run has no ONNX file yet", where=str(run.path), next_step="`qat-tft export --int8` writes it."
    )


def check_model(
    path: Path, run: RunFolder | None = None, *, seconds: float = 10.0, thresholds: Thresholds | None = None
) -> CheckReport:
    """Check a file against the run that it was exported from, and leave ``check.json`` in the run folder.

    Args:
        path: the ONNX file.
        run: its run folder; by default the folder that holds the file.
        seconds: after about this time no further block of 64 windows is compared; the first always is.
        thresholds: what the file must reach.

    Raises:
        OnnxFileError: the file is missing, damaged, not ours or of a later version.
        RunFolderError: the run folder is missing, damaged or not ours.
    """
    start = time.monotonic()
    file = ForecastSession(path, threads=THREADS)
    run = run or _run_around(path)
    broken = (*_contract_breaches(file), *_run_breaches(file.metadata, run))
    if broken:  # the values of a file with another contract mean nothing
        report = CheckReport(path, file.metadata.kind, file.metadata.target, broken)
    else:
        report = _measured(file, run, seconds, thresholds or Thresholds(), start)
    run.write_check(report.to_json())
    return report


def _run_around(path: Path) -> RunFolder:
    try:
        return RunFolder.open(path.resolve().parent)
    except RunFolderError as error:
        raise RunFolderError(
            "the file does not lie in a run folder",
            where=str(path),
            next_step=f"Name the run that it was exported from with --run ({error.what}).",
        ) from None


def _contract_breaches(file: ForecastSession) -> Iterator[str]:
    inputs, outputs = file.signature()
    promised: Signature = {spec.name: (spec.dtype, spec.shape) for spec in file.inputs}
    answer: Signature = {OUTPUT: ("float32", file.metadata.output_shape())}
    yield from _differences("input", promised, inputs)
    yield from _differences("output", answer, outputs)


def _differences(side: str, wanted: Signature, found: Signature) -> Iterator[str]:
    if list(wanted) != list(found):
        yield f"the {side}s are called {', '.join(found)} instead of {', '.join(wanted)}"
        return
    for name, (dtype, shape) in wanted.items():
        if found[name] != (dtype, shape):
            yield f"{side} {name} is {found[name]} instead of {(dtype, shape)}"


def _run_breaches(metadata: ModelMetadata, run: RunFolder) -> Iterator[str]:
    if metadata.schema != run.load_effective_schema():
        yield f"the file was exported from another run than {run.path}: its schema differs"
    elif metadata.weights != weights_fingerprint(run, metadata.kind):
        yield f"the weights in {run.path} are not those the file was made from: export it again"
    elif metadata.kind == "int8":
        left_out = {name for name, reason in metadata.float_layers if reason == LEFT_OUT}
        if left_out != set(run.load_config().quantization.float_layers):
            yield f"the file leaves other layers in floating point than quantization.float_layers of {run.path} says"


def _measured(file: ForecastSession, run: RunFolder, seconds: float, limits: Thresholds, start: float) -> CheckReport:
    metadata, int8 = file.metadata, file.metadata.kind == "int8"
    graph = onnx.load(file.path)
    fp32_file = run.onnx_file("fp32") if int8 else file.path
    windows = run.load_check_windows()
    compared = compare(file, run, windows, seconds)
    operators = operators_of(file.path) if int8 else Operators({}, {})
    report = CheckReport(
        model=file.path,
        kind=metadata.kind,
        target=metadata.target,
        reasons=(),
        lstm=metadata.lstm,
        rows=compared.rows,
        threads=THREADS,
        **_accuracy(compared, output_step(graph) if HEAD in metadata.quantized_layers else None),
        q_risk=_risks(compared, metadata),
        quantile_crossings=crossings(compared.optimized),
        bytes=_bytes(file.path, fp32_file, graph, int8),
        integer_ops=operators.integer,
        float_products=operators.floating,
        float_layers=reasons_to_names(metadata.float_layers),
        saturating_products=saturation(graph).saturating if int8 else None,
        **(_layers(graph, file, run, windows) if int8 else {}),
        runtimes=_runtimes(graph, file, windows, compared),
        latency_ms=_latency(file, fp32_file, windows),
        thresholds=limits,
        seconds=round(time.monotonic() - start, 2),
    )
    return replace(report, reasons=tuple(breaches(report)))


def _accuracy(compared: Comparison, step: Steps | None) -> dict[str, Any]:
    units = compared.units
    reference, optimized = units(compared.reference), units(compared.optimized)
    unoptimized = units(compared.unoptimized)
    small = {size: units(forecasts) for size, forecasts in compared.small.items()}

    def steps(first: Array, second: Array) -> float | None:
        return None if step is None else largest_steps(first - second[: len(first)], step)

    return {
        "sqnr_db": {
            "optimized": sqnr_db(reference, optimized),
            "unoptimized": sqnr_db(reference, unoptimized),
        },
        "sqnr_by_batch": {
            **{str(size): sqnr_db(reference[: len(part)], part) for size, part in small.items()},
            str(LARGE_BATCH): sqnr_db(reference, optimized),
        },
        "max_error_steps": steps(optimized, reference),
        "optimization_steps": steps(optimized, unoptimized),
        "batch_steps": None if step is None else max(steps(part, optimized) or 0.0 for part in small.values()),
        "batch_mates_change": compared.batch_mates_change,
    }


def _layers(graph: onnx.ModelProto, file: ForecastSession, run: RunFolder, windows: Batch) -> dict[str, Any]:
    qat = run.load_qat_model()
    rows = torch.from_numpy(spread_order(len(windows.target)))[: most_windows(qat)]
    layers = layer_reports(graph, qat, window_inputs(windows, rows, file.metadata), threads=THREADS)
    found = {layer.name for layer in layers}
    return {
        "layers": layers,
        "missing_layers": tuple(name for name in qat.quantized_layers() if name not in found),
        "quantized_constants": tuple(quantized_constants(graph)),
    }


def _runtimes(
    graph: onnx.ModelProto, file: ForecastSession, windows: Batch, compared: Comparison
) -> tuple[OtherRuntime, ...]:
    rows = torch.from_numpy(spread_order(len(windows.target)))[:OTHER_ROWS]  # the first that were compared
    inputs = window_inputs(windows, rows, file.metadata)
    return other_runtimes(graph, inputs, compared.reference[: len(rows)], compared.units)


def _risks(compared: Comparison, metadata: ModelMetadata) -> dict[str, dict[str, float | None] | None]:
    def by_quantile(forecasts: Array) -> dict[str, float | None]:
        risks = q_risk(torch.from_numpy(forecasts), compared.target, metadata.quantiles).tolist()
        return {
            str(quantile): risk if math.isfinite(risk) else None
            for quantile, risk in zip(metadata.quantiles, risks, strict=True)
        }

    if metadata.kind == "fp32":
        return {"fp32": by_quantile(compared.optimized), "qat": None, "int8": None}
    forecasts = {"fp32": compared.fp32, "qat": compared.reference, "int8": compared.optimized}
    return {model: by_quantile(values) for model, values in forecasts.items()}


def _bytes(path: Path, fp32_file: Path, graph: onnx.ModelProto, int8: bool) -> dict[str, int | None]:
    weights = weight_bytes(graph)
    return {
        "fp32_file": fp32_file.stat().st_size if fp32_file.is_file() else None,
        "int8_file": path.stat().st_size if int8 else None,
        "int8_weights": weights.int8,
        "float_weights": weights.floating,
        "unchanged": unchanged_bytes(graph),
    }


def _latency(file: ForecastSession, fp32_file: Path, windows: Batch) -> dict[str, dict[str, float] | None]:
    # Sessions of the same age: one that has run large batches keeps its memory spread wide and is slower at batch 1.
    paths: dict[str, Path] = {file.metadata.kind: file.path}
    if file.metadata.kind == "int8" and fp32_file.is_file():
        paths["fp32"] = fp32_file
    sessions = {kind: ForecastSession(path, threads=THREADS) for kind, path in paths.items()}
    medians: dict[str, dict[str, float]] = {kind: {} for kind in sessions}
    for batch in _TIMED_BATCHES:
        rows = torch.arange(batch) % len(windows.target)
        inputs = window_inputs(windows, rows, file.metadata)
        timed = {kind: partial(session.forecast, inputs) for kind, session in sessions.items()}
        for kind, median in interleaved_medians(timed, _TIMING_SECONDS).items():
            medians[kind][str(batch)] = round(median, 3)
    return {kind: medians.get(kind) for kind in ("fp32", "int8")}


def breaches(report: CheckReport) -> Iterator[str]:
    """Everything that speaks against a file, as clauses with the measured number and the limit."""
    limits = report.thresholds
    ratios = dict(report.sqnr_db)
    ratios |= {f"at batch {batch}": value for batch, value in report.sqnr_by_batch.items()}
    for name, ratio in ratios.items():
        if ratio is None:
            yield f"forecasts {name} are not finite"
        elif ratio < report.least_sqnr_db:
            yield f"SQNR {name} is {ratio:.1f} dB, below {report.least_sqnr_db:g} dB"
    changes = {"optimizations": report.optimization_steps}
    if report.exact:
        changes["the batch size"] = report.batch_steps
    for cause, steps in changes.items():
        if steps is not None and steps > limits.steps:
            yield f"a forecast changes by {steps:.1f} steps with {cause}, more than {limits.steps:g}"
    if report.exact and report.batch_mates_change != 0.0:
        yield f"a forecast changes by {report.batch_mates_change:.3g} with its batch mates"
    for runtime in report.runtimes:
        if not runtime.skipped and not (runtime.sqnr_db or 0.0) >= limits.sqnr_db:
            measured = "not finite" if runtime.sqnr_db is None else f"{runtime.sqnr_db:.1f} dB"
            yield f"SQNR in {runtime.name} is {measured}, below {limits.sqnr_db:g} dB"
    if report.kind == "int8":
        yield from _layer_breaches(report)
        yield from _int8_breaches(report)


def _layer_breaches(report: CheckReport) -> Iterator[str]:
    limits = report.thresholds
    for name in report.missing_layers:
        yield f"the graph holds no integer product of the layer {name}"
    for name in report.quantized_constants:
        yield f"the constant {name} is stored as float and rounded at every call"
    for layer in report.layers:
        steps = [step for step in layer.file_steps.values() if step is None or step > limits.layer_steps]
        if layer.exact and steps:
            size = "is not finite" if None in steps else f"is off by {max(filter(None, steps)):.1f} of its steps"
            yield f"the layer {layer.name} {size} with the input that the QAT layer got"
    if report.layer_off is not None and report.layer_off >= limits.layer_off:
        yield f"{report.layer_off:.3%} of the layers' values differ, {limits.layer_off:.2%} allowed"


def _int8_breaches(report: CheckReport) -> Iterator[str]:
    limits, fp32, int8 = report.thresholds, report.bytes["fp32_file"], report.bytes["int8_file"]
    same = report.bytes["unchanged"] or 0
    if fp32 is None or int8 is None:
        yield f"there is no {layout.ONNX['fp32']} beside the file to compare it with"
    elif int8 >= fp32 or int8 - same > limits.file_share * (fp32 - same) + limits.graph_bytes:
        yield f"the INT8 file has {int8 / fp32:.0%} of the FP32 file's bytes, more than allowed"
    if not sum(report.integer_ops.values()):
        yield "onnxruntime computes no product of the file on integers"
    if report.saturating_products and scheme_for(report.target).pairs_fit:
        yield f"{report.saturating_products} products could saturate on a CPU without VNNI, which the target allows"
    for model, limit in (("qat", limits.risk_over_qat), ("fp32", limits.risk_over_fp32)):
        excess = _mean_risk(report, "int8") / _mean_risk(report, model) - 1
        if excess > limit:
            yield f"the mean q-risk is {excess:.1%} above that of the {model.upper()} model, {limit:.0%} allowed"


def _mean_risk(report: CheckReport, model: str) -> float:
    risks = [risk for risk in (report.q_risk[model] or {}).values() if risk is not None]
    return sum(risks) / len(risks) if risks else math.nan  # a NaN exceeds no limit
