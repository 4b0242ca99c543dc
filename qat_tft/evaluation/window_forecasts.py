"""Forecasts of a model over the windows of a part, and how good they are.

Where several ranks train, each forecasts some of the batches that one process would forecast, and all get the same.

Legend: N windows, F horizon, Q quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qat_tft import ranks
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Batch, Windows
from qat_tft.errors import NonFiniteLossError
from qat_tft.evaluation.nonfinite import explain_batch
from qat_tft.model.loss import Loss, present_windows, q_risk


class Forecasts(NamedTuple):
    """Forecasts and what came, in the target's own unit."""

    quantiles: Tensor  # [N, F, Q]
    target: Tensor  # [N, F]

    def q_risk(self, levels: tuple[float, ...]) -> dict[float, float]:
        """Return the normalised quantile loss of each level (Lim et al. 2021, equation 26)."""
        return dict(zip(levels, q_risk(self.quantiles, self.target, levels).tolist(), strict=True))


def forecast_windows(
    model: nn.Module,
    scaling: Scaling,
    windows: Windows,
    indices: Tensor,
    *,
    batch_size: int,
    device: torch.device,
) -> Forecasts:
    """Forecast the windows at `indices` and scale back; the model is left in the mode it was in."""

    def forecast(batch: Batch) -> tuple[Tensor, ...]:
        return raw_quantiles(model, scaling, batch), batch.target

    return Forecasts(*of_windows(forecast, model, windows, indices, batch_size=batch_size, device=device))


def of_windows(
    function: Callable[[Batch], tuple[Tensor, ...]],
    model: nn.Module,
    windows: Windows,
    indices: Tensor,
    *,
    batch_size: int,
    device: torch.device,
) -> list[Tensor]:
    """Return what a function says of the windows at `indices`, batch by batch, on the CPU.

    Args:
        function: takes raw windows on the device and returns some tensors [B, ...].
        model: that it asks; in evaluation mode meanwhile.
        windows: of the part.
        indices: int64 [N].
        batch_size: windows at once.
        device: of the model.
    """
    shares = [_share(indices, batch_size, rank) for rank in range(ranks.world())]
    with evaluating(model):
        own = [function(batch) for batch in batches_at(windows, shares[ranks.rank()], batch_size, device)]
    parts = [torch.cat(tensors) for tensors in zip(*own, strict=True)]
    wholes = parts if ranks.world() == 1 else ranks.joined(parts, [len(share) for share in shares])
    return [whole.cpu() for whole in wholes]


def raw_quantiles(model: nn.Module, scaling: Scaling, batch: Batch) -> Tensor:
    """Forecast one batch of raw windows: quantiles [B, F, Q] in the target's own unit."""
    inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
    return scaling.unscale_target(model(*inputs).quantiles, batch.series)


def validation_loss(
    model: nn.Module,
    scaling: Scaling,
    windows: Windows,
    indices: Tensor,
    *,
    loss: Loss,
    batch_size: int,
    device: torch.device,
) -> float:
    """Return the mean loss on the scaled target, where it is there, over the windows at `indices`.

    Raises:
        NonFiniteLossError: the loss of a batch is not finite; the message names the columns that made it so.
    """
    batches = -(-len(indices) // batch_size)
    found = torch.zeros(batches, 2, dtype=torch.float64)  # sum of the losses, and weight
    with ranks.together(), evaluating(model):
        own = batches_at(windows, _share(indices, batch_size, ranks.rank()), batch_size, device)
        for number, batch in enumerate(own, start=ranks.share(batches).start):
            inputs = scaling.scale_inputs(batch.static, batch.historical, batch.future, batch.series)
            target = scaling.scale_target(batch.target, batch.series)
            value = float(loss(model(*inputs), target))
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"the validation loss is {value}; {explain_batch(windows.panel.schema, inputs, target)}",
                    next_step="Fix those values, or lower training.learning_rate",
                )
            weight = present_windows(target)
            found[number] = torch.tensor([value * weight, weight])
    ranks.add(found)
    total, weights = 0.0, 0.0
    for part, weight in found.tolist():
        total, weights = total + part, weights + weight
    return total / weights if weights else 0.0


def even_indices(count: int, limit: int) -> Tensor:
    """Return all of 0 .. count - 1, or `limit` of them evenly spaced, ascending, int64."""
    if count <= limit:
        return torch.arange(count)
    return torch.arange(limit) * (count - 1) // max(1, limit - 1)


def _share(indices: Tensor, batch_size: int, rank: int) -> Tensor:
    """Return the indices of a rank, which are whole batches of one process."""
    own = ranks.share(-(-len(indices) // batch_size), rank)
    return indices[own.start * batch_size : own.stop * batch_size]


def batches_at(windows: Windows, indices: Tensor, size: int, device: torch.device) -> Iterator[Batch]:
    """Yield the windows at `indices` in order, `size` at a time, on `device`."""
    for chunk in indices.split(size):
        yield windows[chunk].to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without gradients and in evaluation mode inside the block; the mode before it is restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
