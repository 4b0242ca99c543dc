"""The TFT of darts on a set; runs in an environment that has it.

Series and covariates are standardized series by series on their training rows, static categories are embedded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from darts import TimeSeries
from darts.dataprocessing.transformers import Scaler, StaticCovariatesTransformer
from darts.models import TFTModel
from darts.utils.likelihood_models.torch import QuantileRegression
from sklearn.preprocessing import StandardScaler

from sides.forecast_job import CHECKS, DROPOUT, FORECAST_BATCH, HEADS, Forecaster, Job, Quantiles, run, trainer_options
from sides.forecast_rows import TEST, TRAINING, Column, Ints, Rows
from sides.forecast_sets import BATCH, QUANTILES

Series = list[TimeSeries]


def train(job: Job) -> Forecaster:
    """Train, take the checkpoint with the lowest validation loss, and return its forecaster."""
    rows, one = job.rows, job.rows.of
    target, unscale = scaled_target(rows)
    observed = scaled(rows, one.observed) if one.observed else None
    flags = {name: values for column in one.known_categories for name, values in rows.one_hot(column).items()}
    known = scaled(rows, rows.known, flags)
    classes = {name: len(np.unique(rows.columns[name])) for name in one.static_categories}
    model = TFTModel(
        input_chunk_length=one.history,
        output_chunk_length=one.horizon,
        hidden_size=one.hidden,
        hidden_continuous_size=one.hidden,
        num_attention_heads=HEADS,
        dropout=DROPOUT,
        likelihood=QuantileRegression(list(QUANTILES)),
        categorical_embedding_sizes=classes or None,
        batch_size=BATCH,
        n_epochs=CHECKS,
        random_state=job.seed,
        save_checkpoints=True,
        work_dir=str(job.folder),
        model_name="tft",
        pl_trainer_kwargs={
            "limit_train_batches": job.check_every,
            **{name: value for name, value in trainer_options().items() if name != "logger"},
        },
    )

    def of_windows(windows: Ints) -> dict[str, Series]:
        """Return the covariates of each window's series."""
        owners = rows.series[windows]
        covariates = {"past_covariates": observed, "future_covariates": known}
        return {name: [series[owner] for owner in owners] for name, series in covariates.items() if series}

    ends = [int((rows.part[where] == TRAINING).sum()) for where in rows.each_series()]
    model.fit(
        [series[:end] for series, end in zip(target, ends, strict=True)],
        past_covariates=observed,
        future_covariates=known,
        val_series=pieces(rows, target, rows.validated, one.horizon),
        **{f"val_{name}": series for name, series in of_windows(rows.validated).items()},
        load_best=True,
    )
    histories = pieces(rows, target, rows.scored, 0)
    return partial(forecasts, model, histories, of_windows(rows.scored), unscale[rows.series[rows.scored]])


def scaled_target(rows: Rows) -> tuple[Series, Quantiles]:
    """Return the scaled target with static covariates, and mean and deviation of each series, [S, 2]."""
    one, owners = rows.of, rows.starts[:-1]
    raw, training = frames(rows, [one.target]), frames(rows, [one.target], until=TRAINING)
    scaler = Scaler(StandardScaler())
    scaler.fit(training)
    target: Series = scaler.transform(raw)
    fitted = np.array([(each.mean_[0], each.scale_[0]) for each in scaler._fitted_params])
    names = [*one.static_categories, *one.static_reals]
    if names:
        static = pd.DataFrame({name: rows.columns[name][owners] for name in names})
        target = [series.with_static_covariates(static.iloc[[owner]]) for owner, series in enumerate(target)]
        target = StaticCovariatesTransformer().fit_transform(target)
        target = [series.astype(np.float32) for series in target]
    return target, fitted


def scaled(rows: Rows, names: Sequence[str], more: Mapping[str, Column] | None = None) -> Series:
    """Return these columns of every series, standardized, and `more` as they are."""
    scaler = Scaler(StandardScaler())
    scaler.fit(frames(rows, names, until=TRAINING))
    series: Series = scaler.transform(frames(rows, names))
    if not more:
        return series
    others = frames(replace(rows, columns=dict(more)), list(more))
    return [one.stack(other) for one, other in zip(series, others, strict=True)]


def frames(rows: Rows, names: Sequence[str], until: int = TEST) -> Series:
    """Return columns of every series up to the end of a part, counted by row."""
    values = np.stack([rows.columns[name] for name in names], axis=1)
    kept = ((values[where], int((rows.part[where] <= until).sum())) for where in rows.each_series())
    return [
        TimeSeries.from_times_and_values(pd.RangeIndex(end), values[:end].astype(np.float32), columns=list(names))
        for values, end in kept
    ]


def pieces(rows: Rows, series: Series, windows: Ints, ahead: int) -> Series:
    """Return the history of each window, and so many steps after it."""
    firsts = rows.step[windows]
    owners = (series[owner] for owner in rows.series[windows])
    return [one[int(first) - rows.of.history : int(first) + ahead] for one, first in zip(owners, firsts, strict=True)]


def forecasts(model: TFTModel, histories: Series, covariates: Mapping[str, Any], fitted: Quantiles) -> Quantiles:
    """Return quantiles [N, F, Q]; `fitted` holds mean and deviation of each window's series, [N, 2]."""
    found = model.predict(
        n=model.output_chunk_length,
        series=histories,
        predict_likelihood_parameters=True,
        batch_size=FORECAST_BATCH,
        verbose=False,
        **covariates,
    )
    quantiles: Quantiles = np.stack([one.values() for one in found])  # [N, F, Q]
    mean, deviation = fitted[:, 0, None, None], fitted[:, 1, None, None]
    return quantiles * deviation + mean


if __name__ == "__main__":
    run("darts", train)
