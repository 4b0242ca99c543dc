"""Fake quantization: rounding to the integer grid and back, with the straight-through gradient.

The arithmetic is that of ONNX's QuantizeLinear and DequantizeLinear (operator specification, opset 19): divide by
the scale, round half to even, add the zero point, saturate. It is made of ordinary operators: those are faster
here than torch's fused kernels, and they run under FakeTensor (docs/decisions/007).

Rounding is done in single precision. What it gives is the input of a product, so under autocast the last multiplication
writes it in autocast's number format, to which the product would convert it otherwise, and the first division reads
half precision as it is: no tensor is converted on the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qat_tft.quantization.scheme import IntegerRange


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> Tensor:
    """Return x rounded to `(code - zero_point) * scale` with the nearest code of the range.

    The gradient passes where the code was inside the range and is zero where it saturated (Bengio et al., 2013,
    arXiv:1308.3432). Scale and zero point get none; both broadcast against x. The result has x's number format; under
    autocast, that of products.
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

    No code saturates, as each scale is the largest magnitude over the highest code, so the gradient passes whole. The
    number format of the result is that of `fake_quantize`.
    """
    result: Tensor = _FakeQuantizeWeight.apply(weight, codes, _format_of_products(weight))  # type: ignore[no-untyped-call]
    return result


def fake_quantize_rows(rows: Tensor, codes: IntegerRange) -> Tensor:
    """Return what `fake_quantize_weight` does for rows [..., in] that no product takes: in their own number format."""
    result: Tensor = _FakeQuantizeWeight.apply(rows, codes, rows.dtype)  # type: ignore[no-untyped-call]
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
        ctx.format = x.dtype
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return _product(gradients[0], inside, ctx.format), None, None, None


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
        ratio = _ratio(x, scale)
        code = ratio.round().add_(zero_point)
        kept = code.clamp(codes.low, codes.high)
        inside = kept == code
        slope = kept.sub_(zero_point).sub_(ratio.mul_(inside))
        to_scale = slope.mul_(gradient).sum_to_size(scale.shape) / (x.shape[-1] * codes.high) ** 0.5
        return _product(gradient, inside, x.dtype), to_scale, None, None


class _FakeQuantizeWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, codes: IntegerRange, number_format: torch.dtype) -> Tensor:
        ctx.format = weight.dtype
        scale = weight_scale(weight, codes)
        return _multiplied((weight / scale).round_(), scale, number_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].to(ctx.format), None, None


def _round_trip(x: Tensor, scale: Tensor, zero_point: Tensor, codes: IntegerRange) -> tuple[Tensor, Tensor]:
    code = _ratio(x, scale).round_().add_(zero_point)
    kept = code.clamp(codes.low, codes.high)
    inside = kept == code
    return _multiplied(kept.sub_(zero_point), scale, _format_of_products(x)), inside


def _format_of_products(x: Tensor) -> torch.dtype:
    """Return the number format in which a product of x is computed."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _ratio(x: Tensor, scale: Tensor) -> Tensor:
    """Return `x / scale` in single precision."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return x.float() / scale
    # The format of numbers in some dimension outweighs that of a number in none.
    return x / (scale if scale.dim() else scale.unsqueeze(0))


def _multiplied(x: Tensor, scale: Tensor, number_format: torch.dtype) -> Tensor:
    """Return `x * scale` in a number format; x may be overwritten."""
    return x.mul_(scale) if x.dtype is number_format else _product(x, scale, number_format)


def _product(one: Tensor, other: Tensor, number_format: torch.dtype) -> Tensor:
    """Return `one * other`, of the shape of the first, in a number format: converted as it is written."""
    if one.dtype is number_format:
        return one * other
    return torch.mul(one, other, out=torch.empty_like(one, dtype=number_format))
