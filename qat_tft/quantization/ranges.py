"""The activation quantizer: an observed range per tensor or per variable, and the phases a model goes through.

Legend: C variables of one chunk, V variables.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor, distributed, nn

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


class ActivationQuantizer(nn.Module):
    """Fake-quantizes activations within a range that is the moving average of the batches' extremes.

    The average is the plain mean of the first hundred batches, then exponential with `AVERAGING`. A batch with a
    value that is not finite leaves the range as it is. Under data parallelism the extremes are those of all ranks.

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
        for name in ("minimum", "maximum"):
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("batches", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("zero_point", torch.zeros(shape))

    @property
    def calibrated(self) -> bool:
        """Whether every range has seen at least one finite batch and has a usable scale."""
        usable = torch.isfinite(self.scale) & (self.scale > 0)
        return bool(((self.batches > 0) & usable).all())

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
        shape = (-1,) + (1,) * (x.dim() - 1) if self.scale.dim() else ()
        return fake_quantize(x, scale.view(shape), zero_point.view(shape), self.codes)

    def _scale_and_zero_point(self, x: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        if self.phase is Phase.CALIBRATE or (self.phase is Phase.QAT and self.training):
            self._observe(x.detach(), part)
        return self._part(self.scale, part), self._part(self.zero_point, part)

    @torch.no_grad()
    def _observe(self, x: Tensor, part: slice) -> None:
        low, high = _extremes(x.float(), per_variable=self.scale.dim() > 0)
        minimum, maximum = self._part(self.minimum, part), self._part(self.maximum, part)
        batches = self._part(self.batches, part)
        finite = torch.isfinite(low) & torch.isfinite(high)
        weight = (1 / (batches + 1).float()).clamp_min(AVERAGING)
        minimum.copy_(torch.where(finite, torch.lerp(minimum, low, weight), minimum))
        maximum.copy_(torch.where(finite, torch.lerp(maximum, high, weight), maximum))
        batches.add_(finite)
        scale = ((maximum - minimum) / (self.codes.high - self.codes.low)).clamp_min(torch.finfo(torch.float32).tiny)
        self._part(self.scale, part).copy_(scale)
        zero_point = (self.codes.low - minimum / scale).round().clamp(self.codes.low, self.codes.high)
        self._part(self.zero_point, part).copy_(zero_point)

    def _part(self, buffer: Tensor, part: slice) -> Tensor:
        return buffer[part] if buffer.dim() else buffer

    def extra_repr(self) -> str:
        """Return the integer range and how many ranges there are."""
        return f"codes={self.codes.low}..{self.codes.high}, ranges={self.scale.numel()}, phase={self.phase}"


def _extremes(x: Tensor, *, per_variable: bool) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest value, of the whole or per first dimension, widened to hold zero."""
    low, high = torch.aminmax(x.flatten(1), dim=1) if per_variable else torch.aminmax(x)
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(low, distributed.ReduceOp.MIN)
        distributed.all_reduce(high, distributed.ReduceOp.MAX)
    return low.clamp_max(0), high.clamp_min(0)
