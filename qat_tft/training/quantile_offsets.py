"""Quantiles shifted by what late validation windows say, step by step, and only where later windows agree.

Legend: N windows, F horizon, Q quantiles.

The shift of a quantile is the quantile of its own errors on recent windows, as in conformalized quantile regression
(Romano, Patterson, Candes 2019), here for each step and level by itself and in units of the window. That theory's
promise needs exchangeable errors, which those of a time series are not: coverage is measured, never promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch, Windows
from qat_tft.evaluation.linear_paths import weighted_quantiles
from qat_tft.evaluation.window_forecasts import of_windows
from qat_tft.model.loss import pinball
from qat_tft.model.tft import TemporalFusionTransformer

LEAST_WINDOWS = 50
"""Windows in each slice below which nothing is shifted."""
_MOST_WINDOWS = 4096


@dataclass(frozen=True)
class Shift:
    """What was shifted.

    Attributes:
        kept: steps and quantiles whose shift lowered the loss on the later slice.
        cells: steps times quantiles; 0 where there were too few windows.
    """

    kept: int
    cells: int

    def sentence(self, model: str) -> str:
        """Say what was done to a model's quantiles."""
        if not self.cells:
            return (
                f"The quantiles of {model} are not shifted: fewer than {LEAST_WINDOWS} validation windows to judge by"
            )
        return (
            f"The quantiles of {model} are shifted at {self.kept} of {self.cells} steps and levels: where that lowered "
            "the loss on the last quarter of the validation part"
        )


class _Errors(NamedTuple):
    quantiles: Tensor  # [N, F, Q], in units of the window
    target: Tensor  # [N, F], likewise; NaN where it is missing
    scale: Tensor  # [N, F]


@torch.no_grad()
def shift_quantiles(
    model: nn.Module,
    inner: TemporalFusionTransformer,
    offsets: Tensor,
    scaling: Scaling,
    validation: Windows,
    *,
    batch_size: int,
    device: torch.device,
) -> Shift:
    """Fit shifts on the third quarter of the validation part in time, and keep those that help on the last quarter.

    Args:
        model: that forecasts, quantization included.
        inner: the floating-point structure inside of it, or the model itself; knows its units.
        offsets: [F, Q] of its frame, which the shifts are added to.
        scaling: of the run, on the device.
        validation: windows of the validation part.
        batch_size: windows forecast at once.
        device: of the model.
    """
    fitted, judged = _late_slices(validation)
    if min(len(fitted), len(judged)) < LEAST_WINDOWS:
        return Shift(0, 0)

    def in_units(batch: Batch) -> tuple[Tensor, ...]:
        inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
        center, scale = inner.output_units(inputs[1])
        target = scaling.scale_target(batch.target, batch.series)
        normalized = (target - center.squeeze(-1)) / scale.squeeze(-1)
        return (model(*inputs).quantiles - center) / scale, normalized, scale.squeeze(-1).expand_as(target)

    def errors(indices: Tensor) -> _Errors:
        found = of_windows(in_units, model, validation, indices, batch_size=batch_size, device=device)
        return _Errors(*(tensor.double() for tensor in found))

    levels = inner.quantiles
    fit, judge = errors(fitted), errors(judged)
    shifts = torch.stack(
        [
            weighted_quantiles(fit.target - fit.quantiles[..., place], fit.scale[:, :1], (level,)).squeeze(-1)
            for place, level in enumerate(levels)
        ],
        -1,
    )  # [F, Q]
    better = _loss(judge, judge.quantiles + shifts, levels) < _loss(judge, judge.quantiles, levels)
    offsets += torch.where(better, shifts, 0).to(offsets)
    return Shift(int(better.sum()), better.numel())


def _late_slices(validation: Windows) -> tuple[Tensor, Tensor]:
    """Return the windows of the third and of the last quarter of the part's time; no target lies in both."""
    everything = torch.arange(len(validation))
    begins = validation.panel.time[validation.target_rows(everything)[:, 0]]
    ends = validation.panel.time[validation.target_rows(everything)[:, -1]]
    ordered = begins.sort().values
    half, last = (ordered[len(ordered) * quarter // 4] for quarter in (2, 3))
    fitted, judged = everything[(begins >= half) & (ends < last)], everything[begins >= last]
    return _thinned(fitted), _thinned(judged)


def _thinned(indices: Tensor) -> Tensor:
    return indices[:: max(1, -(-len(indices) // _MOST_WINDOWS))]


def _loss(errors: _Errors, quantiles: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Return the quantile loss of each step and level in scaled units, [F, Q]."""
    return (pinball(quantiles, errors.target, levels) * errors.scale.unsqueeze(-1)).sum(0)
