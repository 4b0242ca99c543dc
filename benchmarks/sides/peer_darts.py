"""The TFT of darts; runs in an environment that has it."""

from __future__ import annotations

from typing import Any

import darts
import numpy as np
import numpy.typing as npt
import torch
from darts.models import TFTModel
from darts.utils.data.torch_datasets.utils import PLModuleInput, TorchTrainingSample
from darts.utils.likelihood_models.torch import QuantileRegression
from torch import Tensor, nn

from sides.worker import Options, Side, run
from sides.workloads import Workload


class Forecaster(nn.Module):
    """Takes target [B, T, 1], observed [B, T, O], known past and future [B, T or F, K] and static columns [B, 1, S]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return quantiles [B, F, Q]."""
        forecast: Tensor = self.output(*inputs).prediction.squeeze(2)
        return forecast

    def output(self, *inputs: Tensor) -> Any:
        """Return what the library's loss takes."""
        target, observed, known, known_ahead, *static = inputs
        return self.model(
            PLModuleInput(
                past_target=target,
                past_covariates=observed,
                historic_future_covariates=known,
                future_covariates=known_ahead,
                static_covariates=static[0] if static else None,
            )
        )


def build(workload: Workload, options: Options) -> Side:
    """Return the module that `TFTModel.fit` would train, every variable embedded in the full hidden size."""
    wrapper = TFTModel(
        input_chunk_length=workload.history,
        output_chunk_length=workload.horizon,
        hidden_size=workload.hidden,
        hidden_continuous_size=workload.hidden,
        lstm_layers=1,
        num_attention_heads=workload.heads,
        dropout=workload.dropout,
        likelihood=QuantileRegression(quantiles=list(workload.quantiles)),
        batch_size=workload.batch,
        pl_trainer_kwargs={"accelerator": "cpu"},
    )
    sample = _sample(workload)
    wrapper.static_covariates, wrapper.train_sample = None, sample
    model = wrapper._create_model(sample).float()  # what `fit` calls

    def inputs(windows: int) -> tuple[Tensor, ...]:
        tensors = (
            torch.randn(windows, workload.history, 1),
            torch.randn(windows, workload.history, workload.observed - 1),
            torch.randn(windows, workload.history, workload.known),
            torch.randn(windows, workload.horizon, workload.known),
        )
        return (*tensors, torch.randn(windows, 1, workload.static)) if workload.static else tensors

    forecaster = Forecaster(model)
    batch, target = inputs(workload.batch), torch.randn(workload.batch, workload.horizon, 1)
    return Side(
        darts.__version__,
        model.train(),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda: model._compute_loss(forecaster.output(*batch), target, None, None),
        forecaster,
        inputs,
    )


def _sample(workload: Workload) -> TorchTrainingSample:
    """Return a window of zeros, from which the library learns how wide its inputs are."""

    def zeros(steps: int, columns: int) -> npt.NDArray[np.float32]:
        return np.zeros((steps, columns), dtype=np.float32)

    return TorchTrainingSample(
        past_target=zeros(workload.history, 1),
        past_covariates=zeros(workload.history, workload.observed - 1),
        historic_future_covariates=zeros(workload.history, workload.known),
        future_covariates=zeros(workload.horizon, workload.known),
        static_covariates=zeros(1, workload.static) if workload.static else None,
        sample_weight=None,
        future_target=zeros(workload.horizon, 1),
    )


if __name__ == "__main__":
    run(build)
