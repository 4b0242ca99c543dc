"""The quantized LSTM: int8 weights and input around torch's fused kernel, the cell in floating point.

Legend: B batch, T time, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qat_tft.device import lstm_weights_for
from qat_tft.quantization.layers import IntegerInput, code_range, decomposed
from qat_tft.quantization.ranges import ActivationQuantizer
from qat_tft.quantization.scheme import Scheme
from qat_tft.quantization.weights import EIGHT, WeightBits

States = tuple[Tensor, Tensor]


class QuantizedLSTM(nn.Module):
    """One LSTM layer, batch first, whose input and both weights are fake-quantized (one scale per gate row).

    Args:
        layer: of one layer and one direction, whose parameters it takes over.
        scheme: of the target.
        weights: bits of both weights, and whether scales of few bits are trained.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor

    def __init__(self, layer: nn.LSTM, scheme: Scheme, weights: WeightBits = EIGHT) -> None:
        assert layer.num_layers == 1
        assert layer.batch_first
        assert not layer.bidirectional
        super().__init__()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self, name, getattr(layer, f"{name}_l0"))
        self.rounding_ih = weights.rounding(self.weight_ih, scheme.weights)
        self.rounding_hh = weights.rounding(self.weight_hh, scheme.weights)
        self.input = ActivationQuantizer(scheme.activations)

    def forward(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        """Return outputs [B, T, H] and states [1, B, H] for x [B, T, H] and states [1, B, H]."""
        phase = self.input.phase
        weights = [self.rounding_ih(self.weight_ih, phase), self.rounding_hh(self.weight_hh, phase)]
        return run_lstm(self.input(x), states, [*weights, self.bias_ih, self.bias_hh], self.training)

    def to_integer(self) -> IntegerLSTM:
        """Return the layer with its weights as int8."""
        return IntegerLSTM(self, IntegerInput(self.input))


class IntegerLSTM(nn.Module):
    """An LSTM over weights [4H, H] stored as int8 with one scale per row; its arithmetic is floating point.

    Args:
        layer: holds weights, biases and roundings, under the names of `QuantizedLSTM`.
        rounding: what its input goes through.
    """

    def __init__(self, layer: nn.Module, rounding: nn.Module) -> None:
        super().__init__()
        self.input = rounding
        for place in ("ih", "hh"):
            of_weight = getattr(layer, f"rounding_{place}")
            weight, scale = of_weight.integer(getattr(layer, f"weight_{place}"))
            self.register_buffer(f"weight_{place}", weight)
            self.register_buffer(f"weight_{place}_scale", scale.squeeze(-1))
        self.codes = of_weight.codes
        self.register_buffer("zero_point", torch.zeros(weight.shape[0], dtype=torch.int64))
        for name in ("bias_ih", "bias_hh"):
            self.register_buffer(name, getattr(layer, name).detach().clone())

    def forward(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        """Return outputs [B, T, H] and states [1, B, H] for x [B, T, H] and states [1, B, H]."""
        weights = [self._weight("weight_ih"), self._weight("weight_hh")]
        biases = [self.get_buffer("bias_ih"), self.get_buffer("bias_hh")]
        return run_lstm(self.input(x), states, [*weights, *biases], training=False)

    def _weight(self, name: str) -> Tensor:
        codes, scale, zero_point = (self.get_buffer(key) for key in (name, f"{name}_scale", "zero_point"))
        weight: Tensor = decomposed.dequantize_per_channel(
            codes, scale, zero_point, 0, *code_range(self.codes), torch.int8
        )
        return weight


def run_lstm(x: Tensor, states: States, weights: list[Tensor], training: bool) -> tuple[Tensor, States]:
    """Return torch's LSTM of x [B, T, H] with weights in its order: input, recurrent, and their two biases."""
    weights = lstm_weights_for(x.device, weights)
    outputs, hidden, cell = torch.lstm(x, states, weights, True, 1, 0.0, training, False, True)
    return outputs, (hidden, cell)
