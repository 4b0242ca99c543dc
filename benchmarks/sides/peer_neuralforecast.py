"""neuralforecast's TFT; runs in an environment that has it. A variable's embedding has its hidden size always."""

from __future__ import annotations

from importlib.metadata import version

import torch
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import TFT
from torch import Tensor, nn

from sides.worker import Options, Side, run
from sides.workloads import Workload


class Forecaster(nn.Module):
    """Takes target [B, T, 1], known [B, T + F, K], observed [B, T, O] and static columns [B, S] to quantiles."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the quantiles as the library lays them out."""
        target, known, observed, *static = inputs
        batch = {"insample_y": target, "futr_exog": known, "hist_exog": observed}
        forecast: Tensor = self.model({**batch, "stat_exog": static[0] if static else None})
        return forecast


def build(workload: Workload, options: Options) -> Side:
    """Return the library's model."""
    static, observed, known = (
        [f"{role}_{place}" for place in range(count)]
        for role, count in (("static", workload.static), ("observed", workload.observed - 1), ("known", workload.known))
    )
    model = TFT(
        h=workload.horizon,
        input_size=workload.history,
        stat_exog_list=static or None,
        hist_exog_list=observed,
        futr_exog_list=known,
        hidden_size=workload.hidden,
        n_head=workload.heads,
        n_rnn_layers=1,
        dropout=workload.dropout,
        loss=MQLoss(quantiles=list(workload.quantiles)),
        max_steps=1,
        accelerator="cpu",
    )

    def inputs(windows: int) -> tuple[Tensor, ...]:
        tensors = (
            torch.randn(windows, workload.history, 1),
            torch.randn(windows, workload.history + workload.horizon, workload.known),
            torch.randn(windows, workload.history, len(observed)),
        )
        return (*tensors, torch.randn(windows, len(static))) if static else tensors

    forecaster = Forecaster(model)
    batch, target = inputs(workload.batch), torch.randn(workload.batch, workload.horizon, 1)
    mask = torch.ones_like(target)

    def loss() -> Tensor:
        forecast = model.loss.domain_map(forecaster(*batch))
        total: Tensor = model.loss(y=target, y_hat=forecast, y_insample=batch[0], mask=mask)
        return total

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Side(version("neuralforecast"), model.train(), optimizer, loss, forecaster, inputs)


if __name__ == "__main__":
    run(build)
