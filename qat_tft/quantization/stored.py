"""Layers that compute in floating point with weights stored as 8-bit integers: small files, no rounded activations.

Their inputs are the user's scaled columns, whose outliers would set any range; their products are small. The weight
alone is rounded, to one symmetric scale per row, and as no integer kernel multiplies it, it takes all eight bits on
every target. Legend: N rows, C variables of one chunk, V variables, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.model.layers import AffineVariables, CutLayer
from qat_tft.model.selection import InputLinear
from qat_tft.quantization.layers import code_range, decomposed, integer_weight, quantized_weight
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.scheme import IntegerRange

STORED = IntegerRange(-127, 127)


class StoredLinear(nn.Module):
    """An `InputLinear` whose weight [out, in] is rounded with one scale per output. It takes over the parameters."""

    def __init__(self, layer: InputLinear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.phase = Phase.FLOAT

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in]."""
        return F.linear(x, quantized_weight(self.weight, self.phase, STORED), self.bias)

    def to_integer(self) -> StoredIntegerLinear:
        """Return the layer with its weight as int8."""
        return StoredIntegerLinear(self)


class StoredIntegerLinear(nn.Module):
    """A linear layer over an int8 weight [1, in, out], which is dequantized before the product.

    Of a matrix and its DequantizeLinear onnxruntime would make an operator that rounds the other side as well.
    """

    weight: Tensor
    weight_scale: Tensor
    zero_point: Tensor
    bias: Tensor

    def __init__(self, layer: StoredLinear) -> None:
        super().__init__()
        codes, scale = integer_weight(layer.weight, STORED)
        self.register_buffer("weight", codes.t().unsqueeze(0).contiguous())
        self.register_buffer("weight_scale", scale.squeeze(-1))
        self.register_buffer("zero_point", torch.zeros_like(self.weight_scale, dtype=torch.int64))
        self.register_buffer("bias", layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in] of two or three dimensions."""
        weight = _dequantized(self.weight, self.weight_scale, self.zero_point, 2)
        product = (x if x.dim() == 3 else x.unsqueeze(0)) @ weight + self.bias
        return product if x.dim() == 3 else product.squeeze(0)


class StoredAffine(AffineVariables):
    """An affine map per variable whose weights and biases [V, 2, H] are rounded, with a scale for each vector of H."""

    def __init__(self, layer: AffineVariables) -> None:
        super().__init__(layer.weight, layer.bias)
        self.weight, self.bias = layer.weight, layer.bias
        self.phase = Phase.FLOAT

    def cut(self, sizes: list[int]) -> CutLayer:
        """Return the map for inference: int8 weights, each chunk's stored on their own."""
        codes, scale = integer_weight(super().rows().flatten(0, 1), STORED)  # [2V, H], [2V, 1]
        scale = scale.squeeze(1)
        return CutLayer(_stored_affine, (codes, scale, torch.zeros_like(scale, dtype=torch.int64)), sizes, rows=2)

    def rows(self) -> Tensor:
        """Return weights and biases [V, 2, H], rounded as the phase asks."""
        return quantized_weight(super().rows(), self.phase, STORED)


def _stored_affine(codes: Tensor, scale: Tensor, zero_point: Tensor, x: Tensor) -> Tensor:
    # DequantizeLinear takes scales along one axis: variables and the two vectors of each lie in one.
    rows = _dequantized(codes, scale, zero_point, 0)
    mapped: Tensor = x @ rows.view(-1, 2, codes.shape[-1])
    return mapped


def _dequantized(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    weight: Tensor = decomposed.dequantize_per_channel(codes, scale, zero_point, axis, *code_range(STORED), torch.int8)
    return weight
