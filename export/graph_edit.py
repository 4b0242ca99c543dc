"""Editing a graph: look-ups of constants and attributes, and changes to nodes and initializers."""

from collections.abc import Iterable, Mapping, MutableSequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

Constants = dict[str, npt.NDArray[Any]]

PACKED_TYPES = (TensorProto.INT4, TensorProto.INT2)
"""Types of tensors with several codes a byte."""


def constant_values(model: ModelProto) -> Constants:
    """Values of initializers and Constant nodes by name."""
    values = {tensor.name: value_of(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return values


def value_of(tensor: TensorProto) -> npt.NDArray[Any]:
    """Return a tensor's values; codes of 4 and 2 bits as int8."""
    value = numpy_helper.to_array(tensor)
    return value.astype(np.int8) if tensor.data_type in PACKED_TYPES else value


def producers_of(model: ModelProto) -> dict[str, NodeProto]:
    """The node that makes each value."""
    return {name: node for node in model.graph.node for name in node.output}


def readers_of(model: ModelProto) -> dict[str, list[NodeProto]]:
    """The nodes that read each value, once per input."""
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers


def axis_of(node: NodeProto, default: int) -> int:
    """The attribute ``axis`` of a node, or its default."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), default)


def add_constant(model: ModelProto, name: str, value: npt.NDArray[Any]) -> str:
    """Add an initializer and return its name."""
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    return name


def set_constant(model: ModelProto, name: str, value: npt.NDArray[Any]) -> None:
    """Give an initializer another value."""
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def replace_nodes(model: ModelProto, old: list[NodeProto], new: Iterable[NodeProto]) -> None:
    """Put nodes in the place of others, where the last of these stood."""
    nodes = model.graph.node
    place = max(list(nodes).index(node) for node in old)
    for node in reversed(list(new)):
        nodes.insert(place + 1, node)
    for node in old:
        nodes.remove(node)


def along_axis(vector: npt.NDArray[Any], axis: int, rank: int) -> npt.NDArray[Any]:
    """A vector of scales or zero points, shaped to stand against a tensor of that rank along one of its axes."""
    return vector.reshape([-1 if place == axis % rank else 1 for place in range(rank)])


def rename(names: MutableSequence[str], new: Mapping[str, str]) -> None:
    """Put the new name in the place of every name that has one."""
    for place, name in enumerate(names):
        names[place] = new.get(name, name)


def rename_values(model: ModelProto, names: Mapping[str, str]) -> None:
    """Let every node that reads a value under an old name read it under the new one."""
    for node in model.graph.node:
        rename(node.input, names)


def remove_unused_initializers(model: ModelProto) -> None:
    """Drop initializers that no node reads."""
    used = {name for node in model.graph.node for name in node.input}
    used |= {output.name for output in model.graph.output}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in used]:
        model.graph.initializer.remove(tensor)


def remove_dead_nodes(model: ModelProto) -> None:
    """Drop nodes whose results nobody reads, and the initializers that only they read."""
    needed = {output.name for output in model.graph.output}
    for node in reversed(list(model.graph.node)):  # in topological order, so readers come first
        if needed.isdisjoint(node.output):
            model.graph.node.remove(node)
        else:
            needed.update(node.input)
    remove_unused_initializers(model)
