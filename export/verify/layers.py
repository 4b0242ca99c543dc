"""Layer by layer: what rounding costs in each, and whether the file computes each as the QAT model does.

What goes into and comes out of every quantized layer is taken from the file while it forecasts. The same layer of the
QAT model then gets the same input, so an error shows in the layer where it is made and in no other. Legend: B batch,
T time, H hidden, V variables, N rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from onnx import ModelProto
from torch import Tensor

from qat_tft.export.inference.session import session_options
from qat_tft.export.verify.intermediate_outputs import Tap, expose, find_taps
from qat_tft.export.verify.measures import sqnr_db
from qat_tft.quantization.layers import QuantizedLinear, QuantizedVariableLinear, integer_weight
from qat_tft.quantization.lstm import QuantizedLSTM
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase

EQUAL = 0.01
"""Share of a step up to which two results count as equal: sums of the same products in another order."""

_WINDOWS, _VALUES = 16, 2**22

Layer = QuantizedLinear | QuantizedVariableLinear | QuantizedLSTM
Values = dict[str, npt.NDArray[np.float32]]
Inputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class LayerReport:
    """One quantized layer; in each comparison both sides get the same input.

    A step of an output is the most that one code more or less of one input changes it: the input's scale times the
    largest magnitude in the output's row of weights. For an LSTM it is what that changes in the sum of a gate.

    Attributes:
        name: of the layer; operator: of its product in the file.
        values: how many values were compared.
        qat_db: SQNR of the QAT layer against itself without rounding.
        file_db: SQNR of the file's layer against the QAT layer, ``optimized`` and ``unoptimized``.
        file_steps: largest difference between those two, in steps.
        file_off: share of the values that differ at all, by more than ``EQUAL`` of a step.
    """

    name: str
    operator: str
    values: int
    qat_db: float | None
    file_db: Mapping[str, float | None]
    file_steps: Mapping[str, float | None]
    file_off: Mapping[str, float]

    @property
    def lowest_db(self) -> float:
        """The lowest of its ratios; minus infinity where values are not finite."""
        return min(-np.inf if ratio is None else ratio for ratio in (self.qat_db, *self.file_db.values()))

    @property
    def exact(self) -> bool:
        """Whether the file means to compute what the QAT model does; onnxruntime's own integer LSTM does not."""
        return self.operator != "DynamicQuantizeLSTM"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values only."""
        return asdict(self)


@torch.no_grad()
def layer_reports(
    graph: ModelProto, qat: QATTemporalFusionTransformer, inputs: Inputs, *, threads: int
) -> tuple[LayerReport, ...]:
    """Compare each quantized layer of a file with that of the QAT model it was made from, worst first.

    Args:
        graph: the file.
        qat: the model; its phase is left as it was.
        inputs: of the file, raw.
        threads: of onnxruntime.

    Returns:
        A report per layer that the graph holds, by lowest ratio; a layer that is missing has none.
    """
    layers = _layers(qat)
    taps = {name: found for name, found in find_taps(graph, _steps_after(layers)).items() if found}
    content = expose(graph, taps).SerializeToString()
    values = {mode: _run(content, inputs, mode == "optimized", threads) for mode in ("optimized", "unoptimized")}
    reports = [_report(name, layers[name], found, values) for name, found in taps.items()]
    return tuple(sorted(reports, key=lambda report: report.lowest_db))


def most_windows(qat: QATTemporalFusionTransformer) -> int:
    """How many windows to compare layers on: fewer for a wide model, whose values all have to be kept."""
    widest = max(_weight(layer)[..., 0, :].numel() for layer in _layers(qat).values())
    return max(1, min(_WINDOWS, _VALUES // (widest * qat.model.history)))


def _layers(qat: QATTemporalFusionTransformer) -> dict[str, Layer]:
    return {name: qat.model.get_submodule(name) for name in qat.quantized_layers()}  # type: ignore[misc]


def _weight(layer: Layer) -> Tensor:
    return layer.weight_ih if isinstance(layer, QuantizedLSTM) else layer.weight  # what the rounded input meets


def _steps_after(layers: Mapping[str, Layer]) -> dict[str, int]:
    def steps(layer: Layer) -> int:
        if isinstance(layer, QuantizedVariableLinear):
            return 2  # the scales, then bias and zero points
        return int(isinstance(layer, QuantizedLinear) and layer.bias is not None)

    return {name: steps(layer) for name, layer in layers.items()}


def _run(content: bytes, inputs: Inputs, optimized: bool, threads: int) -> Values:
    options = session_options(optimized=optimized, threads=threads)
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _report(name: str, layer: Layer, taps: list[Tap], values: Mapping[str, Values]) -> LayerReport:
    step = _step(layer).clamp_min(torch.finfo(torch.float32).tiny)
    file_db, file_steps, file_off = {}, {}, {}
    for mode, found in values.items():
        ours = _with_phase(layer, Phase.FROZEN, taps, found)
        theirs = _output(taps, found)
        steps = (theirs - ours).abs() / step
        file_db[mode] = sqnr_db(ours.numpy(), theirs.numpy())
        file_steps[mode] = float(steps.max()) if bool(torch.isfinite(steps).all()) else None
        file_off[mode] = float((~(steps <= EQUAL)).float().mean())
    exact = _with_phase(layer, Phase.FLOAT, taps, values["unoptimized"])
    rounded = _with_phase(layer, Phase.FROZEN, taps, values["unoptimized"])
    qat_db = sqnr_db(exact.numpy(), rounded.numpy())
    return LayerReport(name, taps[0].operator, exact.numel(), qat_db, file_db, file_steps, file_off)


def _with_phase(layer: Layer, phase: Phase, taps: list[Tap], values: Values) -> Tensor:
    """Return what the layer puts out in a phase for the input that the file's layer had."""
    with _phase(layer, phase):
        x = _input(taps, values)
        if isinstance(layer, QuantizedLSTM):
            hidden, cell = (torch.from_numpy(values[name]) for name in taps[0].states)
            return layer(x, (hidden, cell))[0]  # type: ignore[no-any-return]
        if isinstance(layer, QuantizedVariableLinear):
            (whole,) = layer.chunks([len(x)])
            return whole(x)
        return layer(x)  # type: ignore[no-any-return]


@contextmanager
def _phase(layer: Layer, phase: Phase) -> Iterator[None]:
    before = layer.input.phase
    layer.input.phase = phase
    try:
        yield
    finally:
        layer.input.phase = before


def _input(taps: list[Tap], values: Values) -> Tensor:
    """Return the layer's input: [V, N, in] from all chunks, [B, T, H] or [.., in]."""
    chunks = [torch.from_numpy(values[tap.input]) for tap in taps if tap.half == 0]
    x = torch.cat(chunks) if len(chunks) > 1 else chunks[0]
    return x.transpose(0, 1) if taps[0].time_first else x


def _output(taps: list[Tap], values: Values) -> Tensor:
    """Return the layer's output from all chunks and halves; a recurrent operator's [T, 1, B, H] as [B, T, H]."""
    outputs = [torch.from_numpy(values[tap.output]) for tap in taps]
    if taps[0].states:
        return outputs[0].squeeze(1).transpose(0, 1)
    chunks = dict.fromkeys(tap.chunk for tap in taps)
    halves = [[out for tap, out in zip(taps, outputs, strict=True) if tap.chunk == chunk] for chunk in chunks]
    joined = [torch.cat(parts, -1) for parts in halves]
    return torch.cat(joined) if len(joined) > 1 else joined[0]


def _step(layer: Layer) -> Tensor:
    """Return the step of each output, shaped to stand against the layer's output."""
    codes, scale = integer_weight(_weight(layer), layer.codes)
    largest = codes.float().abs().amax(-1) * scale.squeeze(-1)  # [..., out]
    if isinstance(layer, QuantizedVariableLinear):
        return (largest * layer.input.scale.unsqueeze(1)).unsqueeze(1)  # [V, 1, out]
    if isinstance(layer, QuantizedLSTM):
        largest = largest.view(4, -1).amax(0)  # [H]
    return largest * layer.input.scale
