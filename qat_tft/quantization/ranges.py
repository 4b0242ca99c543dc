"""The activation quantizer: an observed range per tensor or per variable, and the phases a model goes through.

Legend: C variables of one chunk, V variables.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.checkpointing.tape import recall
from qat_tft.quantization.fake_quant import fake_quantize
from qat_tft.quantization.scheme import IntegerRange

AVERAGING = 0.01
"""Weight of a new batch in a range's moving average, once a hundred batches have been seen."""

WHOLE = slice(None)


class Phase(StrEnum):
    """What quantizers do: nothing, observe only, observe in training and quantize, or quantize only."""

    FLOAT = "float"
    CALIBRATE = "calibrate"
    QAT = "qat"
    FROZEN = "frozen"


class Statistics(Protocol):
    """What calibration collects of one quantizer's activations, where it is not their average extremes."""

    def add(self, x: Tensor, part: slice) -> None:
        """Take in finite values [C, n] of the ranges in `part`."""
        ...

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest value of every range, each [V]."""
        ...


class ActivationQuantizer(nn.Module):
    """Fake-quantizes activations within a range that is the moving average of the batches' extremes.

    The average is the plain mean of the first hundred batches, then exponential with `AVERAGING`. A batch with a
    value that is not finite leaves the range as it is. Under data parallelism the extremes are those of all ranks.
    While `statistics` are set, they take in the activations instead (see `calibrate`).

    Args:
        codes: the integer range.
        variables: None for one range; V for one range per variable, the first dimension of the input.

    Buffers, each of shape [] or [V]: minimum, maximum (the observed range, which always holds zero),
    batches (how many were observed), scale, zero_point.
    """

    minimum: Tensor
    maximum: Tensor
    batches: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, codes: IntegerRange, variables: int | None = None) -> None:
        super().__init__()
        shape = () if variables is None else (variables,)
        self.codes = codes
        self.phase = Phase.FLOAT
        self.statistics: Statistics | None = None
        for name in ("minimum", "maximum"):
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("batches", torch.zeros(shape, dtype=torch.int64))
        self._make_scale(torch.ones(shape))
        self.register_buffer("zero_point", torch.zeros(shape))

    @property
    def fault(self) -> str:
        """What keeps some range from being used; empty where nothing does."""
        if not bool((self.batches > 0).all()):
            return "never calibrated"
        if not bool((torch.isfinite(self.scale) & (self.scale > 0)).all()):
            return "left with a scale that is not a positive finite number"
        if bool((self.minimum == self.maximum).any()):
            return "calibrated on zeros only, a range of zero width"
        return ""

    @property
    def per_variable(self) -> bool:
        """Whether there is a range per variable, rather than one for the whole tensor."""
        return self.minimum.dim() > 0

    def forward(self, x: Tensor, part: slice = WHOLE) -> Tensor:
        """Return x, fake-quantized in the phases `qat` and `frozen`.

        Args:
            x: any shape; [C, ...] when there is one range per variable.
            part: which variables x holds.
        """
        if self.phase is Phase.FLOAT:
            return x
        scale, zero_point = recall(self, x, lambda: self._scale_and_zero_point(x, part))
        if self.phase is Phase.CALIBRATE:
            return x
        return fake_quantize(x, self._against(scale, x), self._against(zero_point, x), self.codes)

    @torch.no_grad()
    def set_range(self, low: Tensor, high: Tensor) -> None:
        """Take these bounds, [] or [V], as the range wherever at least one batch was observed."""
        seen = self.batches > 0
        low, high = low.view_as(seen).float().clamp_max(0), high.view_as(seen).float().clamp_min(0)
        self.minimum.copy_(torch.where(seen, low, self.minimum))
        self.maximum.copy_(torch.where(seen, high, self.maximum))
        self._follow_bounds(WHOLE)

    def _make_scale(self, scale: Tensor) -> None:
        self.register_buffer("scale", scale)

    def _write_scale(self, scale: Tensor, part: slice) -> None:
        self._part(self.scale, part).copy_(scale)

    def _scale_and_zero_point(self, x: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        if self.phase is Phase.CALIBRATE or (self.phase is Phase.QAT and self.training):
            self._observe(x.detach(), part)
        return self._part(self.scale, part), self._part(self.zero_point, part)

    @torch.no_grad()
    def _observe(self, x: Tensor, part: slice) -> None:
        low, high = _extremes(x, per_variable=self.per_variable)
        finite = torch.maximum(-low, high) < torch.inf  # which NaN is not either
        batches = self._part(self.batches, part)
        if self.statistics is not None:
            rows = x.flatten(1) if self.per_variable else x.reshape(1, -1)
            self.statistics.add(torch.where(finite.view(-1, 1), rows.float(), 0.0), part)
        else:
            weight = (batches + 1.0).reciprocal().clamp_min(AVERAGING)
            minimum, maximum = self._part(self.minimum, part), self._part(self.maximum, part)
            # A range that a batch leaves as it is moves to where it stands.
            minimum.lerp_(torch.where(finite, low, minimum), weight)
            maximum.lerp_(torch.where(finite, high, maximum), weight)
            self._follow_bounds(part)
        batches.add_(finite)

    def _follow_bounds(self, part: slice) -> None:
        minimum, maximum = self._part(self.minimum, part), self._part(self.maximum, part)
        scale, zero_point = scale_and_zero_point(minimum, maximum, self.codes)
        self._write_scale(scale, part)
        self._part(self.zero_point, part).copy_(zero_point)

    def _part(self, buffer: Tensor, part: slice) -> Tensor:
        return buffer[part] if buffer.dim() else buffer

    def _against(self, values: Tensor, x: Tensor) -> Tensor:
        return values.view(-1, *(1,) * (x.dim() - 1)) if self.per_variable else values

    def extra_repr(self) -> str:
        """Return the integer range and how many ranges there are."""
        return f"codes={self.codes.low}..{self.codes.high}, ranges={self.minimum.numel()}, phase={self.phase}"


def scale_and_zero_point(minimum: Tensor, maximum: Tensor, codes: IntegerRange) -> tuple[Tensor, Tensor]:
    """Return scale and zero point, of the shape of the bounds, that spread the codes over a range that holds zero.

    Signed codes are symmetric: zero point 0, and the larger of both magnitudes has the highest code.
    """
    if codes.signed:
        scale = torch.maximum(-minimum, maximum) / codes.high
    else:
        scale = (maximum - minimum) / (codes.high - codes.low)
    scale = scale.clamp_min(torch.finfo(torch.float32).tiny)
    if codes.signed:
        return scale, torch.zeros_like(scale)
    return scale, (codes.low - minimum / scale).round().clamp(codes.low, codes.high)


def _extremes(x: Tensor, *, per_variable: bool) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest value, of the whole or per first dimension, widened to hold zero, in float32."""
    if per_variable:
        rows = x.flatten(1)
        low, high = rows.amin(1), rows.amax(1)  # aminmax along a dimension takes ten times as long on the CPU
    else:
        low, high = torch.aminmax(x)
    low, high = low.float(), high.float()
    ranks.widen(low, high)
    return low.clamp_max(0), high.clamp_min(0)
