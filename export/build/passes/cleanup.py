"""The exporter's leftovers are removed: what it tells about itself, and clips that clip nothing."""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from qat_tft.export.graph_edit import remove_unused_initializers, rename_values


def strip(model: ModelProto) -> None:
    """Remove what the exporter tells about itself: node metadata and doc strings are large and hold paths."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del holder.metadata_props[:]
        holder.doc_string = ""
    del model.functions[:]
    model.producer_name, model.producer_version = "qat-tft", ""


def remove_full_range_clips(model: ModelProto) -> int:
    """Drop every Clip that covers its operand's whole 8-bit range, and return how many there were.

    The exporter puts one between QuantizeLinear and DequantizeLinear; onnxruntime recognizes the pair only
    when nothing stands between them.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    quantized = {node.output[0]: node for node in model.graph.node if node.op_type == "QuantizeLinear"}
    clips = [
        node
        for node in model.graph.node
        if node.op_type == "Clip" and node.input[0] in quantized and _covers_its_range(node, constants)
    ]
    renamed = {clip.output[0]: clip.input[0] for clip in clips}
    for clip in clips:
        model.graph.node.remove(clip)
    rename_values(model, renamed)
    remove_unused_initializers(model)
    return len(clips)


def _covers_its_range(clip: NodeProto, constants: dict[str, TensorProto]) -> bool:
    bounds = [constants.get(name) for name in clip.input[1:3]]
    if len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
        return False
    low, high = (numpy_helper.to_array(bound) for bound in bounds if bound is not None)
    if low.dtype not in (np.uint8, np.int8):
        return False
    limits = np.iinfo(low.dtype)
    return bool(low == limits.min and high == limits.max)
