"""Products of a matrix with float weights, computed in two dimensions.

Layers over stored weights take two-dimensional values to three dimensions and back: between a matrix and the
DequantizeLinear of another, onnxruntime puts an operator that rounds both. Once that DequantizeLinear is a Cast and a
Mul (see `lstm_weights.dequantize_at_load`) nothing rounds, and of a product in two dimensions and the Add after it
onnxruntime makes one operator.
"""

from onnx import ModelProto, NodeProto

from qat_tft.export.graph_edit import Constants, constant_values, producers_of, readers_of, remove_dead_nodes


def drop_unit_axes(model: ModelProto) -> int:
    """Multiply in two dimensions what is unsqueezed before a product by a Cast matrix and squeezed after it.

    Returns:
        how many products that were.
    """
    constants, producers, readers = constant_values(model), producers_of(model), readers_of(model)
    dropped = 0
    for product in [node for node in model.graph.node if node.op_type == "MatMul"]:
        before, weight = (producers.get(name) for name in product.input)
        last = _last_of(product, constants, readers)
        after = readers.get(last.output[0], [])
        if (
            before is None
            or not _moves_first_axis(before, "Unsqueeze", constants)
            or not _is_cast_matrix(weight, constants, producers)
        ):
            continue
        if len(after) != 1 or not _moves_first_axis(after[0], "Squeeze", constants):
            continue
        product.input[0] = before.input[0]
        last.output[0] = after[0].output[0]
        model.graph.node.remove(after[0])
        dropped += 1
    remove_dead_nodes(model)
    return dropped


def _last_of(product: NodeProto, constants: Constants, readers: dict[str, list[NodeProto]]) -> NodeProto:
    # The addition of a bias, or the product itself where it has none.
    following = readers.get(product.output[0], [])
    if len(following) != 1 or following[0].op_type != "Add":
        return product
    flat = [name for name in following[0].input if name in constants and constants[name].ndim == 1]
    return following[0] if flat else product


def _moves_first_axis(node: NodeProto, kind: str, constants: Constants) -> bool:
    axes = constants.get(node.input[1]) if node.op_type == kind and len(node.input) > 1 else None
    return axes is not None and axes.reshape(-1).tolist() == [0]


def _is_cast_matrix(weight: NodeProto | None, constants: Constants, producers: dict[str, NodeProto]) -> bool:
    if weight is not None and weight.op_type == "Mul":
        weight = producers.get(weight.input[0])
    if weight is None or weight.op_type != "Cast":
        return False
    codes = constants.get(weight.input[0])
    return codes is not None and codes.ndim == 2
