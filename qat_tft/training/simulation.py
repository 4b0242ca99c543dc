"""Simulates a training step of a configured model: what the planner asks, answered without data and without computing.

Legend: B batch, T history, F horizon; Vs, Vh, Vf columns of the static, historical and future group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from qat_tft.checkpointing.budget import parse_memory
from qat_tft.checkpointing.planner import Workload, pick_mode
from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import SegmentRunner
from qat_tft.checkpointing.simulate import Footprint, simulate_step
from qat_tft.config import ModelConfig, RunConfig
from qat_tft.model.loss import quantile_loss
from qat_tft.quantization.ranges import Phase
from qat_tft.schema import GroupSize
from qat_tft.training.build import build_qat_model, model_of_sizes


@dataclass(frozen=True)
class StepSimulator:
    """Returns the footprint of a training step for any mode and batch size.

    Attributes:
        shape: the model's configuration.
        groups: widths of the static, historical and future group.
        target: profile of the quantization-aware model.
        precision: number format of the forward pass; fp16 counts as bf16, which is as wide.
    """

    shape: ModelConfig
    groups: tuple[GroupSize, GroupSize, GroupSize]
    target: str = "x86"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

    def __call__(self, kind: str, mode: str, batch: int, *, chunk: int | None = None, backwards: int = 1) -> Footprint:
        """Return the footprint of one step.

        Args:
            kind: "fp32" or "qat".
            mode: the checkpointing mode.
            batch: windows of each forward pass.
            chunk: variables that a selection computes at once; by default as configured.
            backwards: forward and backward passes of a step (gradient accumulation).
        """
        shape = self.shape if chunk is None else self.shape.model_copy(update={"selection_chunk": chunk})

        def build() -> nn.Module:
            model = model_of_sizes(shape, self.groups)
            if kind == "fp32":
                return model.train()
            quantized = build_qat_model(model, self.target)
            quantized.set_phase(Phase.QAT)
            return quantized.train()

        def loss(model: nn.Module, run_segment: SegmentRunner) -> tuple[Tensor, object]:
            return self._loss(model, run_segment, batch)

        return simulate_step(build, loss, runner_for(mode), backwards=backwards)

    def _loss(self, model: nn.Module, run_segment: SegmentRunner, batch: int) -> tuple[Tensor, object]:
        """Return the loss and what the training loop holds with it: raw windows, scaled ones and the forecast."""
        leading = ((batch,), (batch, self.shape.history), (batch, self.shape.horizon))
        raw = [torch.zeros(*shape, size.total) for shape, size in zip(leading, self.groups, strict=True)]
        inputs = [tensor + 1 for tensor in raw]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision != "fp32"):
            forecast = model(*inputs, run_segment=run_segment)
        target = torch.zeros(batch, self.shape.horizon)
        return quantile_loss(forecast.quantiles.float(), target, self.shape.quantiles), (raw, inputs, forecast, target)


def workload_of(config: RunConfig, groups: tuple[GroupSize, GroupSize, GroupSize]) -> Workload:
    """Return what the planner has to know of a run: its phases, batch, chunk and accumulation."""
    training, quantization = config.training, config.quantization
    return Workload(
        StepSimulator(config.model, groups, quantization.target, training.precision),
        ("fp32", "qat") if quantization.use_qat else ("fp32",),
        training.batch_size,
        config.model.selection_chunk,
        training.accumulation,
    )


def decide_mode(config: RunConfig, groups: tuple[GroupSize, GroupSize, GroupSize]) -> tuple[RunConfig, str]:
    """Return the configuration with a mode in place of `auto`, and the sentence that says why.

    Raises:
        ConfigError: no mode fits the memory budget; the message says what would.
    """
    assert config.training.memory_budget is not None
    budget = parse_memory(config.training.memory_budget, where="training.memory_budget")
    choice = pick_mode(workload_of(config, groups), budget)
    return config.with_checkpoint_mode(choice.mode.value), choice.sentence()
