"""neuralforecast's TFT on a set; runs in an environment that has it.

Target and inputs are normalized window by window, as the library does unless told otherwise; static columns are
standardized, categories are columns of 0 and 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as lightning
from neuralforecast.losses.pytorch import MQLoss
from neuralforecast.models import TFT
from neuralforecast.tsdataset import TimeSeriesDataset
from pytorch_lightning.callbacks import Callback

from sides.forecast_job import (
    DROPOUT,
    FORECAST_BATCH,
    HEADS,
    Forecaster,
    Job,
    Quantiles,
    best_weights,
    run,
    trainer_options,
)
from sides.forecast_rows import TEST, VALIDATION, Ints, Rows
from sides.forecast_sets import BATCH, QUANTILES

ID, TIME, TARGET = "unique_id", "ds", "y"
SERIES_BATCH = 32


class SparseValidation(Callback):
    """Looks at every so many windows of the validation part, where the library would look at all."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Take larger steps from one window to the next."""
        pl_module.step_size = self.every

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Take every window again."""
        pl_module.step_size = 1


def train(job: Job) -> Forecaster:
    """Train, take the weights with the lowest validation loss, and return their forecaster."""
    rows, one = job.rows, job.rows.of
    frame, static = frame_of(rows), static_of(rows)
    flags = [name for column in one.known_categories for name in rows.one_hot(column)]
    validation = np.bincount(rows.series, rows.part == VALIDATION)
    every = -(-len(rows.windows(VALIDATION)) // len(rows.validated))
    best = best_weights(Callback, "ptl/val_loss")
    model = TFT(
        h=one.horizon,
        input_size=one.history,
        stat_exog_list=None if static is None else [name for name in static if name != ID],
        hist_exog_list=list(one.observed) or None,
        futr_exog_list=[*rows.known, *flags],
        hidden_size=one.hidden,
        n_head=HEADS,
        dropout=DROPOUT,
        loss=MQLoss(quantiles=list(QUANTILES)),
        max_steps=job.steps,
        batch_size=SERIES_BATCH,
        windows_batch_size=BATCH,
        inference_windows_batch_size=FORECAST_BATCH,
        training_data_availability_threshold=1.0,  # whole windows, as everywhere
        val_check_steps=job.check_every,
        random_seed=job.seed + 1,
        callbacks=[best, SparseValidation(every)],
        **trainer_options(),
    )
    # The library cuts every series the same number of rows before its end: no row of a later part is ever trained on.
    model.fit(dataset(frame[rows.part <= VALIDATION], static), val_size=int(validation.max()))
    model.load_state_dict(best.state)
    return partial(forecasts, model, frame[rows.part <= TEST], static, rows)


def frame_of(rows: Rows) -> pd.DataFrame:
    """Return the columns in the library's layout, time counted by row."""
    one = rows.of
    flags = {name: values for column in one.known_categories for name, values in rows.one_hot(column).items()}
    columns = {name: rows.columns[name] for name in (*one.observed, *rows.known)}
    return pd.DataFrame({ID: rows.series, TIME: rows.step, TARGET: rows.target, **columns, **flags})


def static_of(rows: Rows) -> pd.DataFrame | None:
    """Return static columns by series; None where there are none. What names a series alone is left out."""
    one, owners = rows.of, rows.starts[:-1]
    reals = {name: rows.columns[name][owners] for name in one.static_reals}
    columns = {name: (values - values.mean()) / values.std() for name, values in reals.items()}
    for name in one.static_categories:
        if (name,) != one.series:
            columns |= {flag: values[owners] for flag, values in rows.one_hot(name).items()}
    return pd.DataFrame({ID: np.arange(len(owners)), **columns}) if columns else None


def dataset(frame: pd.DataFrame, static: pd.DataFrame | None) -> TimeSeriesDataset:
    """Return rows as the library's data set."""
    if static is not None:
        static = static[static[ID].isin(frame[ID].unique())]
    made: TimeSeriesDataset = TimeSeriesDataset.from_df(df=frame, static_df=static)[0]
    return made


def forecasts(model: TFT, frame: pd.DataFrame, static: pd.DataFrame | None, rows: Rows) -> Quantiles:
    """Return quantiles [N, F, Q]; series with as many windows each are forecast at once."""
    owners = rows.series[rows.scored]
    counts: Ints = np.bincount(owners, minlength=len(rows.starts) - 1)
    quantiles = np.empty((len(owners), rows.of.horizon, len(QUANTILES)), dtype=np.float32)
    for count in np.unique(counts[counts > 0]):
        group = np.flatnonzero(counts == count)
        model.set_test_size(int(count) + rows.of.horizon - 1)
        found = model.predict(dataset(frame[frame[ID].isin(group)], static), step_size=1)
        quantiles[np.isin(owners, group)] = np.reshape(found, (-1, rows.of.horizon, len(QUANTILES)))
    return quantiles


if __name__ == "__main__":
    run("neuralforecast", train)
