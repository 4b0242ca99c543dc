"""Learned ranges: the scale of an activation quantizer as a trained parameter (`--qat-ranges learned`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qat_tft.quantization.fake_quant import fake_quantize_learned
from qat_tft.quantization.ranges import WHOLE, ActivationQuantizer, Phase

LOG_SCALE = "log_scale"
"""What the logarithm of a trained scale is called, of an activation as of a weight."""


class LearnedQuantizer(ActivationQuantizer):
    """An activation quantizer whose scale is trained in phase `qat`, and whose zero point stays as calibrated.

    The gradient of the scale is that of learned step size quantization (Esser et al., 2020, arXiv:1902.08153,
    equation 3), multiplied by `1 / sqrt(N Q)` (section 2.2), with N the features of one position and Q the highest
    code. What is stored and trained is the logarithm of the scale: it keeps the scale positive, and a step of AdamW
    changes it by a share of itself instead of by a number that may be larger than it is (docs/decisions/032).

    Nothing goes to the tape: between a forward pass and its recompute no parameter moves.

    Parameter of shape [] or [V]: log_scale, in place of the buffer scale.
    """

    log_scale: nn.Parameter

    @classmethod
    def like(cls, quantizer: ActivationQuantizer) -> LearnedQuantizer:
        """Return a new one, not yet calibrated, for the same codes and as many ranges."""
        return cls(quantizer.codes, len(quantizer.minimum) if quantizer.per_variable else None)

    @property
    def scale(self) -> Tensor:  # type: ignore[override]  # computed here, a buffer there
        """The scale, [] or [V], without a gradient."""
        return self.log_scale.detach().exp()

    def forward(self, x: Tensor, part: slice = WHOLE) -> Tensor:
        """Return what `ActivationQuantizer.forward` does; in phase `qat` in training mode the scale gets a gradient."""
        if self.phase is not Phase.QAT or not self.training:
            return super().forward(x, part)
        scale = self._against(self._part(self.log_scale, part).exp(), x)
        zero_point = self._against(self._part(self.zero_point, part), x)
        return fake_quantize_learned(x, scale, zero_point, self.codes)

    def _make_scale(self, scale: Tensor) -> None:
        self.log_scale = nn.Parameter(scale.log())

    @torch.no_grad()
    def _write_scale(self, scale: Tensor, part: slice) -> None:
        self._part(self.log_scale, part).copy_(scale.log())
