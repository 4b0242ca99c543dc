"""Weights laid out once, in the file, instead of at every start: what only rearranges constants is computed now."""

from collections import Counter

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qat_tft.export.graph_edit import Constants, constant_values, remove_unused_initializers, rename_values

REARRANGING = (
    "Split",
    "Slice",
    "Transpose",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Concat",
    "Identity",
    "Gather",
)
_ALL_KEPT = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity")  # every element, once


def fold_rearrangements(model: ModelProto) -> int:
    """Replace every node that only rearranges constants by its result; return how many there were.

    The exporter leaves a Split of weights in the graph (it folds no node of several outputs) and with it every
    Transpose that follows. 8-bit weights stay 8-bit: nothing is computed, only moved.
    """
    constants = constant_values(model)
    parameters = {tensor.name: tensor.name for tensor in model.graph.initializer if "." in tensor.name}
    folded = []
    for node in model.graph.node:  # in topological order: what a fold yields can be folded further
        if node.op_type in REARRANGING and all(name in constants for name in node.input if name):
            constants |= evaluated(node, constants, model)
            if len(node.output) == 1 and node.input[0] in parameters and node.op_type in _ALL_KEPT:
                parameters[node.output[0]] = parameters[node.input[0]]
            folded.append(node)
    made = {name for node in folded for name in node.output}
    outputs = {output.name for output in model.graph.output}
    for node in folded:
        model.graph.node.remove(node)
    needed = {name for node in model.graph.node for name in node.input} | outputs
    for name in sorted(made & needed):
        model.graph.initializer.append(numpy_helper.from_array(constants[name], name))
    remove_unused_initializers(model)
    _keep_names(model, {name: parameters[name] for name in made & needed & parameters.keys()})
    return len(folded)


def _keep_names(model: ModelProto, folded: dict[str, str]) -> None:
    """Give what a parameter was laid out as the parameter's name, where nothing else has it."""
    taken = {tensor.name for tensor in model.graph.initializer}
    uses = Counter(folded.values())
    names = {name: parameter for name, parameter in folded.items() if uses[parameter] == 1 and parameter not in taken}
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    rename_values(model, names)


def evaluated(node: NodeProto, constants: Constants, model: ModelProto) -> Constants:
    """Outputs of a node all of whose inputs are constants, computed by the reference implementation."""
    names = [name for name in dict.fromkeys(node.input) if name]
    values = {name: constants[name] for name in names}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "fold", inputs, outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import)
    results = ReferenceEvaluator(single).run(None, values)
    return {name: np.ascontiguousarray(result) for name, result in zip(node.output, results, strict=True)}
