"""From a forecaster to its ONNX graph: traced by torch, cleaned, laid out by passes in one visible order."""

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import torch
from onnx import ModelProto

from qat_tft.errors import ExportError
from qat_tft.export.build.contract import RawForecaster, example_inputs
from qat_tft.export.build.graph_rules import STANDARD_DOMAINS
from qat_tft.export.build.passes.cleanup import remove_full_range_clips, strip
from qat_tft.export.build.passes.drop_unit_axes import drop_unit_axes
from qat_tft.export.build.passes.fold_rearrangements import fold_rearrangements
from qat_tft.export.build.passes.integer_products import multiply_integers
from qat_tft.export.build.passes.keep_unit_axes import keep_unit_axes
from qat_tft.export.build.passes.lstm_weights import (
    compute_on_integers,
    dequantize_at_load,
    order_lstm_weights,
    squeeze_outputs,
)
from qat_tft.export.build.passes.pack_codes import pack_codes
from qat_tft.export.build.passes.rewrite import rewrite_patterns
from qat_tft.export.build.passes.shorten_names import shorten_names
from qat_tft.export.build.passes.widen_rows import widen_rows
from qat_tft.export.metadata import BATCH, METADATA_KEY, ModelMetadata
from qat_tft.quantization.scheme import scheme_for

OPSET = 20  # the last one whose QuantizeLinear every onnxruntime since 1.17 fuses
IR_VERSION = 10  # onnxruntime reads IR versions up to its own; 10 is read since 1.18
_PACKED_VERSIONS = {4: (21, 10), 2: (25, 13)}  # opset and IR version that first know tensors of so many bits
_EXAMPLE_BATCH = 3  # a batch of 1 would be frozen into the graph
_TALKATIVE = ("torch.onnx", "onnxscript", "onnx_ir")


def build_graph(forecaster: RawForecaster, metadata: ModelMetadata) -> ModelProto:
    """Trace a forecaster into a clean ONNX graph that carries its metadata.

    Raises:
        ExportError: torch cannot trace the model, or the inputs and outputs are not the promised ones.
    """
    specs = metadata.inputs()
    batch = torch.export.Dim(BATCH, min=1)
    try:
        with _quiet(), _no_garbage_collection(), torch.no_grad():
            program = torch.onnx.export(
                forecaster,
                example_inputs(specs, _EXAMPLE_BATCH),
                dynamo=True,
                dynamic_shapes=(tuple({0: batch} for _ in specs),),
                opset_version=OPSET,
                input_names=[spec.name for spec in specs],
                output_names=[spec.name for spec in metadata.outputs()],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(f"torch could not export the model: {_last_line(error)}") from error
    assert program is not None, "the dynamo exporter returns a program"
    graph: ModelProto = program.model_proto
    strip(graph)
    remove_full_range_clips(graph)
    fold_rearrangements(graph)
    order_lstm_weights(graph)
    squeeze_outputs(graph)
    _place_weights(graph, metadata)
    drop_unit_axes(graph)
    rewrite_patterns(graph)
    widen_rows(graph)
    keep_unit_axes(graph)
    if metadata.target and not scheme_for(metadata.target).standard_operators_only:
        multiply_integers(graph)
    shorten_names(graph)
    graph.ir_version = IR_VERSION
    if metadata.packed:
        pack_codes(graph, metadata.low_bits)
        _raise_versions(graph, *_PACKED_VERSIONS[metadata.bits])
    entry = graph.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, metadata.to_text()
    _refuse_other_signature(graph, metadata)
    onnx.checker.check_model(graph)
    return graph


def _raise_versions(graph: ModelProto, opset: int, ir_version: int) -> None:
    # The operators of the graph mean the same from opset 20 on; what later ones add are types.
    for entry in graph.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = opset
    graph.ir_version = ir_version


def _place_weights(graph: ModelProto, metadata: ModelMetadata) -> None:
    if metadata.lstm == "dynamic":
        compute_on_integers(graph)
    if metadata.target and not scheme_for(metadata.target).explicit_pairs:
        dequantize_at_load(graph)


def _refuse_other_signature(graph: ModelProto, metadata: ModelMetadata) -> None:
    # The exporter freezes a dimension without a word when it believes that it is constant.
    promised = {spec.name: spec.shape for spec in metadata.inputs()}
    promised |= {spec.name: spec.shape for spec in metadata.outputs()}
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


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    # Tracing makes a million objects that live until it ends; looking for garbage among them takes a fifth of its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
