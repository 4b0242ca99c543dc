"""What a run leaves behind when training is over: q-risk on the test part, and the windows for later checks."""

from __future__ import annotations

from importlib.metadata import version

import torch
from torch import Tensor, nn

from qat_tft.config.run import RunConfig
from qat_tft.data.scaling import Scaling
from qat_tft.data.windows import Windows
from qat_tft.evaluation.naive import LAST_VALUE, SeasonalNaive, season_of
from qat_tft.evaluation.names import LAST, NAIVE
from qat_tft.evaluation.window_forecasts import even_indices, forecast_windows
from qat_tft.model.loss import q_risk
from qat_tft.runs.data import RunData
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.training.state import Position

CHECK_WINDOWS = 1024
"""Most windows that check_windows.safetensors holds."""
CHECK_BYTES = 16 * 2**20
"""Most bytes of their values."""


def test_q_risk(
    model: nn.Module, scaling: Scaling, test: Windows, config: RunConfig, device: torch.device
) -> list[float]:
    """Return a model's q-risk per quantile on the test windows, at most `training.test_windows` of them."""
    found = forecast_windows(
        model,
        scaling,
        test,
        test_indices(test, config),
        batch_size=config.training.batch_size,
        device=device,
    )
    return q_risk(found.quantiles, found.target, config.model.quantiles).tolist()


def naive_q_risk(data: RunData, config: RunConfig, season: int) -> list[float]:
    """Return the q-risk per quantile of the naive forecast with this season on the same test windows."""
    levels, horizon = config.model.quantiles, config.model.horizon
    naive = SeasonalNaive.fit(data.panel, data.training_ends, season=season, horizon=horizon, levels=levels)
    rows = data.test.target_rows(test_indices(data.test, config))
    return q_risk(naive.forecast(rows[:, 0], horizon), data.panel.target[rows], levels).tolist()


def test_indices(test: Windows, config: RunConfig) -> Tensor:
    """Return which windows of the test part are evaluated."""
    return even_indices(len(test), config.training.test_windows)


def results_of(
    run: str,
    config: RunConfig,
    data: RunData,
    position: Position,
    model: nn.Module,
    notes: tuple[str, ...] = (),
) -> RunResults:
    """Collect the results of a run whose phases are over."""
    season = config.data.season or season_of(data.panel)
    risks = {**position.q_risk, NAIVE: naive_q_risk(data, config, season)}
    if season != LAST_VALUE:
        risks[LAST] = naive_q_risk(data, config, LAST_VALUE)
    return RunResults(
        run=run,
        quantiles=config.model.quantiles,
        season=season,
        q_risk={name: tuple(values) for name, values in risks.items()},
        windows={
            "train": len(data.training),
            "validation": len(data.validation),
            "test": len(data.test),
            "test_evaluated": len(test_indices(data.test, config)),
        },
        validation_loss=position.validation_loss,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=position.seconds,
        checkpointing=position.savings,
        version=version("qat-tft"),
        notes=notes,
    )


def write_check_windows(folder: RunFolder, test: Windows) -> None:
    """Write raw windows of the test part, evenly spaced: at most 1,024 of them and 16 MiB."""
    one = sum(tensor.element_size() * tensor.numel() for tensor in test[0])
    limit = max(1, min(CHECK_WINDOWS, CHECK_BYTES // one))
    folder.write_check_windows(test[even_indices(len(test), limit)])
