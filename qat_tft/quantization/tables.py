"""Tables of 8-bit integers: what tabulated selection networks are trained with, and what their files hold.

Each row [H] of a table has a scale of its own, like an output's row of weights: a row is the output of a LayerNorm for
one knot or code, and is rounded by itself, whichever rows are computed beside it (docs/decisions/040).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qat_tft.model.tabulated import Table
from qat_tft.quantization.fake_quant import fake_quantize_rows, weight_scale
from qat_tft.quantization.layers import code_range, decomposed
from qat_tft.quantization.ranges import Phase
from qat_tft.quantization.weights import STORED


class QuantizedTable(Table):
    """A table whose rows are rounded to eight bits.

    In phase `frozen`, outside of training, rows are computed in double precision, so that their codes are those of the
    file on every machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = Phase.FLOAT

    @property
    def in_double(self) -> bool:  # type: ignore[override]  # decided by the phase here
        """Whether the rows have to be computed in double precision outside of training."""
        return self.phase is Phase.FROZEN

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows [.., H] in single precision, rounded as the phase asks."""
        if self.phase not in (Phase.QAT, Phase.FROZEN):
            return rows.float()
        if rows.dtype is torch.float64:
            codes, scale = table_codes(rows)
            return codes.float() * scale.unsqueeze(-1)
        return fake_quantize_rows(rows, STORED)

    def frozen(self, rows: Tensor) -> nn.Module:
        """Return the table of integers for rows [R, H] in double precision."""
        return IntegerTable(rows)


@torch.no_grad()
def table_codes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes [.., H] and float32 scales [..] of rows in double precision."""
    scale = weight_scale(rows, STORED).float().clamp_min(torch.finfo(torch.float32).tiny)
    codes = (rows / scale.double()).round().clamp(STORED.low, STORED.high).to(torch.int8)
    return codes, scale.squeeze(-1)


class IntegerTable(nn.Module):
    """A table of int8 codes [R, H] with a scale for each row; a runtime dequantizes it when it loads the file."""

    codes: Tensor
    scales: Tensor
    zero_points: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        codes, scales = table_codes(rows)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("zero_points", torch.zeros(len(codes), dtype=torch.int64))

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows [.., H] for int64 numbers of rows [..]."""
        bounds = code_range(STORED)
        rows = decomposed.dequantize_per_channel(self.codes, self.scales, self.zero_points, 0, *bounds, torch.int8)
        return F.embedding(index, rows)
