"""What every tensor of a file has to be, computed from what a run folder holds and from nothing else.

This is a second implementation on purpose: it reads the names and numbers in the weights file, and shares no code with
the models, the quantized layers and the exporter, so that a fault in those is found here and not repeated.

Legend: V variables, H hidden, T history, F horizon, S = T + F, K categorical columns of a group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qat_tft.export.verify.tensors.tables import PARTS, Layers, place_numbers, table_rows, table_starts
from qat_tft.schema import GroupSize

Array = npt.NDArray[Any]
State = Mapping[str, Tensor]
Codes = tuple[int, int]
"""Lowest and highest."""

_STORED_HIGH = 127
"""Largest code of 8-bit weights that are stored as integers and multiplied as floats: all of them on every target."""
_STORED = (-_STORED_HIGH, _STORED_HIGH)
_ROUNDING = "rounding"
"""What the names of trained or fixed scales of a weight begin with."""
_SELECTIONS = ("static_selection", "historical_selection", "future_selection")
_FRAME = "frame"
"""Level of the window and linear path, in floating point in every file."""
_PADDING_NUMBERS = (0.5, -math.inf)
"""What `history.present` is compared with, and the score of a step that gets no attention."""
_TRANSFORM_NUMBERS = {"softplus": (0.1, 2.0, 24.0, 20.0)}
"""Of the series `log y + y / 2 + y^2 / 24` for y below 0.1, and where torch's softplus becomes the identity."""
_ONNX_GATES = (0, 3, 1, 2)  # torch: input, forget, cell, output; ONNX: input, output, forget, cell


@dataclass(frozen=True)
class ExpectedTensor:
    """One tensor that a file must hold.

    Attributes:
        layer: name of the layer in the model; ``scaling`` for the statistics, ``graph`` for what no layer owns.
        part: what of the layer it is, such as ``codes``.
        value: in the layout of the run; a file may hold it transposed, cut by variables, or halved along its last axis.
            float64 stands for float32 that is rounded from it.
        tolerance: largest difference as a share of the largest magnitude; 0: every bit must be equal.
    """

    layer: str
    part: str
    value: Array
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        """Layer and part."""
        return f"{self.layer}.{self.part}"


@dataclass(frozen=True)
class InputRange:
    """How the input of a quantized layer is rounded: float32 scales and integer zero points, one, or one a variable."""

    scale: Array
    zero_point: Array


@dataclass(frozen=True)
class Shape:
    """What of a run's configuration its tensors depend on.

    Attributes:
        hidden, heads, history, horizon: of the model.
        groups: widths of the static, historical and future group.
        highest_code: largest code of an 8-bit weight that is multiplied as an integer.
        low_bits: layer to the bits of its weight, where they are fewer than eight.
        signed: whether activations are int8 with zero point 0.
        stored: whether every weight is stored in 8 bits and multiplied as floats.
        transform: name of the target's transform.
        knots: of each real variable; 0 where selection is exact.
        window: whether the target is normalized by its window.
    """

    hidden: int
    heads: int
    history: int
    horizon: int
    groups: tuple[GroupSize, GroupSize, GroupSize]
    highest_code: int = 0
    low_bits: Mapping[str, int] = field(default_factory=dict)
    signed: bool = False
    stored: bool = False
    transform: str = "none"
    knots: int = 0
    window: bool = False


def expected_int8(
    state: State, shape: Shape, float_layers: Collection[str] = ()
) -> tuple[list[ExpectedTensor], dict[str, InputRange]]:
    """Return the tensors of an INT8 file, and the rounding of each quantized layer's input.

    Args:
        state: the QAT model's weights and ranges.
        shape: of the run.
        float_layers: layers that are left in floating point, although there may be ranges for them.
    """
    layers = _by_layer({name.removeprefix("model."): tensor for name, tensor in state.items()})
    tensors: list[ExpectedTensor] = []
    ranges: dict[str, InputRange] = {}
    for layer, parts in layers.items():
        if shape.knots and _is_in_a_table(layer):
            continue
        if layer in float_layers:
            kept = {part: one for part, one in parts.items() if not part.startswith(("input.", _ROUNDING))}
            tensors += _floating(layer, kept)
        elif _is_quantized(parts):
            ranges[layer] = _range(parts, signed=shape.signed)
            tensors += _quantized(layer, parts, ranges[layer], _codes_of(layer, shape, shape.highest_code))
        elif layer.endswith((".real_first", ".real_embedding")):
            tensors += _integer(layer, torch.stack([parts["weight"], parts["bias"]], 1), _STORED)
        elif layer.endswith(".weighing.real"):
            tensors += [*_integer(layer, parts["weight"], _STORED), _plain(layer, "bias", parts["bias"])]
        elif shape.stored and _is_a_map(layer, parts):
            tensors += _stored(layer, parts, _codes_of(layer, shape, _STORED_HIGH))
        else:
            tensors += _floating(layer, parts)
    return [*tensors, *_tables(layers, shape, float_layers), *_graph(shape)], ranges


def expected_fp32(state: State, shape: Shape) -> list[ExpectedTensor]:
    """Return the tensors of an FP32 file: second maps merged into gates in double precision, everything else as it is.

    Args:
        state: the floating-point model's weights.
        shape: of the run.
    """
    layers = _by_layer(state)
    tensors: list[ExpectedTensor] = []
    for layer, parts in layers.items():
        second = layers.get(f"{layer.removesuffix('gate')}second", {}) if layer.endswith(".gate") else {}
        if layer.endswith(".second") or (shape.knots and _is_in_a_table(layer)):
            continue
        if second:
            tensors += _merged(layer, parts, second)
        elif layer.endswith((".real_first", ".real_embedding")):
            tensors.append(_plain(layer, "rows", torch.stack([parts["weight"], parts["bias"]], 1)))
        else:
            tensors += _floating(layer, parts)
    return [*tensors, *_tables(layers, shape), *_graph(shape)]


def expected_scaling(center: Mapping[str, Array], scale: Mapping[str, Array]) -> list[ExpectedTensor]:
    """Return the statistics by which a file scales its inputs and its output.

    Args:
        center: of the static, historical and future group, each [N, V], float32; the target comes first in the
            historical one.
        scale: of the same groups.
    """
    tensors = []
    for part, values in (("center", center), ("scale", scale)):
        tensors += [
            ExpectedTensor("scaling", f"{group}_{part}", value) for group, value in values.items() if value.size
        ]
        tensors.append(ExpectedTensor("scaling", f"target_{part}", values["historical"][:, :1]))
    return tensors


def _by_layer(state: State) -> dict[str, dict[str, Tensor]]:
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        layer, _, part = name.rpartition(".")
        owner, _, inner = layer.rpartition(".")
        if inner == "input" or inner.startswith(_ROUNDING):  # a quantizer belongs to the layer that it rounds for
            layer, part = owner, f"{inner}.{part}"
        layers.setdefault(layer or "graph", {})[part] = tensor
    return layers


def _is_in_a_table(layer: str) -> bool:
    selection, _, part = layer.partition(".")
    return selection in _SELECTIONS and part in PARTS


def _tables(layers: Layers, shape: Shape, float_layers: Collection[str] | None = None) -> Iterator[ExpectedTensor]:
    """Yield the tables of tabulated selection networks.

    Their rows are rounded to 8 bits, but where `float_layers` is None or names the table.
    """
    for selection, group in zip(_SELECTIONS, shape.groups, strict=True):
        size, table = group.variables, f"{selection}.table"
        if not shape.knots or not size.total:
            continue
        rows = table_rows(selection, layers, size, shape.knots)
        if float_layers is None or table in float_layers:
            yield ExpectedTensor(table, "rows", rows)
        else:
            scales = np.maximum(np.abs(rows).max(-1) / _STORED_HIGH, float(np.finfo(np.float32).tiny))
            rounded = scales.astype(np.float32).astype(np.float64)
            yield ExpectedTensor(table, "codes", np.rint(rows / rounded[:, None]).astype(np.int8))
            yield ExpectedTensor(table, "scales", scales)
        starts = table_starts(size, shape.knots)
        for name, part in (("knot_starts", starts[: size.real]), ("code_starts", starts[size.real :])):
            if part.size:
                yield ExpectedTensor(selection, name, part)


def _is_quantized(parts: Mapping[str, Tensor]) -> bool:
    return "input.scale" in parts or "input.log_scale" in parts


def _range(parts: Mapping[str, Tensor], *, signed: bool) -> InputRange:
    scale = parts["input.scale"] if "input.scale" in parts else parts["input.log_scale"].exp()
    kind = torch.int8 if signed else torch.uint8
    return InputRange(scale.numpy(), parts["input.zero_point"].to(kind).numpy())


def _codes_of(layer: str, shape: Shape, high: int) -> Codes:
    """Return lowest and highest code of a layer's weight; `high` is that of eight bits."""
    bits = shape.low_bits.get(layer)
    return (-high, high) if bits is None else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _quantized(layer: str, parts: Mapping[str, Tensor], rounding: InputRange, codes: Codes) -> Iterator[ExpectedTensor]:
    if "weight_ih" not in parts and parts["weight"].ndim == 3:
        yield from _per_variable(layer, parts, rounding, codes)
    else:
        yield from _stored(layer, parts, codes)


def _is_a_map(layer: str, parts: Mapping[str, Tensor]) -> bool:
    """Whether a layer multiplies by a weight: it is no norm, whose gains are a vector per variable, and no table."""
    matrix = parts.get("weight", parts.get("weight_ih"))
    return matrix is not None and matrix.ndim > 1 and layer != _FRAME and not layer.endswith((".norm", ".table"))


def _stored(layer: str, parts: Mapping[str, Tensor], codes: Codes) -> Iterator[ExpectedTensor]:
    """Yield weight and bias of a layer; the weight is rounded with a scale for each output."""
    if "weight_ih" in parts:
        for place in ("ih", "hh"):
            scales = parts.get(f"{_ROUNDING}_{place}.log_scale")
            ordered = None if scales is None else _onnx_gates(scales)
            yield from _integer(layer, _onnx_gates(parts[f"weight_{place}"]), codes, ordered, f"weight_{place}")
        yield ExpectedTensor(layer, "biases", _onnx_biases(parts["bias_ih"], parts["bias_hh"]))
        return
    yield from _integer(layer, parts["weight"], codes, parts.get(f"{_ROUNDING}.log_scale"))
    if "bias" in parts:
        yield _plain(layer, "bias", parts["bias"])


def _integer(
    layer: str, weight: Tensor, codes: Codes, log_scale: Tensor | None = None, name: str = "weight"
) -> Iterator[ExpectedTensor]:
    """Yield codes of a weight [..., out, in], and a scale for each output, given or that of the largest value."""
    found, scale = _codes(weight, codes, log_scale)
    yield ExpectedTensor(layer, f"{name} codes", found)
    yield ExpectedTensor(layer, f"{name} scales", scale)


def _codes(weight: Tensor, codes: Codes, log_scale: Tensor | None) -> tuple[Array, Array]:
    low, high = codes
    values = weight.numpy()
    if log_scale is None:
        scale = np.maximum(np.abs(values).max(-1) / np.float32(high), np.finfo(np.float32).tiny).astype(np.float32)
    else:
        scale = log_scale.double().exp().float().squeeze(-1).numpy()
    return np.rint(values / scale[..., None]).clip(low, high).astype(np.int8), scale


def _per_variable(
    layer: str, parts: Mapping[str, Tensor], rounding: InputRange, codes: Codes
) -> Iterator[ExpectedTensor]:
    """Yield codes [V, out, in], and per variable and output the factor and the offset of the integer product.

    `s (q - z) t w = (s t) q w - (s t) z w`: the factor is s t, the offset the bias less (s t) z times the sum of w.
    """
    integers, scale = _codes(parts["weight"], codes, parts.get(f"{_ROUNDING}.log_scale"))
    yield ExpectedTensor(layer, "weight codes", integers)
    factor = scale.astype(np.float64) * rounding.scale.astype(np.float64)[:, None]  # [V, out]
    sums = integers.astype(np.int64).sum(-1) * rounding.zero_point.astype(np.int64)[:, None]
    yield ExpectedTensor(layer, "factors", factor.astype(np.float32))
    offset = parts["bias"].numpy().astype(np.float64) - factor * sums.astype(np.float64)
    yield ExpectedTensor(layer, "offsets", offset.astype(np.float32))


def _floating(layer: str, parts: Mapping[str, Tensor]) -> Iterator[ExpectedTensor]:
    names = {name.removesuffix("_l0"): tensor for name, tensor in parts.items()}
    if "weight_hh" in names:
        for name in ("weight_ih", "weight_hh"):
            yield _plain(layer, name, _onnx_gates(names[name]))
        yield ExpectedTensor(layer, "biases", _onnx_biases(names["bias_ih"], names["bias_hh"]))
        return
    for name, tensor in names.items():
        yield _plain(layer, name, tensor)


def _merged(layer: str, gate: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Iterator[ExpectedTensor]:
    """Yield the gate of the second map: `G (S h + s) + g = (G S) h + (G s + g)`, rounded once to single precision.

    Sums in double precision depend on their order in the last bits, of which some reach the rounded result.
    """
    weight = gate["weight"].double().numpy()
    product = np.einsum("...oj,...ji->...oi", weight, second["weight"].double().numpy())
    bias = np.einsum("...oj,...j->...o", weight, second["bias"].double().numpy()) + gate["bias"].double().numpy()
    rounding = float(np.finfo(np.float32).eps)
    yield ExpectedTensor(layer, "weight", product.astype(np.float32), rounding)
    yield ExpectedTensor(layer, "bias", bias.astype(np.float32), rounding)


def _graph(shape: Shape) -> Iterator[ExpectedTensor]:
    """Yield what depends on the configuration alone: mask, divisor, offsets of category tables, limits of functions."""
    steps = shape.history + shape.horizon
    mask = np.zeros((shape.horizon, steps), np.float32)
    mask[np.arange(steps) > np.arange(shape.history, steps)[:, None]] = -np.inf
    yield ExpectedTensor("graph", "causal mask", mask)
    yield ExpectedTensor("graph", "attention divisor", np.array(math.sqrt(shape.hidden // shape.heads), np.float32))
    numbers = _TRANSFORM_NUMBERS.get(shape.transform, ())
    if shape.groups[1].present is not None:
        numbers = (*numbers, *_PADDING_NUMBERS)
    if shape.window:
        numbers = (*numbers, float(np.finfo(np.float32).tiny))  # that no scale lies below
    if shape.knots:
        numbers = (*numbers, *place_numbers(shape.knots))
    for number in numbers:
        yield ExpectedTensor("graph", f"number {number:g}", np.array(number, np.float32))
    for selection, group in zip(_SELECTIONS, shape.groups, strict=True):
        if group.cardinalities:
            starts = np.cumsum([0, *group.cardinalities[:-1]])
            yield ExpectedTensor(f"{selection}.category_embedding", "offsets", starts)


def _onnx_gates(weight: Tensor) -> Tensor:
    return torch.cat([weight.chunk(4)[gate] for gate in _ONNX_GATES])


def _onnx_biases(input_bias: Tensor, recurrent_bias: Tensor) -> Array:
    return torch.cat([_onnx_gates(input_bias), _onnx_gates(recurrent_bias)]).numpy()


def _plain(layer: str, part: str, tensor: Tensor) -> ExpectedTensor:
    return ExpectedTensor(layer, part, tensor.numpy())
