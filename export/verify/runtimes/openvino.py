"""A file in OpenVINO on the CPU, where that is installed: the extra `openvino`."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

_EXACT = {"INFERENCE_PRECISION_HINT": "f32"}  # by default it rounds to bfloat16 on CPUs that have it
_FLOAT = {**_EXACT, "LP_TRANSFORMS_MODE": "NO"}  # multiplies what is dequantized instead of the codes


def why_not(model: ModelProto) -> str:
    """Why OpenVINO is not asked: it is not installed; empty when it is."""
    return "" if find_spec("openvino") else "not installed: it comes with `pip install 'qat-tft[openvino]'`"


def forecast(model: ModelProto, inputs: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.float32], str]:
    """Raw quantiles [B, P, Q] of raw inputs, and how they were computed.

    OpenVINO 2026.4 refuses a whole file whose products have zero points ("cannot be broadcasted"), or whose LSTM has
    8-bit weights behind a DequantizeLinear ("expects Constant"), when it shall multiply integers. Such a file is
    computed in floating point, on the same rounded values.
    """
    import openvino

    core = openvino.Core()
    read = core.read_model(model.SerializeToString())
    try:
        compiled, products = core.compile_model(read, "CPU", _EXACT), "on integers where it can"
    except RuntimeError:
        compiled, products = core.compile_model(read, "CPU", _FLOAT), "in floating point, as it refuses integers"
    quantiles = np.asarray(compiled(dict(inputs))[0], dtype=np.float32)
    return quantiles, f"{openvino.__version__.partition('-')[0]}, products {products}"
