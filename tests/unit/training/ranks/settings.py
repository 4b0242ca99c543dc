"""What ranks and the process that is compared to them train: small, without dropout, over rows of two plants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from qat_tft.config.run import RunConfig
from qat_tft.quantization.ranges import ActivationQuantizer
from qat_tft.schema import Columns, Schema
from qat_tft.training.steps.step import TrainingStep

SCHEMA = Schema(
    time="time",
    target="load",
    id=("plant",),
    static=Columns(category=("plant",)),
    observed=Columns(real=("wind",)),
    known=Columns(real=("phase",)),
)


@contextmanager
def watched_steps() -> Iterator[dict[str, Tensor]]:
    """Keep what every step leaves: its loss and gradient norm, and every range."""
    make, kept, steps = TrainingStep.__call__, {}, count()

    def watched(self: TrainingStep, *arguments: Any, **named: Any) -> Any:
        made, step = make(self, *arguments, **named), next(steps)
        outcome = made.settled()
        kept[f"{step}/loss"] = torch.tensor([outcome.loss, outcome.gradient_norm], dtype=torch.float64)
        for name, module in self.model.named_modules():
            if isinstance(module, ActivationQuantizer):
                kept[f"{step}/{name}"] = torch.stack([module.minimum, module.maximum]).clone()
        return made

    TrainingStep.__call__ = watched  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        TrainingStep.__call__ = make  # type: ignore[method-assign]


def settings(data: str, *, halves: bool = False, **options: Any) -> RunConfig:
    """Return settings of steps of 16 windows: of one batch, or of two that one process makes one after the other."""
    parts = 2 if halves else 1
    training = {"checkpoint_mode": options.pop("mode", "off"), "epochs": options.pop("epochs", 1)}
    return RunConfig.checked(
        {
            "data": {"parquet_files": [data], "unknown_rate": 0.0},
            "model": {"history": 12, "horizon": 4, "hidden": 8, "heads": 2, "dropout": options.pop("dropout", 0.0)},
            "training": {"batch_size": 16 // parts, "accumulation": parts, "batches_per_epoch": 20 * parts, **training},
            "quantization": {
                "use_qat": True,
                "products": "integer",
                "qat_epochs": 1,
                "calibrator": "min-max",  # the same of one batch and of its halves
                "calibration_batches": parts,
                **options,
            },
        },
        where="the test",
    )
