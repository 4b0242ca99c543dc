"""From a run folder to its ONNX files: trace, clean, verify, and only then write."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch
from onnx import ModelProto
from torch import nn

from qat_tft.atomic import written_together
from qat_tft.data.preprocessing import ScalingMode
from qat_tft.data.scaling import Scaling
from qat_tft.errors import ExportError, some_of
from qat_tft.export.build import graph_rules
from qat_tft.export.build.contract import ExplainedForecaster, RawForecaster
from qat_tft.export.build.export_report import ExportedFile, ExportResult
from qat_tft.export.build.graph import build_graph
from qat_tft.export.metadata import FAR_OUTSIDE, LstmForm, ModelMetadata, Precision, Store
from qat_tft.model.frame import FramedTemporalFusionTransformer
from qat_tft.model.recurrence import Recurrence
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.prepare import FLOAT_OPERATIONS, FRAME, LSTM_CELL, QATTemporalFusionTransformer
from qat_tft.quantization.products import INTEGER_STORAGE
from qat_tft.quantization.scheme import FEW_BITS_UNSHOWN, TARGETS, Scheme, require_safe, scheme_for
from qat_tft.runs import layout
from qat_tft.runs.build import variables_by_group
from qat_tft.runs.files import read_bytes
from qat_tft.runs.folder import RunFolder
from qat_tft.stages import Stages, Told, nobody

_PACKAGES = ("qat-tft", "torch", "onnx", "onnxscript")


def export_run(
    run: RunFolder,
    *,
    int8: bool,
    target: str | None = None,
    lstm: LstmForm = "weights",
    store: Store = "packed",
    weight_bits: int | None = None,
    with_explanations: bool = False,
    told: Told = nobody,
) -> ExportResult:
    """Write ``model.fp32.onnx`` and, with ``int8``, the file of the quantization-aware model into a run folder.

    That is ``model.int8.onnx``, or ``model.int4.onnx`` or ``model.int2.onnx`` where weights have so few bits.

    Nothing but the folder is needed: the graph is traced with made-up inputs of its shapes. Nothing is written
    before every graph has been verified, and a file appears under its name only when all are complete.

    Args:
        run: the run folder.
        int8: whether to write the file of integers too.
        target: target profile of the INT8 file; by default the one that the model was trained for.
        lstm: what the INT8 file's LSTMs compute on: floating point over int8 weights, or integers of their own.
        store: ``int8`` writes weights of fewer bits in eight, for runtimes that know no smaller tensors.
        weight_bits: fewest bits that a weight must have been trained with; None: whatever it was.
        with_explanations: whether the files put out selection weights and attention too.
        told: is told how far it has come.

    Raises:
        RunFolderError: the folder is missing, damaged, not ours, or another process is writing to it.
        ConfigError: no target profile has that name.
        ExportError: ``int8`` without a quantization-aware model, a target whose ranges the model was not trained for,
            a weight that is not finite, or a graph that is not what it must be.
        CalibrationError: a range of the model was never observed or is not finite.
    """
    with run.held():
        plans = [plan_fp32(run, with_explanations)]
        if int8:
            _refuse_other_bits(run, weight_bits)
            plans.append(plan_int8(run, target, lstm, store, with_explanations))
        return write_plans(run, plans, told)


def _refuse_other_bits(run: RunFolder, weight_bits: int | None) -> None:
    if weight_bits is not None and run.weight_bits != weight_bits:
        raise ExportError(
            f"this run was trained with weights of {run.weight_bits} bits, not {weight_bits}",
            where=str(run.path),
            allowed=f"--weight-bits {run.weight_bits}",
            next_step=f"Train with --weight-bits {weight_bits}: other codes are another model",
        )


@dataclass(frozen=True)
class ExportPlan:
    """One file to be written: the model in its form for inference, what the file says of itself, and its place."""

    model: nn.Module
    metadata: ModelMetadata
    path: Path


def plan_fp32(run: RunFolder, with_explanations: bool = False) -> ExportPlan:
    """Return the plan of the FP32 file; arguments and errors are those of `export_run`."""
    return ExportPlan(run.load_fp32_model().folded(), _metadata_of(run, with_explanations), run.onnx_file("fp32"))


def plan_int8(
    run: RunFolder,
    target: str | None = None,
    lstm: LstmForm = "weights",
    store: Store = "packed",
    with_explanations: bool = False,
) -> ExportPlan:
    """Return the plan of the INT8 file; arguments and errors are those of `export_run`."""
    qat = run.load_qat_model()
    wanted = qat.scheme if target is None else scheme_for(target)
    if qat.products == "integer":  # no other codes are multiplied
        require_safe(qat.scheme, wanted, where=str(run.path))
    elif lstm == "dynamic":
        raise ExportError(
            f"this run has {INTEGER_STORAGE}: an LSTM that multiplies integers is not what it was trained with",
            where=str(run.path),
            allowed="--lstm weights",
            next_step="Export without --lstm dynamic, or train with --products integer",
        )
    if lstm == "dynamic" and not wanted.dynamic_lstm:
        raise ExportError(
            f"the target {wanted.target!r} has no integer LSTM",
            where=str(run.path),
            allowed="--lstm dynamic for x86 and x86-vnni; --lstm weights for every target",
            next_step="Export without --lstm dynamic",
        )
    low_bits = qat.low_bits()
    if low_bits:
        _refuse_few_bits(wanted, low_bits, run)
    described = replace(
        _metadata_of(run, with_explanations),
        kind="int8",
        target=wanted.target,
        lstm=lstm,
        products=qat.products,
        low_bits=low_bits,
        packed=bool(low_bits) and store == "packed",
        weights=weights_fingerprint(run, "int8"),
        quantized_layers=tuple(qat.quantized_layers()),
        float_layers=(*qat.float_layers(), *_float_operations(qat, lstm)),
    )
    kind = layout.INTEGER[described.bits if described.packed else 8]
    return ExportPlan(integer_model(qat), described, run.onnx_file(kind))


def _refuse_few_bits(wanted: Scheme, low_bits: Mapping[str, int], run: RunFolder) -> None:
    if not wanted.few_bits:
        bits = min(low_bits.values())
        raise ExportError(
            f"the target {wanted.target!r} has no weights of {bits} bits: {FEW_BITS_UNSHOWN}",
            where=str(run.path),
            allowed=", ".join(name for name in TARGETS if scheme_for(name).few_bits),
            next_step=f"Train with --weight-bits 8 for {wanted.target}, or export for another target",
        )


def write_plans(run: RunFolder, plans: Sequence[ExportPlan], told: Told = nobody) -> ExportResult:
    """Trace and verify every planned file, and write them all or none; errors are those of `export_run`."""
    start, stages = time.monotonic(), Stages(told, len(plans) + 1)
    scaling = run.load_preprocessing().scaling()
    graphs = []
    for plan in plans:
        stages.begin(f"tracing {plan.path.name}")
        graphs.append(_verified(plan, scaling))
    stages.begin("writing")
    contents = [graph.SerializeToString() for graph in graphs]
    sizes: dict[str, int] = {plan.metadata.kind: len(content) for plan, content in zip(plans, contents, strict=True)}
    last = plans[-1].metadata
    write_files({plan.path: content for plan, content in zip(plans, contents, strict=True)})
    return ExportResult(
        run=run.path,
        files=tuple(_describe(graph, plan, sizes) for graph, plan in zip(graphs, plans, strict=True)),
        target=last.target,
        products=last.products,
        bits=last.bits,
        packed=last.packed,
        needs_onnxruntime=last.needs_onnxruntime,
        quantized_layers=last.quantized_layers,
        float_layers=last.float_layers,
        seconds=time.monotonic() - start,
    )


def weights_fingerprint(run: RunFolder, kind: Precision) -> str:
    """SHA-256 of the weights in a run folder from which a file of this kind is made; RunFolderError without them."""
    return sha256(read_bytes(run.weights_file("fp32" if kind == "fp32" else "qat"))).hexdigest()


def _metadata_of(run: RunFolder, with_explanations: bool) -> ModelMetadata:
    config, preprocessing, schema = run.load_config(), run.load_preprocessing(), run.load_effective_schema()
    return ModelMetadata(
        kind="fp32",
        schema=schema,
        vocabularies={column: v.values for column, v in preprocessing.vocabularies.items()},
        series=preprocessing.series if preprocessing.mode is ScalingMode.SERIES else None,
        quantiles=config.model.quantiles,
        history=config.model.history,
        horizon=config.model.horizon,
        weights=weights_fingerprint(run, "fp32"),
        versions={package: version(package) for package in _PACKAGES},
        preparation=preprocessing.preparation,
        fills=preprocessing.fill_values(),
        target_transform=str(preprocessing.transform),
        usual=preprocessing.usual_values(FAR_OUTSIDE),
        explained=variables_by_group(config.model, schema) if with_explanations else {},
    )


def _float_operations(qat: QATTemporalFusionTransformer, lstm: LstmForm) -> list[tuple[str, str]]:
    absent = {LSTM_CELL} if lstm == "dynamic" else set()
    if not isinstance(qat.model, FramedTemporalFusionTransformer):
        absent.add(FRAME)
    return [(what, why) for what, why in FLOAT_OPERATIONS.items() if what not in absent]


def _verified(plan: ExportPlan, scaling: Scaling) -> ModelProto:
    model, metadata = plan.model, plan.metadata
    forecaster = ExplainedForecaster if metadata.explained else RawForecaster
    graph = build_graph(forecaster(model, scaling, metadata).eval(), metadata)
    scheme = scheme_for(metadata.target) if metadata.target else None
    portable = scheme is not None and scheme.standard_operators_only
    lstm_nodes = sum(isinstance(module, Recurrence) for module in model.modules())
    graph_rules.verify_graph(graph, lstm_nodes=lstm_nodes, portable=portable)
    if metadata.kind == "int8":
        graph_rules.verify_integer_graph(graph, codes=_codes(model))
    if scheme is not None and scheme.explicit_pairs:
        graph_rules.verify_explicit_pairs(graph)
    return graph


def _describe(graph: ModelProto, plan: ExportPlan, sizes: Mapping[str, int]) -> ExportedFile:
    return ExportedFile(
        path=plan.path,
        kind=plan.metadata.kind,
        bytes=sizes[plan.metadata.kind],
        nodes=len(graph.graph.node),
        opset=next(entry.version for entry in graph.opset_import if entry.domain in graph_rules.STANDARD_DOMAINS),
        ir_version=graph.ir_version,
    )


def _codes(model: nn.Module) -> int:
    matrices = (buffer for buffer in model.buffers() if buffer.dtype == torch.int8 and buffer.ndim > 1)
    return sum(matrix.numel() for matrix in matrices)


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files under temporary names, and rename them once all of them are written.

    Raises:
        ExportError: a folder cannot be written to; the files are as they were.
    """
    try:
        with written_together(*contents) as unfinished:
            for path, content in zip(unfinished, contents.values(), strict=True):
                path.write_bytes(content)
    except OSError as error:
        raise ExportError(
            f"the file cannot be written: {error.strerror}",
            where=some_of([str(path) for path in contents]),
            next_step="Make the folder writable or free some space.",
        ) from None
