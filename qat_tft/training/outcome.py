"""What a run leaves behind when training is over: scores on the test part, and the windows for later checks."""

from __future__ import annotations

from importlib.metadata import version

import torch
from torch import Tensor, nn

from qat_tft.config.run import RunConfig
from qat_tft.data.scaling import Scaling
from qat_tft.data.time.season import LAST_VALUE
from qat_tft.data.windows import Windows
from qat_tft.evaluation.linear_paths import raw_forecasts
from qat_tft.evaluation.naive import SeasonalNaive
from qat_tft.evaluation.names import LAST, NAIVE, RIDGE
from qat_tft.evaluation.scores import Scores, Tally
from qat_tft.evaluation.window_forecasts import even_indices, forecast_windows
from qat_tft.runs.data import RunData
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.training.frame_choice import FittedFrame
from qat_tft.training.state import Position

CHECK_WINDOWS = 1024
"""Most windows that check_windows.safetensors holds."""
CHECK_BYTES = 16 * 2**20
"""Most bytes of their values."""


def test_scores(model: nn.Module, scaling: Scaling, test: Windows, config: RunConfig, device: torch.device) -> Scores:
    """Return a model's scores on the test windows, at most `training.test_windows` of them."""
    found = forecast_windows(
        model,
        scaling,
        test,
        test_indices(test, config),
        batch_size=config.training.batch_size,
        device=device,
    )
    return scores_of(found.quantiles, found.target, config.model.quantiles)


def scores_of(quantiles: Tensor, target: Tensor, levels: tuple[float, ...]) -> Scores:
    """Return the scores of raw quantiles [N, F, Q] for raw targets [N, F]; errors are not scaled."""
    tally, flat = Tally(1, levels), target.flatten()
    unscaled = torch.full_like(flat, torch.nan, dtype=torch.float64)
    tally.add(torch.zeros(len(flat), dtype=torch.int64), quantiles.flatten(0, 1), flat, unscaled)
    return tally.overall()


def simple_scores(data: RunData, config: RunConfig, frame: FittedFrame) -> dict[str, Scores]:
    """Return the scores of the forecasts that need no network, on the same test windows."""
    indices = test_indices(data.test, config)
    rows = data.test.target_rows(indices)
    levels, horizon = config.model.quantiles, config.model.horizon
    forecasts = {}
    if frame.ridge is not None:
        ridge, scaling = frame.ridge, data.preprocessing.scaling()
        forecasts[RIDGE] = raw_forecasts(ridge.forecast, data.test, indices, scaling, ridge.frame)
    for name, season in {NAIVE: frame.season, LAST: LAST_VALUE}.items():
        if name == NAIVE or season != frame.season:
            naive = SeasonalNaive.fit(data.panel, data.training_ends, season=season, horizon=horizon, levels=levels)
            forecasts[name] = naive.forecast(rows[:, 0], horizon)
    target = data.panel.target[rows]
    return {name: scores_of(quantiles, target, levels) for name, quantiles in forecasts.items()}


def test_indices(test: Windows, config: RunConfig) -> Tensor:
    """Return which windows of the test part are evaluated."""
    return even_indices(len(test), config.training.test_windows)


def results_of(
    run: str,
    config: RunConfig,
    data: RunData,
    frame: FittedFrame,
    position: Position,
    model: nn.Module,
    notes: tuple[str, ...] = (),
) -> RunResults:
    """Collect the results of a run whose phases are over."""
    simple = simple_scores(data, config, frame)
    risks = {**position.q_risk, **{name: scores.q_risk for name, scores in simple.items()}}
    coverage = {**position.coverage, **{name: scores.coverage for name, scores in simple.items()}}
    return RunResults(
        run=run,
        quantiles=config.model.quantiles,
        season=frame.season,
        q_risk={name: tuple(values) for name, values in risks.items()},
        coverage={name: tuple(values) for name, values in coverage.items()},
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
    one = sum(tensor.element_size() * tensor.numel() for tensor in test[0] if tensor is not None)
    limit = max(1, min(CHECK_WINDOWS, CHECK_BYTES // one))
    folder.write_check_windows(test[even_indices(len(test), limit)])
