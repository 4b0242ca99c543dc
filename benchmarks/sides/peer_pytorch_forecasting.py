"""pytorch-forecasting's TemporalFusionTransformer; runs in an environment that has it."""

from __future__ import annotations

import pytorch_forecasting
import torch
from pytorch_forecasting import TemporalFusionTransformer
from pytorch_forecasting.data.encoders import TorchNormalizer
from pytorch_forecasting.metrics import QuantileLoss
from torch import Tensor, nn

from sides.worker import Options, Side, run
from sides.workloads import Workload


class Forecaster(nn.Module):
    """Takes real columns of history [B, T, V] and future [B, F, V] to quantiles [B, F, Q]."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        super().__init__()
        self.model, self.history, self.horizon = model, workload.history, workload.horizon

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the quantiles; no column is a category, and all windows are whole."""
        past, future = inputs
        batch = past.shape[0]
        forecast: Tensor = self.model(
            {
                "encoder_cont": past,
                "decoder_cont": future,
                "encoder_cat": torch.zeros(batch, self.history, 0, dtype=torch.long),
                "decoder_cat": torch.zeros(batch, self.horizon, 0, dtype=torch.long),
                "encoder_lengths": torch.full((batch,), self.history, dtype=torch.long),
                "decoder_lengths": torch.full((batch,), self.horizon, dtype=torch.long),
                "target_scale": torch.tensor([[0.0, 1.0]]).expand(batch, 2),
            }
        )["prediction"]
        return forecast


def build(workload: Workload, options: Options) -> Side:
    """Return the library's model, every variable embedded in the full hidden size."""
    static, observed, known = (
        [f"{role}_{place}" for place in range(count)]
        for role, count in (("static", workload.static), ("observed", workload.observed), ("known", workload.known))
    )
    columns = [*static, *known, *observed]
    model = TemporalFusionTransformer(
        hidden_size=workload.hidden,
        hidden_continuous_size=workload.hidden,
        lstm_layers=1,
        dropout=workload.dropout,
        output_size=len(workload.quantiles),
        loss=QuantileLoss(list(workload.quantiles)),
        attention_head_size=workload.heads,
        max_encoder_length=workload.history,
        static_categoricals=[],
        static_reals=static,
        time_varying_categoricals_encoder=[],
        time_varying_categoricals_decoder=[],
        time_varying_reals_encoder=[*known, *observed],
        time_varying_reals_decoder=known,
        x_reals=columns,
        x_categoricals=[],
        embedding_sizes={},
        categorical_groups={},
        output_transformer=TorchNormalizer(method="identity"),
    )

    def inputs(windows: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(windows, steps, len(columns)) for steps in (workload.history, workload.horizon))

    forecaster = Forecaster(model, workload)
    batch, target = inputs(workload.batch), torch.randn(workload.batch, workload.horizon)
    return Side(
        pytorch_forecasting.__version__,
        model.train(),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda: model.loss(forecaster(*batch), target),
        forecaster,
        inputs,
    )


if __name__ == "__main__":
    run(build)
