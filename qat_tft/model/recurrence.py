"""The LSTM encoder and decoder of the TFT: torch's fused kernel with the states passed in and out.

Legend: B batch, T time, H hidden. Source: Lim et al. (2021), section 4.5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qat_tft.device import lstm_leaves_autocast
from qat_tft.model.layers import uniform_parameter


class Recurrence(nn.Module):
    """One LSTM layer over a sequence.

    Shapes of the weights, gates in the order input, forget, cell, output: `weight_ih_l0` and `weight_hh_l0`
    [4H, H], `bias_ih_l0` and `bias_hh_l0` [4H].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cell: nn.Module = nn.LSTM(hidden, hidden, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs [B, T, H] and the last hidden and cell state [B, H] for x [B, T, H].

        Under bf16 autocast it computes in single precision where there is no LSTM in bf16 (`lstm_leaves_autocast`).
        """
        if lstm_leaves_autocast(x.device):
            with torch.autocast(x.device.type, enabled=False):
                return self._run(x.float(), hidden.float(), cell.float())
        return self._run(x, hidden, cell)

    def _run(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs, (last_hidden, last_cell) = self.cell(x, (hidden.unsqueeze(0), cell.unsqueeze(0)))
        return outputs, last_hidden.squeeze(0), last_cell.squeeze(0)


class LearnedSequence(nn.Module):
    """What the decoder reads when no column is known of the future: one learned vector per step, [T, H]."""

    def __init__(self, steps: int, hidden: int) -> None:
        super().__init__()
        self.vectors = uniform_parameter(hidden, steps, hidden)

    def forward(self, batch: int) -> Tensor:
        """Return the vectors for every row of a batch: [B, T, H]."""
        return self.vectors.expand(batch, -1, -1)
