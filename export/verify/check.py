"""Is an exported file the model that was validated? Its contract first, then its tensors, values, size and speed."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from qat_tft.data.windows import Batch
from qat_tft.errors import OnnxFileError, RunFolderError, UnwritableError
from qat_tft.export.build.export_report import reasons_to_names
from qat_tft.export.build.graph_rules import quantized_constants, unchanged_bytes, weight_bytes
from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.inference.session import ForecastSession, Signature
from qat_tft.export.metadata import FAR_OUTSIDE, ModelMetadata
from qat_tft.export.verify.check_report import CheckReport
from qat_tft.export.verify.compare import LARGE_BATCH, Array, Comparison, compare, window_inputs
from qat_tft.export.verify.evidence import Evidence, FileFacts
from qat_tft.export.verify.layers import compared_layers, layer_reports, most_windows
from qat_tft.export.verify.machine import SATURATES, cpu_saturates, in_floating_point
from qat_tft.export.verify.measures import crossings, interleaved_medians, largest_steps, spread_order, sqnr_db
from qat_tft.export.verify.operators import Operators, operators_of
from qat_tft.export.verify.output_step import output_step
from qat_tft.export.verify.runtimes.other import ROWS as OTHER_ROWS
from qat_tft.export.verify.runtimes.other import OtherRuntime, other_runtimes
from qat_tft.export.verify.saturation import saturation
from qat_tft.export.verify.tensors.against_run import tensors_against_run
from qat_tft.export.verify.tensors.comparison import TensorReport
from qat_tft.export.verify.twin import compare_with_twin
from qat_tft.export.verify.work import integer_share
from qat_tft.model.loss import q_risk
from qat_tft.quantization.prepare import LEFT_OUT
from qat_tft.quantization.scheme import scheme_for
from qat_tft.runs.build import variables_by_group
from qat_tft.runs.folder import RunFolder
from qat_tft.stages import Stages, Told, nobody
from qat_tft.temporary import temporary_folder

THREADS = 1  # one thread is what a latency can be compared by
_TIMED_BATCHES = (1, 32)
_TIMING_SECONDS = 4.0
_STAGES = 6
"""How many stages a check has."""
_LAST_PLACES = 4
"""Units in the last place of a raw forecast that no error is measured finer than: roundings after the network."""
_OTHER_WEIGHTS = 0.5
"""Share of tensors that differ from which on the file was made from other weights, rather than damaged."""


def find_export(run: RunFolder) -> Path:
    """The file of a run that a check is about: the INT8 one, or the FP32 one where there is no other.

    Raises:
        OnnxFileError: the run was not exported yet.
    """
    for file in (run.integer_file, run.onnx_file("fp32")):
        if file.is_file():
            return file
    raise OnnxFileError(
        "this run has no ONNX file yet", where=str(run.path), next_step="`qat-tft export --int8` writes it."
    )


def file_at(path: Path) -> Path:
    """Return what a path names: an ONNX file, or a run folder in place of its file.

    Raises:
        OnnxFileError, RunFolderError: it is a folder and no run that was exported.
    """
    return find_export(RunFolder.open(path)) if path.is_dir() else path


def check_model(path: Path, run: RunFolder | None = None, *, seconds: float = 10.0, told: Told = nobody) -> CheckReport:
    """Check a file against the run that it was exported from, and leave ``check.json`` in the run folder.

    A folder that cannot be written to changes nothing in the verdict: ``CheckReport.unkept`` says why there is no file.

    Args:
        path: the ONNX file.
        run: its run folder; by default the folder that holds the file.
        seconds: after about this time no further block of 64 windows is compared; the first always is.
        told: is told how far it has come.

    Raises:
        OnnxFileError: the file is missing, damaged, not ours or of a later version.
        RunFolderError: the run folder is missing, damaged, not ours or full, or another process is writing to it.
        UserError: there is no place for temporary files.
    """
    file = ForecastSession(path, threads=THREADS)
    run = run or _run_around(path)
    with run.held():
        report = _Check(file, run, seconds, Stages(told, _STAGES)).report()
        try:
            run.write_check(report.to_json())
        except UnwritableError as failure:
            return replace(report, unkept=f"{failure.where}: {failure.what}")
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


class _Check:
    """One check of one file, in the order contract, tensors, values."""

    def __init__(self, file: ForecastSession, run: RunFolder, seconds: float, stages: Stages) -> None:
        self.start, self.stages = time.monotonic(), stages
        self.file, self.run, self.seconds = file, run, seconds
        self.metadata, self.int8 = file.metadata, file.metadata.kind == "int8"
        self.facts = _facts_of(file.metadata)

    def report(self) -> CheckReport:
        """Check the file; the values of one with another contract mean nothing."""
        self.stages.begin("names, shapes and metadata")
        broken = (*_contract_breaches(self.file), *_metadata_breaches(self.metadata, self.run))
        if broken:
            return CheckReport(self.file.path, self.facts, broken)
        graph = GraphReader(onnx.load(self.file.path))
        self.stages.begin("tensors")
        tensors = tensors_against_run(graph, self.metadata, self.run)
        if len(tensors.differing) > _OTHER_WEIGHTS * tensors.compared:
            reason = f"the weights in {self.run.path} are not those the file was made from: export it again"
            return CheckReport(self.file.path, self.facts, (reason,), Evidence(tensors=tensors))
        with temporary_folder() as folder:
            return self._measured(graph, tensors, folder)

    def _measured(self, graph: GraphReader, tensors: TensorReport, folder: Path) -> CheckReport:
        saturating = saturation(graph.model).saturating if self.int8 else None
        other_machine = bool(saturating) and cpu_saturates()
        sessions = self._sessions(graph, folder, other_machine)
        windows = self.run.load_check_windows()
        self.stages.begin("values on real rows")
        compared = compare(sessions, self.run, windows, self.seconds)
        modes = tuple(sessions)
        qat = self.run.load_qat_model() if self.int8 else None
        rows = torch.from_numpy(spread_order(len(windows.target)))  # the first of these were compared
        inputs = partial(window_inputs, windows, metadata=self.metadata)
        packed = self.metadata.packed and not other_machine
        self.stages.begin("layers")
        layers = (
            layer_reports(graph.model, qat, inputs(rows[: most_windows(qat)]), threads=THREADS, modes=modes)
            if qat is not None and not other_machine
            else ()
        )
        fp32_file = self.run.onnx_file("fp32") if self.int8 else self.file.path
        self.stages.begin("other runtimes")
        found = Evidence(
            tensors=tensors,
            **_accuracy(compared, None if qat is None else output_step(qat)),
            explanations_db={name: sqnr_db(*pair) for name, pair in compared.explanations.items()},
            crossings=crossings(compared.first),
            bytes=_bytes(self.file.path, fp32_file, graph.model, self.int8),
            q_risk=_risks(compared, self.metadata),
            operators=operators_of(self.file.path) if self.int8 else Operators(),
            integer_share=integer_share(graph, inputs(rows[:1])) if self.int8 else None,
            saturating_products=saturating,
            layers=layers,
            runtimes=self._runtimes(graph, inputs(rows[:OTHER_ROWS]), compared),
            twin=compare_with_twin(graph.model, inputs(rows[:LARGE_BATCH]), threads=THREADS) if packed else None,
        )
        self.stages.begin("latency")
        there = {product.layer for product in graph.products}
        wanted = compared_layers(qat) if qat is not None else []
        return CheckReport(
            model=self.file.path,
            facts=self.facts,
            found=found,
            lstm=self.metadata.lstm,
            rows=compared.rows,
            threads=THREADS,
            float_layers=reasons_to_names(self.metadata.float_layers),
            missing_layers=tuple(name for name in wanted if name not in there),
            quantized_constants=tuple(quantized_constants(graph.model)) if self.int8 else (),
            latency_ms=_latency(self.file, fp32_file, windows),
            caveat=SATURATES if other_machine else "",
            seconds=round(time.monotonic() - self.start, 2),
        )

    def _sessions(self, graph: GraphReader, folder: Path, other_machine: bool) -> dict[str, ForecastSession]:
        if not other_machine:
            unoptimized = ForecastSession(self.file.path, optimized=False, threads=THREADS)
            return {"optimized": self.file, "unoptimized": unoptimized}
        path = folder / "floats.onnx"
        onnx.save(in_floating_point(graph.model), path)
        return {"unoptimized": ForecastSession(path, optimized=False, threads=THREADS)}

    def _runtimes(
        self, graph: GraphReader, inputs: Mapping[str, Any], compared: Comparison
    ) -> tuple[OtherRuntime, ...]:
        count = min(OTHER_ROWS, compared.rows)
        return other_runtimes(graph.model, inputs, compared.reference[:count], compared.units)


def _facts_of(metadata: ModelMetadata) -> FileFacts:
    fits = bool(metadata.target) and scheme_for(metadata.target).pairs_fit
    return FileFacts(
        kind=metadata.kind,
        target=metadata.target,
        exact=metadata.lstm != "dynamic",
        pairs_fit=fits,
        products=metadata.products,
        bits=metadata.bits,
        packed=metadata.packed,
        needs_onnxruntime=metadata.needs_onnxruntime,
    )


def _contract_breaches(file: ForecastSession) -> Iterator[str]:
    inputs, outputs = file.signature()
    promised: Signature = {spec.name: (spec.dtype, spec.shape) for spec in file.inputs}
    answer: Signature = {spec.name: ("float32", spec.shape) for spec in file.metadata.outputs()}
    yield from _differences("input", promised, inputs)
    yield from _differences("output", answer, outputs)


def _differences(side: str, wanted: Signature, found: Signature) -> Iterator[str]:
    if list(wanted) != list(found):
        yield f"the {side}s are called {', '.join(found)} instead of {', '.join(wanted)}"
        return
    for name, (dtype, shape) in wanted.items():
        if found[name] != (dtype, shape):
            yield f"{side} {name} is {found[name]} instead of {(dtype, shape)}"


def _metadata_breaches(metadata: ModelMetadata, run: RunFolder) -> Iterator[str]:
    """Yield what the file says of itself that is not so in the run."""
    if metadata.schema != run.load_effective_schema():
        yield f"the file was exported from another run than {run.path}: its schema differs"
        return
    config, preprocessing = run.load_config(), run.load_preprocessing()
    vocabularies = {column: vocabulary.values for column, vocabulary in preprocessing.vocabularies.items()}
    explained = variables_by_group(config.model, metadata.schema) if metadata.explained else {}
    promised = {
        "vocabularies": (dict(metadata.vocabularies), vocabularies),
        "series": (metadata.series, preprocessing.series if preprocessing.mode == "series" else None),
        "quantiles": (metadata.quantiles, config.model.quantiles),
        "history": (metadata.history, config.model.history),
        "horizon": (metadata.horizon, config.model.horizon),
        "preparation of rows": (metadata.preparation, preprocessing.preparation),
        "means that fill missing values": (dict(metadata.fills), dict(preprocessing.fill_values())),
        "target transform": (metadata.target_transform, str(preprocessing.transform)),
        "explained variables": (dict(metadata.explained), explained),
        "usual values": (dict(metadata.usual), preprocessing.usual_values(FAR_OUTSIDE) if metadata.usual else {}),
    }
    for what, (said, held) in promised.items():
        if said != held:
            yield f"the {what} in the file's metadata are not those of {run.path}"
    if metadata.kind == "int8" and metadata.products != config.quantization.products:
        yield f"the file's products are not in the form that quantization.products of {run.path} says"
    elif metadata.kind == "int8" and dict(metadata.low_bits) != run.load_qat_model().low_bits():
        yield f"the file's weights have other bits than quantization.weight_bits of {run.path} says"
    left_out = {name for name, reason in metadata.float_layers if reason == LEFT_OUT}
    if metadata.kind == "int8" and left_out != set(config.quantization.float_layers):
        yield f"the file leaves other layers in floating point than quantization.float_layers of {run.path} says"


def _accuracy(compared: Comparison, step: Any) -> dict[str, Any]:
    units = compared.units
    reference, resolution = units(compared.reference), units.resolution(compared.reference)
    by_mode = {mode: units(forecasts) for mode, forecasts in compared.file.items()}
    first, *others = by_mode.values()
    small = {size: units(forecasts) for size, forecasts in compared.small.items()}

    def steps(one: Array, other: Array) -> float | None:
        if step is None:
            return None
        return largest_steps(one - other[: len(one)], np.maximum(step, _LAST_PLACES * resolution[: len(one)]))

    return {
        "sqnr_db": {mode: sqnr_db(reference, forecasts) for mode, forecasts in by_mode.items()},
        "sqnr_by_batch": {
            **{str(size): sqnr_db(reference[: len(part)], part) for size, part in small.items()},
            str(LARGE_BATCH): sqnr_db(reference, first),
        },
        "max_error_steps": steps(first, reference),
        "optimization_steps": steps(first, others[0]) if others else None,
        "batch_steps": None if step is None else max(steps(part, first) or 0.0 for part in small.values()),
        "batch_mates_change": compared.batch_mates_change,
    }


def _risks(compared: Comparison, metadata: ModelMetadata) -> dict[str, dict[str, float | None] | None]:
    def by_quantile(forecasts: Array) -> dict[str, float | None]:
        risks = q_risk(torch.from_numpy(forecasts), compared.target, metadata.quantiles).tolist()
        return {
            str(quantile): risk if math.isfinite(risk) else None
            for quantile, risk in zip(metadata.quantiles, risks, strict=True)
        }

    if metadata.kind == "fp32":
        return {"fp32": by_quantile(compared.first), "qat": None, "int8": None}
    forecasts = {"fp32": compared.fp32, "qat": compared.reference, "int8": compared.first}
    return {model: by_quantile(values) for model, values in forecasts.items()}


def _bytes(path: Path, fp32_file: Path, graph: onnx.ModelProto, int8: bool) -> dict[str, int | None]:
    weights = weight_bytes(graph)
    return {
        "fp32_file": fp32_file.stat().st_size if fp32_file.is_file() else None,
        "int8_file": path.stat().st_size if int8 else None,
        "int8_weights": weights.integer,
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
