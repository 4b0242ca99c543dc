"""Weights of 4 and 2 bits, stored in as many: a packed tensor and one Cast to int8 before whatever read the codes.

onnxruntime computes that Cast once, when it loads the file, and multiplies by the same kernels as those of an int8
file, to the last bit. A DequantizeLinear that read the packed tensor itself would be neither fused nor computed at
load, and one that meets a product of floats becomes an operator that rounds the other side (MatMulNBits).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper

from qat_tft.export.graph_edit import PACKED_TYPES, set_constant, value_of
from qat_tft.export.graph_reader import GraphReader

Codes = npt.NDArray[np.int8]

PACKED = {4: TensorProto.INT4, 2: TensorProto.INT2}
"""Bits of a code to the type of its tensor."""

_CODES = ".int8"  # ends the name of the codes once they are cast


def pack_codes(model: ModelProto, bits: Mapping[str, int]) -> int:
    """Store the codes of layers in fewer than eight bits; return how many tensors that were.

    Args:
        model: a graph whose weights are int8 initializers.
        bits: of the codes of each layer that has fewer than eight.
    """
    places = {tensor.name: tensor for tensor in model.graph.initializer}
    wanted = dict(_weights_of(GraphReader(model), bits))
    for name, count in wanted.items():
        codes = value_of(places[name])
        assert codes.dtype == np.int8, "what a quantized layer stores"
        places[name].CopyFrom(packed_tensor(name, codes, count))
        _read_through_cast(model, name)
    return len(wanted)


def unpack_codes(model: ModelProto) -> int:
    """Undo `pack_codes`; return how many tensors that were."""
    packed = [tensor.name for tensor in model.graph.initializer if tensor.data_type in PACKED_TYPES]
    places = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in packed:
        set_constant(model, name, value_of(places[name]))
        for node in [node for node in model.graph.node if name in node.input and _to(node) == TensorProto.INT8]:
            for reader in model.graph.node:
                for place, read in enumerate(reader.input):
                    if read == node.output[0]:
                        reader.input[place] = name
            model.graph.node.remove(node)
    return len(packed)


def packed_tensor(name: str, codes: Codes, bits: int) -> TensorProto:
    """Return codes as a tensor of that many bits each, the first code in the lowest bits of a byte (ONNX IR).

    Raises:
        ValueError: a code needs more bits.
    """
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if codes.size and not low <= codes.min() <= codes.max() <= high:
        raise ValueError(f"{name} has the codes {codes.min()} to {codes.max()}, {bits} bits hold {low} to {high}")
    each = 8 // bits
    flat = np.zeros(-(-codes.size // each) * each, np.uint8)
    flat[: codes.size] = codes.reshape(-1).astype(np.uint8) & (2**bits - 1)
    shifted = flat.reshape(-1, each) << (bits * np.arange(each, dtype=np.uint8))
    content = np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8).tobytes()
    return helper.make_tensor(name, PACKED[bits], codes.shape, content, raw=True)


def _weights_of(graph: GraphReader, bits: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for product in graph.products:
        if product.layer in bits:
            for name in product.weights:
                yield name, bits[product.layer]


def _read_through_cast(model: ModelProto, name: str) -> None:
    """Let what read a tensor read its Cast to int8; a Cast to float casts right away."""
    readers = [node for node in model.graph.node if name in node.input]
    others = [node for node in readers if node.op_type != "Cast"]
    if not others:
        return
    cast = helper.make_node("Cast", [name], [f"{name}{_CODES}"], to=TensorProto.INT8)
    for node in others:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = cast.output[0]
    model.graph.node.insert(list(model.graph.node).index(others[0]), cast)


def _to(node: NodeProto) -> int:
    return next((int(one.i) for one in node.attribute if one.name == "to"), 0) if node.op_type == "Cast" else 0
