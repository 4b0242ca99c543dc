"""Figures have one name and one number each, whatever they are nested in."""

import math

from qat_tft.tracking.flat import figures_of, numbers_of, settings_of


def test_settings_stand_under_their_path_and_lists_are_one_text():
    config = {
        "training": {"epochs": 3, "track": ["wandb", "mlflow"], "device": None},
        "model": {"quantiles": (0.1, 0.5)},
    }
    assert settings_of(config) == {
        "training.epochs": 3,
        "training.track": "wandb,mlflow",
        "model.quantiles": "0.1,0.5",
    }


def test_an_epoch_stands_under_its_phase_with_its_step():
    line = {"event": "epoch", "phase": "qat", "epoch": 2, "step": 40, "train_loss": 0.5, "best": True}
    assert figures_of(line) == {"qat/epoch": 2, "qat/step": 40, "qat/train_loss": 0.5}


def test_another_event_stands_under_its_own_name():
    line = {"event": "out_of_memory", "phase": "fp32", "step": 7, "said": "no", "reached": {"micro_batch": 8}}
    assert figures_of(line) == {"fp32/out_of_memory/step": 7, "fp32/out_of_memory/reached/micro_batch": 8}


def test_what_is_undefined_or_no_number_is_left_out():
    values = {"q_risk": {"fp32": {"0.5": 0.25, "0.9": None}}, "version": "1", "seconds": math.nan, "windows": {}}
    assert numbers_of(values, "results") == {"results/q_risk/fp32/0.5": 0.25}
