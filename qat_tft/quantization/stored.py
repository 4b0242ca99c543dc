"""Layers that compute in floating point with weights stored as 8-bit integers: small files, no rounded activations.

In every INT8 file these are the layers of the user's scaled columns, whose outliers would set any range and whose
products are small; in one with products in floating point, every layer. The weight alone is rounded, to one symmetric
scale per output, and as no integer kernel multiplies it, it takes all eight bits on every target.
Legend: B batch, T time, N rows, C variables of one chunk, V variables, H hidden.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.model.layers import AffineVariables, Chunk, CutLayer, VariableLinear, variable_linear
from qat_tft.quantization.layers import code_range, decomposed
from qat_tft.quantization.lstm import IntegerLSTM, States, run_lstm
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.weights import EIGHT, STORED, Rounding, WeightBits, WeightRounding


class StoredLinear(nn.Module):
    """A Linear whose weight [out, in] is rounded with one scale per output. It takes over the parameters."""

    def __init__(self, layer: nn.Linear, weights: WeightBits = EIGHT) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.rounding = weights.rounding(layer.weight)
        self.phase = Phase.FLOAT

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in]."""
        return F.linear(x, self.rounding(self.weight, self.phase), self.bias)

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
    bias: Tensor | None

    def __init__(self, layer: StoredLinear) -> None:
        super().__init__()
        codes, scale = layer.rounding.integer(layer.weight)
        self.register_buffer("weight", codes.t().unsqueeze(0).contiguous())
        self.register_buffer("weight_scale", scale.squeeze(-1))
        self.register_buffer("zero_point", torch.zeros_like(self.weight_scale, dtype=torch.int64))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] for x [..., in] of two or three dimensions."""
        weight = _dequantized(self.weight, self.weight_scale, self.zero_point, 2)
        product = (x if x.dim() == 3 else x.unsqueeze(0)) @ weight
        product = product if self.bias is None else product + self.bias
        return product if x.dim() == 3 else product.squeeze(0)


class StoredVariableLinear(nn.Module):
    """A linear map per variable whose weight [V, out, in] is rounded with a scale per variable and output."""

    def __init__(self, layer: VariableLinear, weights: WeightBits = EIGHT) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.rounding = weights.rounding(layer.weight)
        self.phase = Phase.FLOAT

    def chunks(self, sizes: list[int]) -> list[Chunk]:
        """Return the layer cut into runs of variables: each takes [C, N, in] to [C, N, out]."""
        pieces = zip(self.weight.split(sizes), self.bias.split(sizes), self.rounding.pieces(sizes), strict=True)
        return [partial(self._chunk, *piece) for piece in pieces]

    def _chunk(self, weight: Tensor, bias: Tensor, rounding: Rounding, x: Tensor) -> Tensor:
        return variable_linear(rounding(weight, self.phase), bias, x)

    def cut(self, sizes: list[int]) -> CutLayer:
        """Return the layer for inference: int8 weights [C, in, out], each chunk's stored on their own."""
        codes, scale = self.rounding.integer(self.weight)  # [V, out, in], [V, out, 1]
        tensors = codes.transpose(1, 2), scale.transpose(1, 2), self.bias.unsqueeze(1)
        return CutLayer(_stored_product, tensors, sizes)


def _stored_product(codes: Tensor, scale: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    # DequantizeLinear takes scales along one axis, and here they lie in two: so it has scale 1.
    weight = decomposed.dequantize_per_tensor(codes, 1.0, 0, *code_range(STORED), torch.int8) * scale
    product: Tensor = x @ weight + bias
    return product


class StoredLSTM(nn.Module):
    """One LSTM layer, batch first, of which both weights [4H, H] are rounded with one scale per gate row."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor

    def __init__(self, layer: nn.LSTM, weights: WeightBits = EIGHT) -> None:
        super().__init__()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self, name, getattr(layer, f"{name}_l0"))
        self.rounding_ih = weights.rounding(self.weight_ih)
        self.rounding_hh = weights.rounding(self.weight_hh)
        self.phase = Phase.FLOAT

    def forward(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        """Return outputs [B, T, H] and states [1, B, H] for x [B, T, H] and states [1, B, H]."""
        weights = [self.rounding_ih(self.weight_ih, self.phase), self.rounding_hh(self.weight_hh, self.phase)]
        return run_lstm(x, states, [*weights, self.bias_ih, self.bias_hh], self.training)

    def to_integer(self) -> IntegerLSTM:
        """Return the layer with its weights as int8."""
        return IntegerLSTM(self, nn.Identity())


class StoredAffine(AffineVariables):
    """An affine map per variable whose weights and biases [V, 2, H] are rounded, with a scale for each vector of H."""

    def __init__(self, layer: AffineVariables) -> None:
        super().__init__(layer.weight, layer.bias)
        self.weight, self.bias = layer.weight, layer.bias
        self.rounding = WeightRounding(STORED)
        self.phase = Phase.FLOAT

    def cut(self, sizes: list[int]) -> CutLayer:
        """Return the map for inference: int8 weights, each chunk's stored on their own."""
        codes, scale = self.rounding.integer(super().rows().flatten(0, 1))  # [2V, H], [2V, 1]
        scale = scale.squeeze(1)
        return CutLayer(_stored_affine, (codes, scale, torch.zeros_like(scale, dtype=torch.int64)), sizes, rows=2)

    def rows(self) -> Tensor:
        """Return weights and biases [V, 2, H], rounded as the phase asks."""
        rounded: Tensor = self.rounding(super().rows(), self.phase)
        return rounded


StoredLayer = StoredLinear | StoredVariableLinear | StoredLSTM | StoredAffine
"""A layer of which only the weight is rounded, as its own phase says."""


def _stored_affine(codes: Tensor, scale: Tensor, zero_point: Tensor, x: Tensor) -> Tensor:
    # DequantizeLinear takes scales along one axis: variables and the two vectors of each lie in one.
    rows = _dequantized(codes, scale, zero_point, 0)
    mapped: Tensor = x @ rows.view(-1, 2, codes.shape[-1])
    return mapped


def _dequantized(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    weight: Tensor = decomposed.dequantize_per_channel(codes, scale, zero_point, axis, *code_range(STORED), torch.int8)
    return weight
