"""pytorch-forecasting's TFT on a set; runs in an environment that has it.

Targets are normalized as the library chooses for them, and their scales are inputs. The monthly set is trained as the
library's tutorial on it is (Stallion): normalized by series, logarithms and averages as inputs, and its optimizer.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pandas as pd
from lightning.pytorch.callbacks import Callback
from pytorch_forecasting import GroupNormalizer, TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data import NaNLabelEncoder
from pytorch_forecasting.metrics import QuantileLoss

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
from sides.forecast_rows import TEST, TRAINING, Ints, Rows
from sides.forecast_sets import BATCH, QUANTILES

STEP, NUMBER = "step", "series_number"
BEVERAGES = "stallion_beverages"


def train(job: Job) -> Forecaster:
    """Train, take the weights with the lowest validation loss, and return their forecaster."""
    lightning.seed_everything(job.seed)
    rows, one = job.rows, job.rows.of
    frame, more = beverages(rows) if one.name == BEVERAGES else usual(rows)
    roles = {
        "time_idx": STEP,
        "target": one.target,
        "group_ids": list(one.series),
        "max_encoder_length": one.history,
        "min_encoder_length": one.history,
        "max_prediction_length": one.horizon,
        "min_prediction_length": one.horizon,
        "static_categoricals": list(one.static_categories),
        "static_reals": list(one.static_reals),
        "add_relative_time_idx": True,
        "add_target_scales": True,
    }
    training = TimeSeriesDataSet(frame[rows.part == TRAINING], **{**roles, **more["data"]})
    every = TimeSeriesDataSet.from_dataset(training, frame[rows.part <= TEST], min_encoder_length=one.history)
    validated, scored = (windows_at(every, rows, windows) for windows in (rows.validated, rows.scored))
    model = TemporalFusionTransformer.from_dataset(
        training,
        hidden_size=one.hidden,
        output_size=len(QUANTILES),
        loss=QuantileLoss(list(QUANTILES)),
        dropout=DROPOUT,
        log_interval=-1,
        **more["model"],
    )
    best = best_weights(Callback, "val_loss")
    trainer = lightning.Trainer(
        max_steps=job.steps,
        val_check_interval=job.check_every,
        check_val_every_n_epoch=None,
        callbacks=[best],
        enable_checkpointing=False,
        **trainer_options(),
    )
    trainer.fit(
        model,
        training.to_dataloader(train=True, batch_size=BATCH),
        validated.to_dataloader(train=False, batch_size=FORECAST_BATCH),
    )
    model.load_state_dict(best.state)
    return lambda: forecasts(model, scored, rows)


def usual(rows: Rows) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Return the rows, and what data set and model are told beyond the roles that all sets have."""
    one = rows.of
    data = {
        "time_varying_known_categoricals": list(one.known_categories),
        "time_varying_known_reals": list(rows.known),
        "time_varying_unknown_reals": [one.target, *one.observed],
        "categorical_encoders": unseen_allowed(*one.series, *one.static_categories, *one.known_categories),
    }
    model = {"hidden_continuous_size": one.hidden, "attention_head_size": HEADS, "learning_rate": 1e-3}
    return frame_of(rows), {"data": data, "model": model}


def beverages(rows: Rows) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Return the same as `usual`, in the way of the library's tutorial."""
    frame, one = frame_of(rows), rows.of
    flags = [name for name in one.known_reals if frame[name].isin((0, 1)).all()]
    for name in flags:
        frame[name] = frame[name].map({0: "-", 1: name})
    frame["month"] = pd.Series(rows.time).dt.month.astype(str)
    frame["log_volume"] = np.log(frame["volume"] + 1e-8)
    averages = {f"avg_volume_by_{name}": name for name in one.series}
    for average, name in averages.items():
        frame[average] = frame.groupby([STEP, name])["volume"].transform("mean")
    data = {
        "min_encoder_length": one.history // 2,
        "time_varying_known_categoricals": ["special_days", "month"],
        "variable_groups": {"special_days": flags},
        "time_varying_known_reals": [STEP, "price_regular", "discount_in_percent"],
        "time_varying_unknown_reals": [one.target, "log_volume", *one.observed, *averages],
        "target_normalizer": GroupNormalizer(groups=list(one.series), transformation="softplus"),
        "add_encoder_length": True,
    }
    model = {
        "hidden_continuous_size": 8,
        "attention_head_size": 2,
        "learning_rate": 0.03,
        "optimizer": "ranger",
        "reduce_on_plateau_patience": 4,
    }
    return frame, {"data": data, "model": model}


def frame_of(rows: Rows) -> pd.DataFrame:
    """Return the columns with the number of each row in its series, and of its series."""
    return pd.DataFrame({**rows.columns, STEP: rows.step, NUMBER: rows.series})


def unseen_allowed(*names: str) -> dict[str, NaNLabelEncoder]:
    """Return encoders of categories that take values which the training rows do not have."""
    return {name: NaNLabelEncoder(add_nan=True) for name in names}


def windows_at(every: TimeSeriesDataSet, rows: Rows, windows: Ints) -> TimeSeriesDataSet:
    """Return only those windows of a data set whose targets begin at these rows."""
    wanted = pd.MultiIndex.from_arrays([*(rows.columns[name][windows] for name in rows.of.series), rows.step[windows]])
    return every.filter(
        lambda index: pd.MultiIndex.from_frame(
            index[[*rows.of.series, "time_idx_first_prediction"]].astype(dict.fromkeys(rows.of.series, str))
        ).isin(wanted)
    )


def forecasts(model: TemporalFusionTransformer, scored: TimeSeriesDataSet, rows: Rows) -> Quantiles:
    """Return quantiles [N, F, Q] in the order of the windows that are scored."""
    found = model.predict(
        scored.to_dataloader(train=False, batch_size=FORECAST_BATCH),
        mode="quantiles",
        return_index=True,
        return_y=True,
        trainer_kwargs={"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
    )
    order = found.index.sort_values([*rows.of.series, STEP]).index.to_numpy()
    actual = found.y[0].cpu().numpy()[order]
    np.testing.assert_allclose(actual, rows.actual(rows.scored), rtol=1e-4, atol=1e-3)
    quantiles: Quantiles = found.output.cpu().numpy()[order]
    return quantiles


if __name__ == "__main__":
    run("pytorch-forecasting", train)
