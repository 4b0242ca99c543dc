"""From a run folder to its ONNX files: trace, clean, verify, and only then write."""

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import onnx
import torch
from onnx import ModelProto
from torch import nn

from qat_tft.data.preprocessing import ScalingMode
from qat_tft.data.scaling import Scaling
from qat_tft.errors import ExportError
from qat_tft.export import qdq
from qat_tft.export.compact import compact
from qat_tft.export.contract import RawForecaster, example_inputs
from qat_tft.export.exported import ExportedFile, ExportResult
from qat_tft.export.fold import fold_rearrangements
from qat_tft.export.integer_products import multiply_integers
from qat_tft.export.lift import keep_axes
from qat_tft.export.metadata import BATCH, METADATA_KEY, OUTPUT, LstmForm, ModelMetadata, Precision
from qat_tft.export.recurrent import compute_on_integers, dequantize_at_load, order_lstm_weights, squeeze_outputs
from qat_tft.export.rewrite import shorten
from qat_tft.export.widen import widen_rows
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.prepare import FLOAT_OPERATIONS, LSTM_CELL
from qat_tft.quantization.scheme import require_safe, scheme_for
from qat_tft.training.files import read_bytes
from qat_tft.training.run_folder import RunFolder

FP32_FILE = "model.fp32.onnx"
INT8_FILE = "model.int8.onnx"
OPSET = 20  # the last one whose QuantizeLinear every onnxruntime since 1.17 fuses
IR_VERSION = 10  # onnxruntime reads IR versions up to its own; 10 is read since 1.18
_EXAMPLE_BATCH = 3  # a batch of 1 would be frozen into the graph
_TALKATIVE = ("torch.onnx", "onnxscript", "onnx_ir")
_PACKAGES = ("qat-tft", "torch", "onnx", "onnxscript")


def export_run(run: RunFolder, *, int8: bool, target: str | None = None, lstm: LstmForm = "weights") -> ExportResult:
    """Write ``model.fp32.onnx`` and, with ``int8``, ``model.int8.onnx`` into a run folder.

    Nothing but the folder is needed: the graph is traced with made-up inputs of its shapes. Nothing is written
    before every graph has been verified, and a file appears under its name only when it is complete.

    Args:
        run: the run folder.
        int8: whether to write the INT8 file too.
        target: target profile of the INT8 file; by default the one that the model was trained for.
        lstm: what the INT8 file's LSTMs compute on: floating point over int8 weights, or integers of their own.

    Raises:
        RunFolderError: the folder is missing, damaged, or not ours.
        ConfigError: no target profile has that name.
        ExportError: ``int8`` without a quantization-aware model, a target whose ranges the model was not trained for,
            a weight that is not finite, or a graph that is not what it must be.
        CalibrationError: a range of the model was never observed or is not finite.
    """
    start = time.monotonic()
    fp32 = run.load_fp32_model().folded()
    scaling = run.load_preprocessing().scaling()
    metadata = _metadata_of(run)
    lstm_nodes = sum(module.num_layers for module in fp32.modules() if isinstance(module, nn.LSTM))
    plans: list[tuple[nn.Module, ModelMetadata, Path]] = [(fp32, metadata, run.path / FP32_FILE)]
    if int8:
        plans.append((*_integer_model(run, metadata, target, lstm), run.path / INT8_FILE))
    for model, _, _ in plans:
        _refuse_non_finite(model, run)
    graphs = [_verified(model, scaling, described, lstm_nodes) for model, described, _ in plans]
    contents = [graph.SerializeToString() for graph in graphs]
    if int8:
        _refuse_no_saving(fp32=len(contents[0]), int8=len(contents[1]), path=plans[1][2])
    files = []
    for graph, content, (_, described, path) in zip(graphs, contents, plans, strict=True):
        write_file(path, content)
        files.append(_describe(graph, described, path, len(content)))
    last = plans[-1][1]
    return ExportResult(
        run=run.path,
        files=tuple(files),
        target=last.target,
        quantized_layers=last.quantized_layers,
        float_layers=last.float_layers,
        seconds=time.monotonic() - start,
    )


def weights_fingerprint(run: RunFolder, kind: Precision) -> str:
    """SHA-256 of the weights in a run folder from which a file of this kind is made; RunFolderError without them."""
    name = "fp32.safetensors" if kind == "fp32" else "qat.safetensors"
    return sha256(read_bytes(run.path / name)).hexdigest()


def _metadata_of(run: RunFolder) -> ModelMetadata:
    config, preprocessing = run.load_config(), run.load_preprocessing()
    return ModelMetadata(
        kind="fp32",
        schema=run.load_effective_schema(),
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
    )


def _integer_model(
    run: RunFolder, metadata: ModelMetadata, target: str | None, lstm: LstmForm
) -> tuple[nn.Module, ModelMetadata]:
    qat = run.load_qat_model()
    wanted = qat.scheme if target is None else scheme_for(target)
    require_safe(qat.scheme, wanted, where=str(run.path))
    if lstm == "dynamic" and not wanted.dynamic_lstm:
        raise ExportError(
            f"the target {wanted.target!r} has no integer LSTM",
            where=str(run.path),
            allowed="--lstm dynamic for x86 and x86-vnni; --lstm weights for every target",
            next_step="Export without --lstm dynamic",
        )
    described = replace(
        metadata,
        kind="int8",
        target=wanted.target,
        lstm=lstm,
        weights=weights_fingerprint(run, "int8"),
        quantized_layers=tuple(qat.quantized_layers()),
        float_layers=(*qat.float_layers(), *_float_operations(lstm)),
    )
    return integer_model(qat), described


def _float_operations(lstm: LstmForm) -> list[tuple[str, str]]:
    return [(what, why) for what, why in FLOAT_OPERATIONS.items() if lstm != "dynamic" or what != LSTM_CELL]


def _verified(model: nn.Module, scaling: Scaling, metadata: ModelMetadata, lstm_nodes: int) -> ModelProto:
    graph = build_graph(RawForecaster(model, scaling, metadata).eval(), metadata)
    scheme = scheme_for(metadata.target) if metadata.target else None
    qdq.verify_graph(graph, lstm_nodes=lstm_nodes, portable=scheme is not None and scheme.standard_operators_only)
    if metadata.kind == "int8":
        qdq.verify_integer_graph(graph, int8_weights=_int8_weights(model))
    if scheme is not None and scheme.explicit_pairs:
        qdq.verify_explicit_pairs(graph)
    return graph


def _refuse_non_finite(model: nn.Module, run: RunFolder) -> None:
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise ExportError(
                f"the weight '{name}' holds NaN or infinity",
                where=str(run.path),
                allowed="finite weights",
                next_step="Train again; a lower --learning-rate keeps weights finite",
            )


def _refuse_no_saving(*, fp32: int, int8: int, path: Path) -> None:
    if int8 >= fp32:
        raise ExportError(
            f"the INT8 graph has {int8} bytes, the FP32 graph {fp32}: quantizing saved nothing",
            where=str(path),
            next_step="The model is too small for INT8 to pay; raise hidden, or deploy the FP32 file.",
        )


def _describe(graph: ModelProto, metadata: ModelMetadata, path: Path, size: int) -> ExportedFile:
    return ExportedFile(
        path=path,
        kind=metadata.kind,
        bytes=size,
        nodes=len(graph.graph.node),
        opset=next(entry.version for entry in graph.opset_import if entry.domain in qdq.STANDARD_DOMAINS),
        ir_version=graph.ir_version,
    )


def _int8_weights(model: nn.Module) -> int:
    matrices = (buffer for buffer in model.buffers() if buffer.dtype == torch.int8 and buffer.ndim > 1)
    return sum(matrix.numel() for matrix in matrices)


def build_graph(forecaster: RawForecaster, metadata: ModelMetadata) -> ModelProto:
    """Trace a forecaster into a clean ONNX graph that carries its metadata.

    Raises:
        ExportError: torch cannot trace the model, or the inputs and outputs are not the promised ones.
    """
    specs = metadata.inputs()
    batch = torch.export.Dim(BATCH, min=1)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                forecaster,
                example_inputs(specs, _EXAMPLE_BATCH),
                dynamo=True,
                dynamic_shapes=(tuple({0: batch} for _ in specs),),
                opset_version=OPSET,
                input_names=[spec.name for spec in specs],
                output_names=[OUTPUT],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(f"torch could not export the model: {_last_line(error)}") from error
    assert program is not None, "the dynamo exporter returns a program"
    graph: ModelProto = program.model_proto
    qdq.strip(graph)
    qdq.remove_full_range_clips(graph)
    fold_rearrangements(graph)
    order_lstm_weights(graph)
    squeeze_outputs(graph)
    _place_weights(graph, metadata)
    shorten(graph)
    widen_rows(graph)
    keep_axes(graph)
    if metadata.target and not scheme_for(metadata.target).standard_operators_only:
        multiply_integers(graph)
    compact(graph)
    graph.ir_version = IR_VERSION
    entry = graph.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, metadata.to_text()
    _refuse_other_signature(graph, metadata)
    onnx.checker.check_model(graph)
    return graph


def _place_weights(graph: ModelProto, metadata: ModelMetadata) -> None:
    if metadata.lstm == "dynamic":
        compute_on_integers(graph)
    if metadata.target and not scheme_for(metadata.target).explicit_pairs:
        dequantize_at_load(graph)


def write_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it, so that no half-written one ever has its name.

    Raises:
        ExportError: the folder cannot be written to.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ExportError(
            f"the file cannot be written: {error.strerror}",
            where=str(path),
            next_step="Make the folder writable or free some space.",
        ) from None


def _refuse_other_signature(graph: ModelProto, metadata: ModelMetadata) -> None:
    # The exporter freezes a dimension without a word when it believes that it is constant.
    promised = {spec.name: spec.shape for spec in metadata.inputs()} | {OUTPUT: metadata.output_shape()}
    found = {
        value.name: tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
        for value in (*graph.graph.input, *graph.graph.output)
    }
    if found != promised:
        raise ExportError(f"the graph has the inputs and outputs {found}", allowed=str(promised))


@contextmanager
def _quiet() -> Iterator[None]:
    # The exporter speaks of its own deprecations and of packages that a TFT does not need.
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
