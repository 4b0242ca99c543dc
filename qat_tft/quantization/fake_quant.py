"""Fake quantization: rounding to the integer grid and back, with the straight-through gradient.

The arithmetic is that of ONNX's QuantizeLinear and DequantizeLinear (operator specification, opset 19): divide by
the scale, round half to even, add the zero point, saturate. It is made of ordinary operators: those are faster
here than torch's fused kernels, and they run under FakeTensor (docs/decisions/007).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qat_tft.quantization.scheme import IntegerRange


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> Tensor:
    """Return x rounded to `(code - zero_point) * scale` with the nearest code of the range.

    The gradient passes where the code was inside the range and is zero where it saturated (Bengio et al., 2013,
    arXiv:1308.3432). Scale and zero point get none; both broadcast against x. Half precision is rounded in single.
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _round_trip(x, scale, zero_point, codes)[0]
    result: Tensor = _FakeQuantize.apply(x, scale, zero_point, codes)  # type: ignore[no-untyped-call]
    return result


def fake_quantize_learned(x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> Tensor:
    """Return what `fake_quantize` returns, with a gradient for the scale as well.

    Where the code was inside the range, the rounded value changes with the scale by `round(x / s) - x / s`; where it
    saturated, by the distance of the limit from the zero point (Esser et al., 2020, arXiv:1902.08153, equation 3).
    The sum of that times the incoming gradient is divided by the root of features times highest code (section 2.2),
    with the last dimension of x as features: a count of rows would make it depend on batch and chunk.
    """
    result: Tensor = _FakeQuantizeLearned.apply(x, scale, zero_point, codes)  # type: ignore[no-untyped-call]
    return result


def fake_quantize_weight(weight: Tensor, codes: IntegerRange) -> Tensor:
    """Return the weight [..., out, in] rounded with one symmetric scale per output, taken from the weight itself.

    No code saturates, as each scale is the largest magnitude over the highest code, so the gradient passes whole.
    """
    result: Tensor = _FakeQuantizeWeight.apply(weight, codes)  # type: ignore[no-untyped-call]
    return result


def weight_scale(weight: Tensor, codes: IntegerRange) -> Tensor:
    """Return the scale [..., out, 1] of a weight [..., out, in]; a row of zeros gets the smallest normal number."""
    largest = weight.detach().abs().amax(-1, keepdim=True)
    return (largest / codes.high).clamp_min(torch.finfo(weight.dtype).tiny)


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> Tensor:
        rounded, inside = _round_trip(x, scale, zero_point, codes)
        ctx.save_for_backward(inside)
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None, None


class _FakeQuantizeLearned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> Tensor:
        ctx.save_for_backward(x, scale, zero_point)
        ctx.codes = codes
        return _round_trip(x, scale, zero_point, codes)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, scale, zero_point = ctx.saved_tensors
        gradient, codes = gradients[0], ctx.codes
        ratio = x.float() / scale
        code = ratio.round().add_(zero_point)
        kept = code.clamp(codes.low, codes.high)
        inside = kept == code
        slope = kept.sub_(zero_point).sub_(ratio.mul_(inside))
        to_scale = slope.mul_(gradient).sum_to_size(scale.shape) / (x.shape[-1] * codes.high) ** 0.5
        return gradient * inside, to_scale, None, None


class _FakeQuantizeWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, codes: IntegerRange) -> Tensor:
        scale = weight_scale(weight, codes)
        return (weight / scale).round_().mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _round_trip(x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> tuple[Tensor, Tensor]:
    code = (x.float() / scale).round_().add_(zero_point)
    kept = code.clamp(codes.low, codes.high)
    inside = kept == code
    return kept.sub_(zero_point).mul_(scale).to(x.dtype), inside
