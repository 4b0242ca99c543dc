"""The same file in runtimes other than onnxruntime: does it mean the same everywhere?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from qat_tft.errors import OnnxFileError
from qat_tft.export.build.graph_rules import foreign_operators
from qat_tft.export.verify.measures import sqnr_db
from qat_tft.export.verify.runtimes import openvino, reference
from qat_tft.plain import Plain

ROWS = 2  # the reference evaluator computes an LSTM step by step

Array = npt.NDArray[np.float32]
Inputs = Mapping[str, npt.NDArray[Any]]

_RUNTIMES: dict[str, ModuleType] = {"onnx reference evaluator": reference, "OpenVINO": openvino}


@dataclass(frozen=True)
class OtherRuntime(Plain):
    """What a runtime made of a few rows.

    Attributes:
        name: of the runtime.
        sqnr_db: of the network's output against the reference model's; None where it did not run or is not finite.
        how: version, and how it computed.
        skipped: why it was not asked; empty where it was.
        by_definition: whether it is the operators' specification, and not a program that rounds as it likes.
    """

    name: str
    sqnr_db: float | None = None
    how: str = ""
    skipped: str = ""
    by_definition: bool = False


def other_runtimes(
    model: ModelProto, inputs: Inputs, expected: Array, units: Callable[[Array], Array]
) -> tuple[OtherRuntime, ...]:
    """Run a file in every other runtime that knows its operators and is installed.

    Args:
        model: the file.
        inputs: raw, of a few rows.
        expected: raw quantiles [B, P, Q] of the reference model for these rows.
        units: turns raw quantiles into what the network put out.

    Raises:
        OnnxFileError: a runtime that knows the file's operators cannot run it.
    """
    foreign = foreign_operators(model)
    unknown = f"it knows no {', '.join(foreign)}, which the ONNX standard does not have" if foreign else ""
    wanted = units(expected)
    found = []
    for name, runtime in _RUNTIMES.items():
        skipped = unknown or runtime.why_not(model)
        if skipped:
            found.append(OtherRuntime(name, skipped=skipped))
            continue
        quantiles, how = _forecast(name, runtime, model, inputs)
        ratio = sqnr_db(wanted, units(quantiles))
        found.append(OtherRuntime(name, ratio, how, by_definition=runtime is reference))
    return tuple(found)


def _forecast(name: str, runtime: ModuleType, model: ModelProto, inputs: Inputs) -> tuple[Array, str]:
    try:
        quantiles, how = runtime.forecast(model, inputs)
    except Exception as error:  # runtimes raise many unrelated classes for a graph that onnxruntime lets pass
        raise OnnxFileError(
            f"the {name} cannot run this file ({str(error).splitlines()[0] if str(error) else type(error).__name__})",
            next_step="It is damaged: export it again with `qat-tft export`.",
        ) from error
    return quantiles, how
