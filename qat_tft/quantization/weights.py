"""How a weight is rounded: to symmetric codes of 8, 4 or 2 bits, with one scale per output.

Eight bits take the scale from the weight itself, at every step. With fewer, the largest magnitude of a row is a poor
scale: the scale is a parameter that starts where the squared error of the row is smallest and may be trained.
Legend: V variables, in and out of a linear map; a leading [V] is there for maps of several variables only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from qat_tft.quantization.bits import Bits
from qat_tft.quantization.fake_quant import fake_quantize, fake_quantize_learned, fake_quantize_weight, weight_scale
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import IntegerRange

Rounding = Callable[[Tensor, Phase], Tensor]
"""Takes a weight [..., out, in] to what a phase makes of it."""

STORED = IntegerRange(-127, 127)
"""Codes of 8-bit weights that no integer kernel multiplies: all eight bits on every target."""

LOW_BITS: dict[int, IntegerRange] = {4: IntegerRange(-8, 7), 2: IntegerRange(-2, 1)}
"""Codes of weights with fewer than eight bits; no two products of them with 8-bit activations leave 16 bits."""

_CANDIDATES = 160
_LEAST_SHARE = 0.15


class WeightRounding(nn.Module):
    """Rounds a weight to codes with zero point 0 and the largest magnitude of each output's row as the highest code.

    Args:
        codes: the integer range.
    """

    def __init__(self, codes: IntegerRange) -> None:
        super().__init__()
        self.codes = codes

    @property
    def bits(self) -> int:
        """Bits of a code; codes of seven count as those of eight, in which they are stored."""
        return 8

    def forward(self, weight: Tensor, phase: Phase) -> Tensor:
        """Return the weight [..., out, in] as the phase asks: as it is, or rounded to its integer grid."""
        return self.rounded(weight) if phase in (Phase.QAT, Phase.FROZEN) else weight

    def rounded(self, weight: Tensor) -> Tensor:
        """Return the weight on its grid; the gradient passes as the kind of scale has it."""
        return fake_quantize_weight(weight, self.codes)

    def pieces(self, sizes: Sequence[int]) -> list[Rounding]:
        """Return what `forward` does for runs of so many variables each."""
        return [self] * len(sizes)

    def scale(self, weight: Tensor) -> Tensor:
        """Return the scale [..., out, 1] of a weight, without a gradient."""
        return weight_scale(weight, self.codes)

    @torch.no_grad()
    def integer(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the int8 codes [..., out, in] of a weight and their scale [..., out, 1]."""
        scale = self.scale(weight)
        return (weight / scale).round().clamp(self.codes.low, self.codes.high).to(torch.int8), scale

    def extra_repr(self) -> str:
        """Return the integer range."""
        return f"codes={self.codes}"


class ScaledWeightRounding(WeightRounding):
    """Rounds a weight with a scale per output that is a parameter: the logarithm of it, [..., out, 1].

    It starts as the scale with the smallest squared error (`smallest_error_scale`). Where it is trained, its gradient
    is that of learned step size quantization (Esser et al., 2020, arXiv:1902.08153, equation 3), as for activations;
    the weight's is zero wherever its code is clipped.

    Args:
        codes: the integer range.
        weight: [..., out, in], that will be rounded.
        learned: whether the scale is trained.
    """

    log_scale: nn.Parameter

    def __init__(self, codes: IntegerRange, weight: Tensor, *, learned: bool) -> None:
        super().__init__(codes)
        self.log_scale = nn.Parameter(smallest_error_scale(weight.detach(), codes).log(), requires_grad=learned)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return (self.codes.high - self.codes.low).bit_length()

    def rounded(self, weight: Tensor) -> Tensor:
        """Return the weight on its grid; weight and, where it is trained, scale get a gradient."""
        return self._on_grid(weight, self.log_scale)

    def pieces(self, sizes: Sequence[int]) -> list[Rounding]:
        """Return what `forward` does for runs of so many variables each."""
        return [partial(self._piece, log_scale) for log_scale in self.log_scale.split(list(sizes))]

    def _piece(self, log_scale: Tensor, weight: Tensor, phase: Phase) -> Tensor:
        return self._on_grid(weight, log_scale) if phase in (Phase.QAT, Phase.FROZEN) else weight

    def _on_grid(self, weight: Tensor, log_scale: Tensor) -> Tensor:
        scale, zero_point = _exponential(log_scale), torch.zeros((), device=weight.device)
        if scale.requires_grad:
            return fake_quantize_learned(weight, scale, zero_point, self.codes)
        return fake_quantize(weight, scale, zero_point, self.codes)

    def scale(self, weight: Tensor) -> Tensor:
        """Return the scale [..., out, 1], which does not depend on the weight."""
        return _exponential(self.log_scale.detach())


@dataclass(frozen=True)
class WeightBits:
    """How the weights of a layer are rounded.

    Attributes:
        bits: of their codes.
        learned: whether scales are trained, where there are fewer than eight bits.
    """

    bits: Bits = 8
    learned: bool = False

    def rounding(self, weight: Tensor, eight: IntegerRange = STORED) -> WeightRounding:
        """Return what rounds a weight [..., out, in] that is now this.

        Args:
            weight: from which a scale with fewer than eight bits is found.
            eight: the codes of eight bits, which depend on the target where integers are multiplied.
        """
        if self.bits == 8:
            return WeightRounding(eight)
        return ScaledWeightRounding(LOW_BITS[self.bits], weight, learned=self.learned)


EIGHT = WeightBits()


def weight_roundings(layer: nn.Module) -> dict[str, WeightRounding]:
    """Return what rounds each weight of a layer, by what the weight's name ends with: two of an LSTM, else one or none.

    `weight_ih` is rounded by `rounding_ih`, `weight` by `rounding`.
    """
    found = {place: getattr(layer, f"rounding{place}", None) for place in ("", "_ih", "_hh")}
    return {place: rounding for place, rounding in found.items() if rounding is not None}


@torch.no_grad()
def smallest_error_scale(weight: Tensor, codes: IntegerRange) -> Tensor:
    """Return the scale [..., out, 1] at which a weight [..., out, in] is rounded with the smallest squared error.

    It is the best of a geometric row of scales, from that at which nothing is clipped downwards. A row of zeros, which
    any scale fits, gets the mean scale of the other rows, so that training can move it: one where all are zero. For a
    weight without memory the scale has none either.
    """
    if weight.is_meta:  # the search would take seconds and find nothing
        return weight[..., :1].clone()
    largest = weight.abs().amax(-1, keepdim=True)  # [..., out, 1]
    widest = largest / min(codes.high, -codes.low)
    shares = _LEAST_SHARE ** (torch.arange(_CANDIDATES, device=weight.device) / (_CANDIDATES - 1))
    scale = widest.clamp_min(torch.finfo(weight.dtype).tiny)
    best = torch.full_like(scale, torch.inf)
    for share in shares:
        candidate = (widest * share).clamp_min(torch.finfo(weight.dtype).tiny)
        code = (weight / candidate).round_().clamp_(codes.low, codes.high)
        error = code.mul_(candidate).sub_(weight).square_().sum(-1, keepdim=True)
        scale, best = torch.where(error < best, candidate, scale), torch.minimum(best, error)
    moving = largest > 0
    others = torch.where(moving, scale, 0).sum() / moving.sum()
    return torch.where(moving, scale, others.nan_to_num(1.0))


def _exponential(log_scale: Tensor) -> Tensor:
    # In double precision: single-precision exponentials differ from machine to machine in the last bit.
    return log_scale.double().exp().float()
