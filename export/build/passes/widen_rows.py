"""Vectors that are the same for every row are applied to several rows at once.

onnxruntime applies a vector [C, 1, W] to [C, N, W] row by row, at a cost per row that exceeds the arithmetic where W is
small. N is a number of windows times their steps, so rows can be laid side by side, k at a time: [C, N / k, k W].
"""

import re

import numpy as np
from onnx import ModelProto, NodeProto, helper

from qat_tft.export.graph_edit import (
    Constants,
    add_constant,
    constant_values,
    readers_of,
    remove_unused_initializers,
    replace_nodes,
)
from qat_tft.export.metadata import BATCH

NARROW, WIDE = 64, 1024
"""Rows of up to `NARROW` values are laid side by side until they have `WIDE` values at most."""

_STEPS = re.compile(rf"(\d+)\*{BATCH}|{BATCH}\*(\d+)")  # how the exporter writes a multiple of the batch


def widen_rows(model: ModelProto) -> int:
    """Lay rows side by side where vectors are multiplied with or added to them; return how many runs of nodes changed.

    Every vector is repeated by a Tile of a constant, which a runtime computes once when it loads the file. How many
    rows a window has is read from the exporter's shapes of values; without them nothing is done.
    """
    constants, readers, steps = constant_values(model), readers_of(model), _steps_of_values(model)
    done: set[str] = set()
    widened = 0
    for node in list(model.graph.node):
        if node.output[0] in done or (shape := _vector_shape(node, constants)) is None:
            continue
        run = [node]
        while len(following := readers.get(run[-1].output[0], [])) == 1:
            if _vector_shape(following[0], constants) != shape:
                break
            run.append(following[0])
        done.update(name for one in run for name in one.output)
        together = _rows_together(steps.get(run[-1].output[0], 1), shape[-1])
        if together > 1:
            _widen(model, run, constants, shape, together)
            widened += 1
    remove_unused_initializers(model)
    return widened


def _steps_of_values(model: ModelProto) -> dict[str, int]:
    # Values [C, steps * batch, W] by name, with their steps.
    found = {}
    for value in model.graph.value_info:
        dims = value.type.tensor_type.shape.dim
        steps = _STEPS.fullmatch(dims[1].dim_param) if len(dims) == 3 else None
        if steps is not None:
            found[value.name] = int(steps[1] or steps[2])
    return found


def _vector_shape(node: NodeProto, constants: Constants) -> tuple[int, ...] | None:
    if node.op_type not in ("Mul", "Add"):
        return None
    shapes = [constants[name].shape for name in node.input if name in constants]
    narrow = len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][1] == 1 < shapes[0][2] <= NARROW
    return shapes[0] if narrow else None


def _rows_together(steps: int, width: int) -> int:
    return max(k for k in range(1, steps + 1) if steps % k == 0 and (k == 1 or k * width <= WIDE))


def _widen(
    model: ModelProto, run: list[NodeProto], constants: Constants, shape: tuple[int, ...], together: int
) -> None:
    (data,) = [name for name in run[0].input if name not in constants]
    result = run[-1].output[0]
    nodes = [_reshape(model, data, f"{result}.rows", [shape[0], -1, together * shape[-1]])]
    repeats = add_constant(model, f"{result}.repeats", np.array([1, 1, together]))
    for node in run:
        (vector,) = [name for name in node.input if name in constants]
        name, before = node.output[0], nodes[-1].output[0]
        nodes.append(helper.make_node("Tile", [vector, repeats], [f"{name}.tiled"], f"{name}.tiled"))
        nodes.append(helper.make_node(node.op_type, [before, f"{name}.tiled"], [f"{name}.wide"], f"{name}.wide"))
    nodes.append(_reshape(model, nodes[-1].output[0], result, [shape[0], -1, shape[-1]]))
    replace_nodes(model, run, nodes)


def _reshape(model: ModelProto, data: str, result: str, shape: list[int]) -> NodeProto:
    return helper.make_node(
        "Reshape", [data, add_constant(model, f"{result}.shape", np.array(shape))], [result], result
    )
