"""A file in onnx's reference evaluator: the operators' specification, written in numpy, and nothing else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from qat_tft.export.metadata import OUTPUT

_MOST_WEIGHTS = 100_000_000  # 11 million take a quarter of a second, and several copies of them


def why_not(model: ModelProto) -> str:
    """Why the evaluator is not asked: too many weights; empty when it can be."""
    weights = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    return f"{weights:,} weights are too many for it, above {_MOST_WEIGHTS:,}" if weights > _MOST_WEIGHTS else ""


def forecast(model: ModelProto, inputs: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.float32], str]:
    """Raw quantiles [B, P, Q] of raw inputs, and how they were computed."""
    (quantiles,) = ReferenceEvaluator(model).run([OUTPUT], dict(inputs))
    return np.asarray(quantiles, dtype=np.float32), f"onnx {onnx.__version__}"
