"""Quantized linear layers in three forms: made from a float layer, trained, and turned into an integer layer.

Legend: N rows, C variables of one chunk, V variables. Integer layers hold int8 weights and compute with
`torch.ops.quantized_decomposed`, which the exporter turns into QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.model.layers import Chunk, CutLayer, VariableLinear, variable_linear
from qat_tft.quantization.ranges import ActivationQuantizer
from qat_tft.quantization.scheme import IntegerRange, Scheme
from qat_tft.quantization.weights import EIGHT, Rounding, WeightBits

decomposed = torch.ops.quantized_decomposed


class QuantizedLinear(nn.Module):
    """A Linear whose input and weight are fake-quantized: one range for the input, one scale per output.

    Args:
        layer: whose parameters it takes over.
        scheme: of the target.
        weights: bits of the weight, and whether a scale of few bits is trained.
    """

    def __init__(self, layer: nn.Linear, scheme: Scheme, weights: WeightBits = EIGHT) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.rounding = weights.rounding(layer.weight, scheme.weights)
        self.input = ActivationQuantizer(scheme.activations)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in]."""
        return F.linear(self.input(x), self.rounding(self.weight, self.input.phase), self.bias)

    def to_integer(self) -> IntegerLinear:
        """Return the layer with its weight as int8."""
        return IntegerLinear(self)


class IntegerLinear(nn.Module):
    """A linear layer over 8-bit inputs and an int8 weight [in, out] with one scale per output."""

    weight: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor
    bias: Tensor | None

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__()
        codes, scale = layer.rounding.integer(layer.weight)
        self.register_buffer("weight", codes.t().contiguous())
        self.register_buffer("weight_scale", scale.squeeze(-1))
        self.register_buffer("weight_zero_point", torch.zeros_like(self.weight_scale, dtype=torch.int64))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())
        self.weight_codes = layer.rounding.codes
        self.input = IntegerInput(layer.input)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in] of two or three dimensions."""
        # onnxruntime makes a Gemm of a product of matrices and a bias, and a Gemm with a float bias stays float.
        batched = x if x.dim() == 3 else x.unsqueeze(0)
        weight = decomposed.dequantize_per_channel(
            self.weight, self.weight_scale, self.weight_zero_point, 1, *code_range(self.weight_codes), torch.int8
        )
        product: Tensor = self.input(batched) @ weight
        product = product if self.bias is None else product + self.bias
        return product if x.dim() == 3 else product.squeeze(0)


class IntegerInput(nn.Module):
    """Rounds to 8 bits and back with one scale: the QuantizeLinear and DequantizeLinear before a product."""

    def __init__(self, quantizer: ActivationQuantizer) -> None:
        super().__init__()
        self.scale, self.zero_point = float(quantizer.scale), int(quantizer.zero_point)
        self.codes = quantizer.codes

    def forward(self, x: Tensor) -> Tensor:
        """Return x on the integer grid, as floating point."""
        parameters = (self.scale, self.zero_point, *code_range(self.codes), stored_type(self.codes))
        rounded: Tensor = decomposed.dequantize_per_tensor(decomposed.quantize_per_tensor(x, *parameters), *parameters)
        return rounded


class QuantizedVariableLinear(nn.Module):
    """One linear map per variable: one input range per variable, one weight scale per variable and output.

    A range per variable makes the result independent of how the variables are cut into chunks. Arguments are those of
    `QuantizedLinear`.
    """

    def __init__(self, layer: VariableLinear, scheme: Scheme, weights: WeightBits = EIGHT) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.rounding = weights.rounding(layer.weight, scheme.weights)
        self.explicit_pairs = scheme.explicit_pairs
        self.input = ActivationQuantizer(scheme.activations, layer.weight.shape[0])

    def chunks(self, sizes: list[int]) -> list[Chunk]:
        """Return the layer cut into runs of variables: each takes [C, N, in] to [C, N, out]."""
        starts = accumulate(sizes, initial=0)
        pieces = zip(self.weight.split(sizes), self.bias.split(sizes), self.rounding.pieces(sizes), strict=True)
        return [
            partial(self._chunk, *piece, slice(start, start + size))
            for piece, start, size in zip(pieces, starts, sizes, strict=False)
        ]

    def _chunk(self, weight: Tensor, bias: Tensor, rounding: Rounding, part: slice, x: Tensor) -> Tensor:
        return variable_linear(rounding(weight, self.input.phase), bias, self.input(x, part))

    def cut(self, sizes: list[int]) -> CutLayer:
        """Return the integer form, cut into chunks: int8 weights [C, in, out].

        A batched product can have but one scale and one zero point per operand in onnxruntime's integer kernel. So
        the product is taken of the bare codes, and what scales and zero points are due stands in one multiplication
        and one addition after it: `sum_i s (q_i - z) w t_ij = (s t_j) sum_i q_i w_ij - (s t_j) z sum_i w_ij`.
        """
        codes, scale = self.rounding.integer(self.weight)  # [V, out, in], [V, out, 1]
        input_scale, zero_point = self.input.scale.double(), self.input.zero_point.double()
        factor = scale.double().transpose(1, 2) * input_scale.view(-1, 1, 1)  # [V, 1, out]
        sums = codes.double().sum(-1).unsqueeze(1) * zero_point.view(-1, 1, 1)  # [V, 1, out]
        rounding = _explicit_codes if self.explicit_pairs else _codes
        tensors = (
            codes.transpose(1, 2),
            factor.float(),
            (self.bias.detach().unsqueeze(1) - factor * sums).float(),
            self.input.scale,
            self.input.zero_point.to(torch.int32),
        )
        return CutLayer(_integer_product(self.rounding.codes, partial(rounding, self.input.codes)), tensors, sizes)


def _integer_product(weight_codes: IntegerRange, codes_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def product(weight: Tensor, factor: Tensor, offset: Tensor, scale: Tensor, zero_point: Tensor, x: Tensor) -> Tensor:
        weights = decomposed.dequantize_per_tensor(weight, 1.0, 0, *code_range(weight_codes), torch.int8)
        result: Tensor = codes_of(scale, zero_point, x) @ weights * factor + offset
        return result

    return product


def _codes(codes: IntegerRange, scale: Tensor, zero_point: Tensor, x: Tensor) -> Tensor:
    # One QuantizeLinear along the variables [C, N, in]; the DequantizeLinear behind it has scale 1.
    bounds, kind = code_range(codes), stored_type(codes)
    rounded = decomposed.quantize_per_channel(x, scale, zero_point, 0, *bounds, kind)
    result: Tensor = decomposed.dequantize_per_tensor(rounded, 1.0, 0, *bounds, kind)
    return result


def _explicit_codes(codes: IntegerRange, scale: Tensor, zero_point: Tensor, x: Tensor) -> Tensor:
    # The variables' scales stand in a division, so that the pair has one scale, 1; signed codes have zero point 0.
    parameters = (1.0, 0, *code_range(codes), stored_type(codes))
    rounded = decomposed.quantize_per_tensor(x / scale.view(-1, 1, 1), *parameters)
    result: Tensor = decomposed.dequantize_per_tensor(rounded, *parameters)
    return result


def code_range(codes: IntegerRange) -> tuple[int, int]:
    """Return lowest and highest code, as the decomposed operators take them."""
    return codes.low, codes.high


def stored_type(codes: IntegerRange) -> torch.dtype:
    """Return the type that codes are stored in."""
    return torch.int8 if codes.signed else torch.uint8
