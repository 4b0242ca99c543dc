"""An axis of size one is kept where a graph would take it away and put it back.

onnxruntime multiplies matrices of integers in three dimensions, so every product of two-dimensional values stands
between an Unsqueeze and a Squeeze. What lies between two products is elementwise, or works along the last axis, and
is bitwise identical with the axis and without.
"""

from onnx import ModelProto, NodeProto, helper

from qat_tft.export.graph_edit import (
    Constants,
    axis_of,
    constant_values,
    remove_dead_nodes,
    rename,
    rename_values,
    replace_nodes,
)

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Exp", "Elu", "Relu", "Sigmoid", "Sum")
_ALONG_AN_AXIS = {"Split": 0, "LayerNormalization": -1, "Softmax": -1}  # with the default of the attribute
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")


def keep_unit_axes(model: ModelProto) -> int:
    """Compute with a leading axis of size one what stands between a Squeeze and an Unsqueeze of it.

    Returns:
        how many nodes have gone that took an axis of size one away, or put it back, or took its only part.
    """
    before = len(model.graph.node)
    keeper = _AxisKeeper(model)
    for node in list(model.graph.node):  # in topological order
        keeper.visit(node)
    remove_dead_nodes(model)
    return before - len(model.graph.node)


class _AxisKeeper:
    """Values that are also known with a leading axis of size one: ``kept`` names them with it."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.constants: Constants = constant_values(model)
        self.kept: dict[str, str] = {}
        self.axes = ""  # name of the constant that says: the leading axis

    def visit(self, node: NodeProto) -> None:
        """Note what a node squeezes or unsqueezes, leave it out where it is not needed, or keep the axis in it."""
        if self._moves_leading_axis(node, "Squeeze"):
            self.kept[node.output[0]], self.axes = node.input[0], node.input[1]
        elif self._moves_leading_axis(node, "Unsqueeze"):
            known = self.kept.setdefault(node.input[0], node.output[0])
            if known != node.output[0]:
                rename_values(self.model, {node.output[0]: known})
        elif self._takes_the_whole(node):
            rename_values(self.model, {node.output[0]: node.input[0]})
        elif self.axes and self._can_keep_the_axis(node):
            self._keep_the_axis(node)

    def _moves_leading_axis(self, node: NodeProto, kind: str) -> bool:
        return node.op_type == kind and len(node.input) > 1 and self._numbers(node.input[1]) == [0]

    def _takes_the_whole(self, node: NodeProto) -> bool:
        # The exporter takes the states of each layer: with one layer a Slice from 0 to 1 along an axis of size one.
        if node.op_type != "Slice" or node.input[0] not in self.kept.values():
            return False
        return [self._numbers(name) for name in node.input[1:]] in ([[0], [1], [0]], [[0], [1], [0], [1]])

    def _numbers(self, name: str) -> list[int] | None:
        value = self.constants.get(name)
        return None if value is None else value.reshape(-1).tolist()

    def _can_keep_the_axis(self, node: NodeProto) -> bool:
        if node.op_type in _ELEMENTWISE:
            changing = [name for name in node.input if not self._is_flat(name)]
            return bool(changing) and all(name in self.kept for name in changing)
        if node.input[0] not in self.kept:
            return False
        return node.op_type in _ALONG_AN_AXIS or (node.op_type in _ROUNDING and self._is_flat(node.input[1], rank=0))

    def _is_flat(self, name: str, rank: int = 1) -> bool:
        value = self.constants.get(name)
        return value is not None and value.ndim <= rank

    def _keep_the_axis(self, node: NodeProto) -> None:
        kept = NodeProto()
        kept.CopyFrom(node)
        rename(kept.input, self.kept)
        rename(kept.output, {name: f"{name}.kept" for name in node.output})
        kept.name = kept.output[0]
        axis = axis_of(node, _ALONG_AN_AXIS.get(node.op_type, -1))
        if node.op_type in _ALONG_AN_AXIS and axis >= 0:
            del kept.attribute[[attribute.name for attribute in kept.attribute].index("axis")]
            kept.attribute.append(helper.make_attribute("axis", axis + 1))
        squeezes = []
        for name, long in zip(node.output, kept.output, strict=True):
            self.kept[name] = long
            squeezes.append(helper.make_node("Squeeze", [long, self.axes], [name], name))  # dead if nobody reads it
        replace_nodes(self.model, [node], [kept, *squeezes])
