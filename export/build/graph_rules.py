"""What no graph of ours may be: checked before a file is written, by ONNX's and onnxruntime's rules."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from qat_tft.errors import CalibrationError, ExportError
from qat_tft.export.graph_edit import PACKED_TYPES, Constants, constant_values, value_of

INTEGER_WEIGHTS = (TensorProto.INT8, TensorProto.UINT8, *PACKED_TYPES)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
STANDARD_DOMAINS = ("", "ai.onnx")

_AGAIN = "This is a bug in the exporter, not in your data: please report it with the run's config.toml."


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of a file's initializers: matrices of integers, and everything in floating point.

    Attributes:
        integer, floating: bytes of each.
        codes: how many integers the matrices hold.
    """

    integer: int
    floating: int
    codes: int


def weight_bytes(model: ModelProto) -> WeightBytes:
    """Count the bytes of the initializers by kind."""
    sizes: Counter[str] = Counter()
    for tensor in model.graph.initializer:
        if tensor.data_type in FLOATS:
            sizes["float"] += numpy_helper.to_array(tensor).nbytes
        elif tensor.data_type in INTEGER_WEIGHTS and len(tensor.dims) > 1:  # vectors are zero points
            codes = value_of(tensor)
            sizes["codes"] += codes.size
            sizes["integer"] += len(tensor.raw_data) if tensor.data_type in PACKED_TYPES else codes.nbytes
    return WeightBytes(integer=sizes["integer"], floating=sizes["float"], codes=sizes["codes"])


def unchanged_bytes(model: ModelProto) -> int:
    """Count what quantizing leaves as it is: the metadata, and tables of floats that rows are looked up in.

    Such tables are embeddings and the statistics of each series.
    """
    looked_up = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    tables = (tensor for tensor in model.graph.initializer if tensor.name in looked_up and tensor.data_type in FLOATS)
    metadata = sum(len(entry.value.encode()) for entry in model.metadata_props)
    return metadata + sum(numpy_helper.to_array(tensor).nbytes for tensor in tables)


def verify_graph(model: ModelProto, *, lstm_nodes: int, portable: bool) -> None:
    """Refuse what no file of ours may be, whatever its kind.

    Raises:
        ExportError: an LSTM was taken apart or lost, or ``portable`` and an operator is not standard ONNX.
    """
    found = sum(node.op_type in ("LSTM", "DynamicQuantizeLSTM") for node in model.graph.node)
    if found != lstm_nodes:
        raise ExportError(f"the graph holds {found} LSTM nodes instead of {lstm_nodes}", next_step=_AGAIN)
    foreign = foreign_operators(model)
    if portable and foreign:
        raise ExportError(
            f"the graph uses {', '.join(foreign)}, which are not standard ONNX operators",
            allowed="standard operators only for this target",
            next_step=_AGAIN,
        )


def foreign_operators(model: ModelProto) -> list[str]:
    """Domain and name of every operator that is not of the ONNX standard."""
    return sorted({f"{n.domain}:{n.op_type}" for n in model.graph.node if n.domain not in STANDARD_DOMAINS})


def verify_integer_graph(model: ModelProto, *, codes: int) -> None:
    """Refuse an INT8 graph that is not one.

    Args:
        model: the finished graph.
        codes: how many elements the integer weights of the traced model have together.

    Raises:
        CalibrationError: a scale is not a positive finite number.
        ExportError: a weight is stored as float behind a QuantizeLinear, or not every integer weight of the
            model has become an initializer of integers.
    """
    _refuse_bad_scales(model)
    _refuse_quantized_constants(model)
    stored = weight_bytes(model).codes
    if not stored or stored != codes:
        raise ExportError(
            f"the graph stores {stored} integer weights, the model has {codes}",
            next_step=_AGAIN,
        )


def verify_explicit_pairs(model: ModelProto) -> None:
    """Refuse a graph whose rounding is not made of pairs that TensorRT's explicit quantization takes.

    A QuantizeLinear has one constant scale and an int8 zero point of 0, and is read by DequantizeLinear nodes with
    that scale and nothing else; every other DequantizeLinear reads an int8 constant and has zero point 0 (TensorRT
    documentation, "Explicit Quantization").

    Raises:
        ExportError: a node is of another form.
    """
    values = constant_values(model)
    quantized = {node.output[0]: node for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for node in model.graph.node:
        if not _fits_a_pair(node, quantized, values):
            raise ExportError(
                f"the {node.op_type} '{node.output[0]}' is not part of a symmetric int8 pair",
                allowed="QuantizeLinear and DequantizeLinear in pairs of one scale and zero point 0",
                next_step=_AGAIN,
            )


def _fits_a_pair(node: NodeProto, quantized: dict[str, NodeProto], values: Constants) -> bool:
    if node.op_type == "QuantizeLinear":
        return _is_symmetric(node, values) and values[node.input[1]].ndim == 0
    if node.op_type != "DequantizeLinear":
        return quantized.keys().isdisjoint(node.input)
    if node.input[0] in quantized:
        scale, other = (values[reader.input[1]] for reader in (node, quantized[node.input[0]]))
        return _is_symmetric(node, values) and np.array_equal(scale, other)
    weight = values.get(node.input[0])
    return _is_symmetric(node, values) and weight is not None and weight.dtype == np.int8


def _is_symmetric(node: NodeProto, values: Constants) -> bool:
    zero = values.get(node.input[2]) if len(node.input) > 2 else None
    return zero is not None and zero.dtype == np.int8 and not zero.any()


def _derived(model: ModelProto, sources: Iterable[str]) -> set[str]:
    # Values computed from the sources alone; nodes are in topological order.
    known = set(sources)
    for node in model.graph.node:
        operands = [name for name in node.input if name]
        if operands and all(name in known for name in operands):
            known.update(node.output)
    return known


def _constants(model: ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer} | {
        node.output[0] for node in model.graph.node if node.op_type == "Constant"
    }


def _refuse_bad_scales(model: ModelProto) -> None:
    values = constant_values(model)
    for node in _quantizers(model):
        scale = values.get(node.input[1])
        if scale is None or not np.isfinite(scale).all() or not (scale > 0).all():
            raise CalibrationError(
                f"the scale of {node.op_type} '{node.input[1]}' is not a positive finite number",
                next_step="Train again: calibration saw values that cannot be quantized.",
            )


def quantized_constants(model: ModelProto) -> list[str]:
    """Names of the values that a QuantizeLinear rounds at every call although nothing but constants goes into them."""
    constants = _derived(model, _constants(model))
    rounded = (node.input[0] for node in _quantizers(model) if node.op_type == "QuantizeLinear")
    return [name for name in rounded if name in constants]


def _refuse_quantized_constants(model: ModelProto) -> None:
    for name in quantized_constants(model):
        raise ExportError(f"the weight '{name}' is stored as float behind a QuantizeLinear", next_step=_AGAIN)


def _quantizers(model: ModelProto) -> Iterator[NodeProto]:
    return (node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear"))
