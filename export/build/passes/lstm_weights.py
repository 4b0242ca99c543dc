"""LSTM weights as 8-bit integers in the form that the runtime takes without any work per call.

Torch orders the gates of an LSTM input, forget, cell, output and ONNX input, output, forget, cell. The exporter
reorders the rows of 8-bit weights after their DequantizeLinear, with nodes that onnxruntime, which does not fold
through a DequantizeLinear, would run at every call. The DequantizeLinear itself it would run at every call too.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper

from qat_tft.export.build.passes.fold_rearrangements import evaluated
from qat_tft.export.graph_edit import (
    Constants,
    add_constant,
    along_axis,
    axis_of,
    constant_values,
    producers_of,
    readers_of,
    remove_dead_nodes,
    remove_unused_initializers,
    replace_nodes,
    set_constant,
)

_WEIGHTS = (1, 2)  # inputs W and R of the operator LSTM
_SCALAR = np.zeros(())
_CONTRIB = "com.microsoft"
_SHAPE_ARITHMETIC = ("Slice", "Gather", "Mul", "Reshape", "Concat", "Squeeze", "Unsqueeze")


def order_lstm_weights(model: ModelProto) -> int:
    """Put the DequantizeLinear of each LSTM weight right before the LSTM; return how many weights that were."""
    constants = constant_values(model)
    producers = producers_of(model)
    moved = 0
    for lstm in [node for node in model.graph.node if node.op_type == "LSTM"]:
        for place in _WEIGHTS:
            chain = _chain(lstm.input[place], producers, constants)
            sources = {node.input[0]: node for node in chain if node.op_type == "DequantizeLinear"}
            if len(sources) != 1 or len(chain) == 1:
                continue
            (source,) = sources.values()
            order = _places(lstm.input[place], chain, source, constants, model)
            if order is not None:
                name = f"{source.input[0]}.gates"
                _insert(model, lstm, place, _reordered(name, order, source, constants, model))
                moved += 1
    remove_dead_nodes(model)
    return moved


def squeeze_outputs(model: ModelProto) -> int:
    """Take the axis of directions out of each LSTM's outputs with one Squeeze; return how many LSTMs that were.

    The exporter transposes the outputs [T, 1, B, H] to [T, B, 1, H] and reshapes them to [T, B, H], for which it
    computes the shape from that of the outputs by eight nodes.
    """
    constants, producers = constant_values(model), producers_of(model)
    squeezed = 0
    for reshape in [node for node in model.graph.node if node.op_type == "Reshape"]:
        transpose = producers.get(reshape.input[0])
        lstm = None if transpose is None else producers.get(transpose.input[0])
        if transpose is None or lstm is None or (transpose.op_type, lstm.op_type) != ("Transpose", "LSTM"):
            continue
        if list(transpose.attribute[0].ints) == [0, 2, 1, 3] and _merges_last_axes(
            reshape, transpose, constants, model
        ):
            axes = add_constant(model, f"{reshape.output[0]}.axes", np.array([1]))
            squeeze = helper.make_node("Squeeze", [lstm.output[0], axes], [reshape.output[0]], reshape.output[0])
            replace_nodes(model, [reshape], [squeeze])
            squeezed += 1
    remove_dead_nodes(model)
    return squeezed


def _merges_last_axes(reshape: NodeProto, transpose: NodeProto, constants: Constants, model: ModelProto) -> bool:
    # Compute the new shape from a made-up one: what comes out says what the nodes in between do.
    shape = np.array([5, 3, 1, 7])
    values = dict(constants)
    for node in model.graph.node:
        if node.op_type == "Shape" and node.input[0] == transpose.output[0]:
            values[node.output[0]] = shape
        elif node.op_type in _SHAPE_ARITHMETIC and all(name in values for name in node.input if name):
            values |= evaluated(node, values, model)
    return np.array_equal(values.get(reshape.input[1], ()), [5, 3, 7])


def dequantize_at_load(model: ModelProto) -> int:
    """Write each DequantizeLinear of a weight that floats are multiplied with as a Cast and a Mul; return how many.

    The values are bitwise identical. onnxruntime computes both once, when it loads the file, while it keeps every
    DequantizeLinear for fusions, and only weights that are constant by then are packed for its products and its LSTM.
    It packs matrices of two dimensions alone: [1, in, out] loses its first axis, which only a DequantizeLinear needs.
    """
    constants, producers, readers = constant_values(model), producers_of(model), readers_of(model)
    weights = [
        node
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        and constants.get(node.input[0], _SCALAR).ndim > 1
        and not _meets_integers(node.output[0], producers, readers)
    ]
    for weight in weights:
        name, (codes, scale, _) = weight.output[0], weight.input
        axis, rank = axis_of(weight, 1), constants[codes].ndim
        scales = along_axis(constants[scale], axis, rank)
        if _is_one_matrix(constants[codes], readers[name]):
            set_constant(model, codes, constants[codes][0])
            scales = scales[0]
        if (scales == 1).all():
            replace_nodes(model, [weight], [helper.make_node("Cast", [codes], [name], to=TensorProto.FLOAT)])
            continue
        factors = add_constant(model, f"{codes}.scales", scales)
        cast = helper.make_node("Cast", [codes], [f"{name}.float"], to=TensorProto.FLOAT)
        replace_nodes(model, [weight], [cast, helper.make_node("Mul", [f"{name}.float", factors], [name])])
    remove_unused_initializers(model)
    return len(weights)


def _is_one_matrix(codes: npt.NDArray[np.generic], readers: list[NodeProto]) -> bool:
    return codes.ndim == 3 and len(codes) == 1 and all(node.op_type == "MatMul" for node in readers)


def _meets_integers(weight: str, producers: dict[str, NodeProto], readers: dict[str, list[NodeProto]]) -> bool:
    # Whether it is multiplied with rounded activations, from which onnxruntime makes a product of integers.
    sources = [producers.get(name) for node in readers[weight] if node.op_type == "MatMul" for name in node.input]
    return any(node is not None and node.op_type == "DequantizeLinear" and node.output[0] != weight for node in sources)


def compute_on_integers(model: ModelProto) -> int:
    """Turn each LSTM over 8-bit weights into onnxruntime's DynamicQuantizeLSTM; return how many.

    That operator (com.microsoft, version 1) takes the weights transposed, with a scale per gate row, and rounds its
    input and its state within ranges that it takes from the whole batch at each call. So the rounding that the
    graph does to the LSTM's input is left out.
    """
    lstms = list(_integer_lstms(model))
    for lstm, weights in lstms:
        _skip_rounding(model, lstm)
        codes, parameters = zip(*(_transposed(model, weight) for weight in weights), strict=True)
        optional = [*lstm.input[3:], *[""] * (8 - len(lstm.input))]
        operands = [lstm.input[0], *codes, *optional, *parameters[0], *parameters[1]]
        dynamic = helper.make_node("DynamicQuantizeLSTM", operands, lstm.output, domain=_CONTRIB)
        dynamic.attribute.extend(a for a in lstm.attribute if a.name != "layout")  # there is one only: time first
        replace_nodes(model, [lstm], [dynamic])
    if lstms:
        model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
    remove_dead_nodes(model)
    return len(lstms)


def _integer_lstms(model: ModelProto) -> Iterator[tuple[NodeProto, list[NodeProto]]]:
    # Each LSTM over 8-bit weights, and the DequantizeLinear nodes of W and R.
    producers = producers_of(model)
    for lstm in [node for node in model.graph.node if node.op_type == "LSTM"]:
        weights = [producers[name] for place in _WEIGHTS if (name := lstm.input[place]) in producers]
        if [weight.op_type for weight in weights] == ["DequantizeLinear"] * len(_WEIGHTS):
            yield lstm, weights


def _skip_rounding(model: ModelProto, lstm: NodeProto) -> None:
    # The LSTM's input is rounded, then transposed to time first; nothing else reads the transposed values.
    producers = producers_of(model)
    transpose = producers[lstm.input[0]]
    dequantize = producers[transpose.input[0]]
    assert (transpose.op_type, dequantize.op_type) == ("Transpose", "DequantizeLinear"), "as the exporter leaves it"
    transpose.input[0] = producers[dequantize.input[0]].input[0]


def _transposed(model: ModelProto, weight: NodeProto) -> tuple[str, tuple[str, str]]:
    # Codes [1, in, 4H], their scales [1, 4H] and their zero point, which is 0 for all.
    constants, name = constant_values(model), weight.output[0]
    codes, scale, _ = (constants[operand] for operand in weight.input)
    return add_constant(model, f"{name}.transposed", codes.transpose(0, 2, 1)), (
        add_constant(model, f"{name}.scales", scale.reshape(1, -1)),
        add_constant(model, f"{name}.zero_point", np.zeros(1, np.int8)),
    )


def _chain(name: str, producers: dict[str, NodeProto], constants: Constants) -> list[NodeProto]:
    # The nodes that make a value, sources first; empty if anything but constants goes in.
    nodes: list[NodeProto] = []

    def visit(name: str) -> bool:
        if name in constants or not name:
            return True
        node = producers.get(name)
        if node is None:
            return False
        if not all(visit(operand) for operand in node.input):
            return False
        if node not in nodes:
            nodes.append(node)
        return True

    return nodes if visit(name) else []


def _places(
    name: str, chain: list[NodeProto], source: NodeProto, constants: Constants, model: ModelProto
) -> npt.NDArray[np.int64] | None:
    # Send each element's own place through the chain: what comes out says where every element came from.
    weight = constants[source.input[0]]
    values = dict(constants)
    values[source.output[0]] = np.arange(weight.size, dtype=np.float64).reshape(weight.shape)
    for node in chain:
        if node is not source:
            values |= evaluated(node, values, model)
    order = np.asarray(values[name], dtype=np.int64)
    rows = order // weight.shape[1]
    whole = order.ndim == 3 and order.size == weight.size and bool((rows == rows[..., :1]).all())
    return order if whole else None


def _reordered(
    name: str,
    order: npt.NDArray[np.int64],
    source: NodeProto,
    constants: Constants,
    model: ModelProto,
) -> NodeProto:
    weight, scale, zero = (constants[operand] for operand in source.input)
    rows = order[0, :, 0] // weight.shape[1]
    axis = axis_of(source, 1)
    assert scale.ndim == 0 or axis % weight.ndim == 0, "an LSTM weight has one scale, or one per row"
    made = {
        f"{name}.codes": weight.reshape(-1)[order],
        f"{name}.scale": scale if scale.ndim == 0 else scale[rows],
        f"{name}.zero": zero if zero.ndim == 0 else zero[rows],
    }
    for key, value in made.items():
        add_constant(model, key, value)
    return helper.make_node("DequantizeLinear", list(made), [name], name, axis=1)


def _insert(model: ModelProto, lstm: NodeProto, place: int, dequantize: NodeProto) -> None:
    model.graph.node.insert(list(model.graph.node).index(lstm), dequantize)
    lstm.input[place] = dequantize.output[0]
