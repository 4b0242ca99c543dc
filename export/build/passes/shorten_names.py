"""The same graph in fewer bytes: in a small INT8 file the names weigh more than the weights."""

from onnx import ModelProto, TensorProto

from qat_tft.export.graph_edit import rename

_SMALL = 64  # bytes; scales, zero points, axes and bounds, of which a graph repeats the same few values


def shorten_names(model: ModelProto) -> None:
    """Give intermediate values short names, drop node names and shapes, and store each small constant once.

    Inputs, outputs and the initializers that hold parameters keep their names.
    """
    del model.graph.value_info[:]
    _share_small_constants(model)
    _shorten_names(model)


def _share_small_constants(model: ModelProto) -> None:
    first: dict[bytes, str] = {}
    renamed: dict[str, str] = {}
    for tensor in list(model.graph.initializer):
        nameless = TensorProto()
        nameless.CopyFrom(tensor)
        nameless.name = ""
        content = nameless.SerializeToString()
        if len(content) > _SMALL or len(tensor.dims) > 1:  # matrices are weights: each is stored as itself
            continue
        renamed[tensor.name] = first.setdefault(content, tensor.name)
        if renamed[tensor.name] != tensor.name:
            model.graph.initializer.remove(tensor)
    _rename(model, renamed)


def _shorten_names(model: ModelProto) -> None:
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    kept |= {tensor.name for tensor in model.graph.initializer if "." in tensor.name}  # parameters of a module
    made = [name for node in model.graph.node for name in node.output]
    made += [tensor.name for tensor in model.graph.initializer]
    short = {name: f"v{number}" for number, name in enumerate(name for name in made if name and name not in kept)}
    _rename(model, short)
    for node in model.graph.node:
        node.name = ""


def _rename(model: ModelProto, names: dict[str, str]) -> None:
    for node in model.graph.node:
        rename(node.input, names)
        rename(node.output, names)
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
