"""A training step on random numbers: what is simulated, profiled and compared where no data are needed.

Legend: B batch, T history, F horizon; Vs, Vh, Vf columns of the static, historical and future group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.device import half_precision
from qat_tft.model.loss import loss_of
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.build import configured_qat_model, model_of_sizes
from qat_tft.schema import GroupSize

Groups = tuple[GroupSize, GroupSize, GroupSize]


@dataclass(frozen=True)
class SyntheticStep:
    """A model's shape, and how one of its training steps is made.

    Attributes:
        shape: the model's configuration.
        groups: widths of the static, historical and future group.
        quantization: how the quantization-aware model is made.
        precision: number format of the forward pass; on the CPU fp16 counts as bf16, which is as wide.
    """

    shape: ModelConfig
    groups: Groups
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

    def build(self, kind: str) -> nn.Module:
        """Return a new model in training mode: "fp32", or "qat" with observers and fake quantization on."""
        model = model_of_sizes(self.shape, self.groups)
        if kind == "fp32":
            return model.train()
        quantized = configured_qat_model(model, self.shape, self.quantization)
        quantized.set_phase(Phase.QAT)
        return quantized.train()

    def loss(
        self, model: nn.Module, run_segment: SegmentRunner, windows: int, device: torch.device | None = None
    ) -> tuple[Tensor, object]:
        """Return the loss on random windows, and what the training loop holds until the backward pass is over.

        That is raw windows, scaled ones and the forecast.
        """
        device = device or torch.device("cpu")
        leading = ((windows,), (windows, self.shape.history), (windows, self.shape.horizon))
        raw = [_columns(shape, size, device) for shape, size in zip(leading, self.groups, strict=True)]
        inputs = [tensor.clone() for tensor in raw]
        half = half_precision(self.precision, device)
        with torch.autocast(device.type, half, enabled=self.precision != "fp32"):
            forecast = model(*inputs, run_segment=run_segment)
        target = torch.randn(windows, self.shape.horizon, device=device)
        return loss_of(self.shape.quantiles)(forecast, target), (raw, inputs, forecast, target)


def _columns(leading: tuple[int, ...], size: GroupSize, device: torch.device) -> Tensor:
    """Return random values [*leading, V]: standard normal reals, then codes of each category."""
    real = torch.randn(*leading, size.real, device=device)
    if size.present is not None:
        real[..., size.present] = 1.0  # no row is padding
    codes = [torch.randint(known, (*leading, 1), device=device).float() for known in size.cardinalities]
    return torch.cat([real, *codes], -1)
