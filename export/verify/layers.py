"""Layer by layer: what rounding costs in each, and whether the file computes each as the QAT model does.

What goes into and comes out of every layer with integer weights is taken from the file while it forecasts. The same
layer of the QAT model then gets the same input, so an error shows in the layer where it is made and in no other.

Legend: B batch, T time, H hidden, V variables, N rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnx import ModelProto
from torch import Tensor

from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.verify.intermediate_outputs import (
    ProductValues,
    Values,
    find_values,
    names_of,
    outputs_of,
    with_outputs,
)
from qat_tft.export.verify.measures import sqnr_db
from qat_tft.model.layers import AffineVariables
from qat_tft.plain import Plain
from qat_tft.quantization.layers import QuantizedLinear, QuantizedVariableLinear
from qat_tft.quantization.lstm import QuantizedLSTM
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.stored import (
    StoredAffine,
    StoredLayer,
    StoredLinear,
    StoredLSTM,
    StoredVariableLinear,
)

EQUAL = 0.01
"""Share of a step up to which two results count as equal: sums of the same products in another order."""

_WINDOWS, _VALUES = 16, 2**22

Layer = QuantizedLinear | QuantizedVariableLinear | QuantizedLSTM | StoredLayer
Inputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class LayerReport(Plain):
    """One quantized layer; in each comparison both sides get the same input.

    A step of an output is the most that one code more or less of one input changes it: the input's scale times the
    largest magnitude in the output's row of weights. For an LSTM it is what that changes in the sum of a gate. Where
    only the weight is rounded, it is what one code of the weight changes at the largest input.

    Attributes:
        name: of the layer; operator: of its product in the file.
        values: how many values were compared.
        qat_db: SQNR of the QAT layer against itself without rounding.
        file_db: SQNR of the file's layer against the QAT layer, ``optimized`` and ``unoptimized``.
        file_steps: largest difference between those two, in steps.
        file_off: share of the values that differ at all, by more than ``EQUAL`` of a step.
        file_off_beyond: the same without the row that differs most: a single input that is rounded the other way
            changes one row, and nothing else.
    """

    name: str
    operator: str
    values: int
    qat_db: float | None
    file_db: Mapping[str, float | None]
    file_steps: Mapping[str, float | None]
    file_off: Mapping[str, float]
    file_off_beyond: Mapping[str, float]

    @property
    def lowest_db(self) -> float:
        """The lowest of its ratios; minus infinity where values are not finite."""
        return min(-np.inf if ratio is None else ratio for ratio in (self.qat_db, *self.file_db.values()))

    @property
    def exact(self) -> bool:
        """Whether the file means to compute what the QAT model does; onnxruntime's own integer LSTM does not."""
        return self.operator != "DynamicQuantizeLSTM"


@torch.no_grad()
def layer_reports(
    graph: ModelProto,
    qat: QATTemporalFusionTransformer,
    inputs: Inputs,
    *,
    threads: int,
    modes: Sequence[str] = ("optimized", "unoptimized"),
) -> tuple[LayerReport, ...]:
    """Compare each layer with integer weights of a file with that of the QAT model it was made from, worst first.

    Args:
        graph: the file.
        qat: the model; its phase is left as it was.
        inputs: of the file, raw.
        threads: of onnxruntime.
        modes: how onnxruntime runs the file, ``unoptimized`` among them.

    Returns:
        A report per layer that the graph holds, by lowest ratio; a layer that is missing has none.
    """
    layers = _layers(qat)
    places = find_values(GraphReader(graph), {name: _steps_after(layer) for name, layer in layers.items()})
    content = with_outputs(graph, names_of(places)).SerializeToString()
    values = {mode: outputs_of(content, inputs, optimized=mode == "optimized", threads=threads) for mode in modes}
    reports = [_report(name, layers[name], found, values) for name, found in places.items()]
    return tuple(sorted(reports, key=lambda report: report.lowest_db))


def most_windows(qat: QATTemporalFusionTransformer) -> int:
    """How many windows to compare layers on: fewer for a wide model, whose values all have to be kept."""
    widest = max(_weight(layer)[..., 0, :].numel() for layer in _layers(qat).values())
    return max(1, min(_WINDOWS, _VALUES // (widest * qat.model.history)))


def compared_layers(qat: QATTemporalFusionTransformer) -> list[str]:
    """Return the names of the layers that are compared: the quantized ones, and those of which the weight is stored."""
    stored = (name for name, module in qat.model.named_modules() if isinstance(module, StoredLayer))
    return [*qat.quantized_layers(), *stored]


def _layers(qat: QATTemporalFusionTransformer) -> dict[str, Layer]:
    return {name: qat.model.get_submodule(name) for name in compared_layers(qat)}  # type: ignore[misc]


def _weight(layer: Layer) -> Tensor:
    """Return the weight [..., out, in] that the input meets; of an affine map per variable [V, 2, H]."""
    if isinstance(layer, QuantizedLSTM | StoredLSTM):
        return layer.weight_ih
    return AffineVariables.rows(layer) if isinstance(layer, StoredAffine) else layer.weight


def _integer(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return codes and scales of the weight that the input meets."""
    rounding = layer.rounding_ih if isinstance(layer, QuantizedLSTM | StoredLSTM) else layer.rounding
    return rounding.integer(_weight(layer))


def _steps_after(layer: Layer) -> int:
    """Return how many nodes belong to a layer after its product."""
    if isinstance(layer, QuantizedVariableLinear):
        return 2  # the scales, then bias and zero points
    if isinstance(layer, StoredVariableLinear):
        return 1
    return int(isinstance(layer, QuantizedLinear | StoredLinear) and layer.bias is not None)


def _report(name: str, layer: Layer, places: list[ProductValues], values: Mapping[str, Values]) -> LayerReport:
    file_db, file_steps, file_off, file_off_beyond = {}, {}, {}, {}
    for mode, found in values.items():
        x = _input(places, found)
        ours, theirs = _with_phase(layer, Phase.FROZEN, places, found), _output(places, found)
        steps = (theirs - ours).abs() / _step(layer, x).clamp_min(torch.finfo(torch.float32).tiny)
        off = ~(steps <= EQUAL)
        file_db[mode] = sqnr_db(ours.numpy(), theirs.numpy())
        file_steps[mode] = float(steps.max()) if bool(torch.isfinite(steps).all()) else None
        file_off[mode] = float(off.float().mean())
        file_off_beyond[mode] = float(off.sum() - off.sum(-1).amax()) / off.numel()
    exact = _with_phase(layer, Phase.FLOAT, places, values["unoptimized"])
    rounded = _with_phase(layer, Phase.FROZEN, places, values["unoptimized"])
    qat_db = sqnr_db(exact.numpy(), rounded.numpy())
    operator = places[0].product.node.op_type
    return LayerReport(name, operator, exact.numel(), qat_db, file_db, file_steps, file_off, file_off_beyond)


def _with_phase(layer: Layer, phase: Phase, places: list[ProductValues], values: Values) -> Tensor:
    """Return what the layer puts out in a phase for the input that the file's layer had."""
    with _phase(layer, phase):
        x = _input(places, values)
        if isinstance(layer, QuantizedLSTM | StoredLSTM):
            hidden, cell = (torch.from_numpy(values[name]) for name in places[0].product.states)
            return layer(x, (hidden, cell))[0]  # type: ignore[no-any-return]
        if isinstance(layer, QuantizedVariableLinear | StoredVariableLinear):
            (whole,) = layer.chunks([len(x)])
            return whole(x)
        return x @ layer.rows() if isinstance(layer, StoredAffine) else layer(x)


@contextmanager
def _phase(layer: Layer, phase: Phase) -> Iterator[None]:
    holder = layer if isinstance(layer, StoredLayer) else layer.input
    before = holder.phase
    holder.phase = phase
    try:
        yield
    finally:
        holder.phase = before


def _input(places: list[ProductValues], values: Values) -> Tensor:
    """Return the layer's input: [V, N, in] from all chunks, [B, T, H] or [.., in]."""
    chunks = [torch.from_numpy(values[one.input]) for one in places if one.product.half == 0]
    x = torch.cat(chunks) if len(chunks) > 1 else chunks[0]
    return x.transpose(0, 1) if places[0].time_first else x


def _output(places: list[ProductValues], values: Values) -> Tensor:
    """Return the layer's output from all chunks and halves; a recurrent operator's [T, 1, B, H] as [B, T, H]."""
    outputs = [torch.from_numpy(values[one.output]) for one in places]
    if places[0].product.recurrent:
        return outputs[0].squeeze(1).transpose(0, 1)
    chunks = dict.fromkeys(one.product.chunk for one in places)
    halves = [[out for one, out in zip(places, outputs, strict=True) if one.product.chunk == chunk] for chunk in chunks]
    joined = [torch.cat(parts, -1) for parts in halves]
    return torch.cat(joined) if len(joined) > 1 else joined[0]


def _step(layer: Layer, x: Tensor) -> Tensor:
    """Return the step of each output, shaped to stand against the layer's output."""
    if isinstance(layer, StoredLayer):
        return _step_of_weight(layer) * x.abs().amax()
    codes, scale = _integer(layer)
    largest = codes.float().abs().amax(-1) * scale.squeeze(-1)  # [..., out]
    if isinstance(layer, QuantizedVariableLinear):
        return (largest * layer.input.scale.unsqueeze(1)).unsqueeze(1)  # [V, 1, out]
    if isinstance(layer, QuantizedLSTM):
        largest = largest.view(4, -1).amax(0)  # [H]
    return largest * layer.input.scale


def _step_of_weight(layer: StoredLayer) -> Tensor:
    """Return what one code of the weight is worth for each output, shaped to stand against the layer's output."""
    _, scale = _integer(layer)  # [out, 1], [V, out, 1] or [V, 2, 1]
    if isinstance(layer, StoredAffine):
        return scale.amax(1, keepdim=True)
    if isinstance(layer, StoredVariableLinear):
        return scale.transpose(1, 2)  # [V, 1, out]
    return scale.view(4, -1).amax(0) if isinstance(layer, StoredLSTM) else scale.squeeze(-1)
