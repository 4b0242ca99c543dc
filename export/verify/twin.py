"""A file with weights of 4 or 2 bits against its twin, the same file with the same codes in 8: nothing may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto

from qat_tft.export.build.passes.pack_codes import unpack_codes
from qat_tft.export.graph_edit import PACKED_TYPES
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.verify.operators import count_products
from qat_tft.export.verify.scratch import scratch_folder
from qat_tft.plain import Plain

Inputs = Mapping[str, npt.NDArray[Any]]

_ROUNDS_BOTH_SIDES = "MatMulNBits"


@dataclass(frozen=True)
class TwinReport(Plain):
    """How a file and its twin differ.

    Attributes:
        values: forecast quantiles that were compared, with and without onnxruntime's optimizations.
        differing: how many of them differ in any bit.
        packed: tensors of fewer than eight bits, and products that read them, in the graph that onnxruntime runs: they
            would be unpacked at every call.
        missing_products: by how many products on integers the file has fewer in that graph.
    """

    values: int
    differing: int
    packed: int
    missing_products: int


def compare_with_twin(model: ModelProto, inputs: Inputs, *, threads: int) -> TwinReport:
    """Run a file and its twin on the same inputs.

    Args:
        model: the file.
        inputs: of the file, raw.
        threads: of onnxruntime.
    """
    twin = ModelProto()
    twin.CopyFrom(model)
    unpack_codes(twin)
    values = differing = 0
    running = {}
    with scratch_folder() as folder:
        paths = {name: folder / f"{name}.onnx" for name in ("file", "twin")}
        for name, graph in (("file", model), ("twin", twin)):
            onnx.save(graph, paths[name])
        for optimized in (True, False):
            found = {}
            for name, path in paths.items():
                kept = path.with_suffix(".optimized.onnx") if optimized else None
                session = ForecastSession(path, optimized=optimized, threads=threads, optimized_graph=kept)
                found[name] = session.forecast(inputs)
                if kept is not None:
                    running[name] = onnx.load(kept)
            values += found["file"].size
            differing += int((found["file"].view(np.int32) != found["twin"].view(np.int32)).sum())
    products = {name: sum(count_products(graph).integer.values()) for name, graph in running.items()}
    return TwinReport(values, differing, _packed(running["file"]), products["twin"] - products["file"])


def _packed(model: ModelProto) -> int:
    tensors: int = sum(tensor.data_type in PACKED_TYPES for tensor in model.graph.initializer)
    nodes: int = sum(node.op_type == _ROUNDS_BOTH_SIDES for node in model.graph.node)
    return tensors + nodes
