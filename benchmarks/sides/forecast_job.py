"""Trains a library's model on a set and forecasts its test windows, in a process of its own.

It runs in the library's environment. What it is given and what it answers are lines of JSON; the forecasts are a file.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sides.forecast_rows import Rows, read_rows
from sides.forecast_sets import FORECAST_SETS

Quantiles = npt.NDArray[np.float32]
Forecaster = Callable[[], Quantiles]
"""Forecasts the windows that are scored: quantiles [N, F, Q] in the target's own unit."""

CHECKS = 8
"""How often the validation windows are looked at in training."""
CLIPPED = 0.1
"""Norm of the gradient that no step exceeds, where the library leaves it to its user."""
HEADS, DROPOUT, FORECAST_BATCH = 4, 0.1, 256


@dataclass(frozen=True)
class Job:
    """What is trained: rows of a set, training steps, seed, and a folder for checkpoints."""

    rows: Rows
    steps: int
    seed: int
    folder: Path

    @property
    def check_every(self) -> int:
        """Steps from one look at the validation windows to the next."""
        return max(1, self.steps // CHECKS)


def run(library: str, train: Callable[[Job], Forecaster]) -> None:
    """Train what the command line asks for, forecast, and print what it took."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    answers, asked = os.fdopen(os.dup(1), "w"), json.loads(sys.argv[1])
    os.dup2(2, 1)  # libraries print
    torch.set_num_threads(1)
    torch.manual_seed(asked["seed"])
    rows = read_rows(FORECAST_SETS[asked["set"]], Path(asked["data"]))
    folder = Path(asked["folder"])
    start = time.process_time()
    forecaster = train(Job(rows, asked["steps"], asked["seed"], folder))
    trained = time.process_time()
    quantiles = forecaster()
    np.savez(folder / "forecasts.npz", quantiles=quantiles)
    took = {"seconds": trained - start, "forecast_seconds": time.process_time() - trained}
    answers.write(json.dumps({"version": version(library), **took}) + "\n")


def best_weights(callback: type, monitor: str) -> Any:
    """Return a callback of Lightning's that keeps the weights with the lowest validation loss, as `state`.

    Args:
        callback: the class Callback of the Lightning that the library uses.
        monitor: what Lightning calls the validation loss.
    """

    class BestWeights(callback):  # type: ignore[misc]
        """Copies the weights where the loss is the lowest so far."""

        loss, state = float("inf"), None

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            """Compare, and copy."""
            found = trainer.callback_metrics.get(monitor)
            if not trainer.sanity_checking and found is not None and float(found) < self.loss:
                self.loss = float(found)
                self.state = {name: one.detach().clone() for name, one in pl_module.state_dict().items()}

    return BestWeights()


def trainer_options() -> dict[str, Any]:
    """Return how Lightning is asked to train: on the processor and in silence."""
    return {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "gradient_clip_val": CLIPPED,
    }
