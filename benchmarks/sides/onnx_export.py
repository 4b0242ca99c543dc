"""Exports a side's model as an FP32 ONNX file that any batch runs on; where that fails, one file for each batch.

A file counts if onnxruntime's answer is that of torch. The inputs are written beside it, for timing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Written = dict[int, str]
"""The name of the file for each batch."""

LARGEST_ERROR = 1e-3
"""Root mean square of file minus torch over that of torch: single precision gives 1e-6, a wrong graph about 1."""
TRACED_OPSET = 17


def export_forecaster(
    forecaster: nn.Module, inputs: Callable[[int], Inputs], batches: list[int], folder: Path
) -> dict[str, Any]:
    """Write the forecaster's file or files, and `b1.npz` and so on with the inputs of each batch.

    Returns:
        `how` it was exported, and `files`: the name of the file for each batch.

    Raises:
        RuntimeError: no way of exporting gave a file with torch's answers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    forecaster.eval()
    samples = {batch: inputs(batch) for batch in batches}
    example = inputs(4)  # no size of the model: torch.export takes 1 for a constant
    for how, write in _ways(forecaster, samples, example, folder):
        try:
            files = write()
            _require_torchs_answers(forecaster, samples, files, folder)
        except Exception as failure:  # of the exporter or onnxruntime, of any kind: the next way is tried
            print(f"{how}: {type(failure).__name__}: {str(failure).splitlines()[:1]}", file=sys.stderr)
            continue
        for batch, tensors in samples.items():
            np.savez(folder / f"b{batch}.npz", **_named(tensors))
        return {"how": how, "files": files}
    raise RuntimeError("no way of exporting this model gave a file with torch's answers")


def _ways(
    forecaster: nn.Module, samples: dict[int, Inputs], example: Inputs, folder: Path
) -> Iterator[tuple[str, Callable[[], Written]]]:
    """Yield the ways of exporting, the best first."""
    names, every = _names(example), "any.onnx"
    dynamic = ({0: torch.export.Dim("batch", min=1, max=4096)},) * len(example)

    def write(name: str, inputs: Inputs, **options: Any) -> None:
        with torch.no_grad():
            torch.onnx.export(
                forecaster, inputs, str(folder / name), input_names=names, output_names=["forecast"], **options
            )

    def any_batch() -> Written:
        write(every, example, dynamo=True, external_data=False, dynamic_shapes={"inputs": dynamic}, verbose=False)
        return dict.fromkeys(samples, every)

    def each_batch() -> Written:
        files = {batch: f"b{batch}.onnx" for batch in samples}
        for batch, name in files.items():
            write(name, samples[batch], dynamo=True, external_data=False, verbose=False)
        return files

    def traced() -> Written:
        axes = {name: {0: "batch"} for name in [*names, "forecast"]}
        write(every, example, dynamo=False, opset_version=TRACED_OPSET, dynamic_axes=axes)
        return dict.fromkeys(samples, every)

    yield "dynamic batch", any_batch
    yield "a file for each batch", each_batch
    yield "traced", traced


def _require_torchs_answers(forecaster: nn.Module, samples: dict[int, Inputs], files: Written, folder: Path) -> None:
    for batch, tensors in samples.items():
        with torch.no_grad():
            expected = forecaster(*tensors).numpy()
        session = ort.InferenceSession(str(folder / files[batch]), providers=["CPUExecutionProvider"])
        asked = {node.name for node in session.get_inputs()}  # an exporter drops inputs that the graph does not use
        feed = {name: values for name, values in _named(tensors).items() if name in asked}
        error = np.square(session.run(None, feed)[0] - expected).mean() / np.square(expected).mean()
        if not error <= LARGEST_ERROR**2:
            raise ValueError(f"at batch {batch} the file differs from torch by {error**0.5:.1e} of the forecast")


def _named(inputs: Inputs) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in zip(_names(inputs), inputs, strict=True)}


def _names(inputs: Inputs) -> list[str]:
    return [f"input_{place}" for place in range(len(inputs))]
