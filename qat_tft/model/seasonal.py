"""The TFT on seasonal differences: it forecasts how the target departs from its value one season before.

Legend: B batch, T history, F horizon, M season in steps, Q quantiles.

On a strongly seasonal series almost all of the target's variance is known from the season before. A network that
has to reproduce it spends its precision, and in INT8 its few levels, on what a subtraction gives exactly. Here
the target's history enters as differences over a season, and the forecast is added to the last season known.
Both happen in floating point on the scaled values, around the unchanged TFT of Lim et al. (2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qat_tft.checkpointing.segments import SegmentRunner, run_directly
from qat_tft.model.tft import Forecast, TemporalFusionTransformer, steps_present
from qat_tft.schema import GroupSize


class SeasonalTemporalFusionTransformer(TemporalFusionTransformer):
    """A TFT whose first historical column, the target, is replaced by its seasonal differences.

    Args:
        static, historical, future: as for `TemporalFusionTransformer`, like all arguments not named here.
        season: M, from 1 up to the history.
        spread: the usual size of a seasonal difference, in units of the scaled target. The network sees the
            differences divided by it, and its output is multiplied by it.

    Padded histories must have a season of steps that are there.

    Raises:
        ValueError: the season does not fit the history, the spread is not positive, or as the base class does.
    """

    spread: Tensor

    def __init__(
        self,
        static: GroupSize,
        historical: GroupSize,
        future: GroupSize,
        *,
        season: int,
        spread: float = 1.0,
        **arguments: Any,
    ) -> None:
        super().__init__(static, historical, future, **arguments)
        if not 1 <= season <= self.history:
            raise ValueError(f"season is {season}: it must be from 1 to the history, which is {self.history}")
        if not spread > 0:
            raise ValueError(f"spread is {spread}: it must be positive")
        self.season = season
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.float32))

    def forward(
        self, static: Tensor, historical: Tensor, future: Tensor, run_segment: SegmentRunner = run_directly
    ) -> Forecast:
        """Return the forecast; arguments and result are those of `TemporalFusionTransformer.forward`."""
        target = historical[..., 0]  # [B, T]
        change = (target[:, self.season :] - target[:, : -self.season]) / self.spread
        column = self.groups["historical"].present
        if column is not None:  # a difference to padding is none; the last season has no padding
            change = torch.where(steps_present(historical, column)[:, : -self.season], change, 0)
        # Nothing is known of the first season's differences.
        change = F.pad(change, (self.season, 0)).unsqueeze(-1)  # [B, T, 1]
        forecast = super().forward(static, torch.cat([change, historical[..., 1:]], -1), future, run_segment)
        base, spread = self.output_units(historical)
        return forecast._replace(quantiles=base + spread * forecast.quantiles)

    def output_units(self, historical: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last season known at each step of the horizon [B, F, 1], and the spread."""
        last_season = historical[:, -self.season :, 0]  # [B, M]
        repeats = -(-self.horizon // self.season)
        return last_season.repeat(1, repeats)[:, : self.horizon].unsqueeze(-1), self.spread
