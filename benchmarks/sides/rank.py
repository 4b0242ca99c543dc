"""One rank of a training, or a training alone: each request is a line of JSON on standard input, each answer one line.

    python -m sides.rank FILE.parquet

Where the environment tells of several ranks, all of them are asked the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import islice, repeat
from typing import Any

import torch

from qat_tft import ranks
from qat_tft.checkpointing.recompute import runner_for
from qat_tft.config.run import RunConfig
from qat_tft.data.loading.loader import batches
from qat_tft.data.windows import Batch
from qat_tft.model.loss import loss_of
from qat_tft.profiling.heap import merge_freed_blocks, restart_without_block_cache
from qat_tft.profiling.operator_count import OperatorCount
from qat_tft.quantization.ranges import ActivationQuantizer
from qat_tft.runs.build import accelerator_for, build_model, configured_qat_model
from qat_tft.runs.calibration import calibrate_on
from qat_tft.runs.data import RunData, load_data
from qat_tft.runs.optimizer import make_optimizer
from qat_tft.schema import Columns, Schema
from qat_tft.training.steps.step import TrainingStep
from sides.workloads import FORM, WORKLOADS

WORKLOAD = WORKLOADS["w2"]
OBSERVED = tuple(f"observed_{number}" for number in range(WORKLOAD.observed - 1))
KNOWN = tuple(f"known_{number}" for number in range(WORKLOAD.known))
SCHEMA = Schema(time="time", target="y", observed=Columns(real=OBSERVED), known=Columns(real=KNOWN))
READS = ("aten._local_scalar_dense.default", "aten.is_nonzero.default", "aten.equal.default", "aten.nonzero.default")
"""Operators whose result the host waits for."""


class Rank:
    """Trains models of the workload's shape on rows of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._timed: dict[str, Iterator[float]] = {}

    @cached_property
    def data(self) -> RunData:
        """The rows, cut into windows."""
        return load_data(self.config(WORKLOAD.batch).data, self.config(WORKLOAD.batch).model, SCHEMA)

    def config(self, batch: int, dropout: float = 0.0) -> RunConfig:
        """Return settings of the workload's shape, with batches of so many windows."""
        return RunConfig.checked(
            {
                "data": {"parquet_files": [self.path], "unknown_rate": 0.0},
                "model": {
                    "history": WORKLOAD.history,
                    "horizon": WORKLOAD.horizon,
                    "hidden": WORKLOAD.hidden,
                    "heads": WORKLOAD.heads,
                    "dropout": dropout,
                    **FORM,
                },
                "training": {"batch_size": batch},
                "quantization": {"calibration_batches": 1, "calibrator": "min-max", "products": "integer"},
            },
            where="the benchmark",
        )

    def step(self, kind: str, mode: str, config: RunConfig) -> TrainingStep:
        """Return the training step of a new model: "fp32", or "qat" with calibrated ranges that it observes."""
        torch.manual_seed(0)
        accelerator = accelerator_for(config.training)
        data, scaling = self.data, self.data.preprocessing.scaling()
        model: Any = build_model(config.model, data.preprocessing, data.schema)
        if kind != "fp32":
            ranges = "learned" if kind == "learned" else "observed"
            settings = config.quantization.model_copy(update={"qat_ranges": ranges})
            model = configured_qat_model(model, config.model, settings)
            calibrate_on(model, config, data.training, scaling, accelerator.device)
            model.set_phase("frozen" if kind == "frozen" else "qat")
        return TrainingStep(
            accelerator=accelerator,
            model=model,
            scaling=scaling,
            schema=data.schema,
            optimizer=accelerator.prepare_optimizer(make_optimizer(model)),
            run_segment=runner_for(mode),
            loss=loss_of(config.model.quantiles),
            gradient_clip=1.0,
        )

    def timed(self, kind: str, mode: str, count: int) -> dict[str, Any]:
        """Make some steps of `WORKLOAD.batch` windows on this rank and return their seconds."""
        if (name := f"{kind} {mode}") not in self._timed:
            config = self.config(WORKLOAD.batch * ranks.world(), WORKLOAD.dropout)
            self._timed[name] = _seconds(self.step(kind, mode, config), self._endless(config))
            list(islice(self._timed[name], 2))
        return {"seconds": list(islice(self._timed[name], count))}

    def trained(self, kind: str, mode: str, steps: int, halves: bool) -> dict[str, Any]:
        """Train some steps without dropout and return what each has left: its loss, and sums of its ranges.

        With `halves` a step accumulates two batches that hold as many windows together.
        """
        parts = 2 if halves else 1
        config = self.config(WORKLOAD.batch // parts)
        calibrated = config.model_copy(
            update={"quantization": config.quantization.model_copy(update={"calibration_batches": parts})}
        )
        step, drawn = self.step(kind, mode, calibrated), self._endless(config)
        losses, ends = [], []
        for _ in range(steps):
            made = step(list(islice(drawn, parts)), place="the benchmark")
            losses.append(made.settled().loss)
            quantizers = [module for module in step.model.modules() if isinstance(module, ActivationQuantizer)]
            ends.append([float(end.sum()) for one in quantizers for end in (one.minimum, one.maximum)])
        return {"losses": losses, "ranges": ends}

    def summed(self, count: int) -> dict[str, Any]:
        """Add up gradients some times and return how large they are and the seconds each time."""
        step = self.step("fp32", "off", self.config(WORKLOAD.batch))
        for parameter in step.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        size = sum(4 * parameter.numel() for parameter in step.model.parameters())
        return {"bytes": size, "seconds": list(_times(lambda: ranks.add_gradients(step.model.parameters()), count))}

    def met(self, count: int) -> dict[str, Any]:
        """Let ranks tell each other a number some times and return the seconds each time."""
        return {"seconds": list(_times(lambda: ranks.numbers_of_all(1.0), count))}

    def reads(self, kind: str) -> dict[str, Any]:
        """Return how often the host waits for a result of a step while that is made; it has the targets itself."""
        config = self.config(WORKLOAD.batch)
        step, drawn = self.step(kind, "full", config), self._endless(config)
        step([next(drawn)], place="warm-up")
        batch = next(drawn)
        with OperatorCount() as in_step:
            made = step([batch], place="the benchmark")
        with OperatorCount() as of_targets:  # which lie with the host
            float(batch.target.isnan().sum())
        made.settled()
        return {"count": sum(in_step.calls[one] - of_targets.calls[one] for one in READS)}

    def _endless(self, config: RunConfig) -> Iterator[Batch]:
        place = {"rank": ranks.rank(), "world": ranks.world()}
        for epoch, _ in enumerate(repeat(None)):
            yield from batches(self.data.training, config.training.batch_size, shuffle=True, epoch=epoch, **place)


def _seconds(step: TrainingStep, drawn: Iterator[Batch]) -> Iterator[float]:
    made = None
    while True:
        start = time.perf_counter()
        before, made = made, step([next(drawn)], place="a timed step")
        if before is not None:
            before.settled()
        yield time.perf_counter() - start


def _times(function: Any, count: int) -> Iterator[float]:
    for _ in range(count):
        start = time.perf_counter()
        function()
        yield time.perf_counter() - start


def main() -> None:
    """Answer until standard input ends, in a process that keeps its memory as `qat-tft train` does."""
    restart_without_block_cache()
    merge_freed_blocks()
    ranks.join("cpu")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    one = Rank(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        answer = partial(getattr(one, request.pop("ask")), **request)()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
