"""Simulates a training step of a configured model: what the planner asks, answered without data or computing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qat_tft.checkpointing.budget import parse_memory
from qat_tft.checkpointing.recompute import runner_for
from qat_tft.config.run import RunConfig
from qat_tft.profiling.footprint import Footprint, simulate_step
from qat_tft.profiling.mode_search import Workload, pick_mode
from qat_tft.profiling.synthetic_step import Groups, SyntheticStep


@dataclass(frozen=True)
class StepSimulator(SyntheticStep):
    """Returns the footprint of a training step for any mode and batch size.

    Attributes:
        averaging: as for the optimizer, which keeps an average of the weights unless it is 0.
    """

    averaging: float = 0.0

    def __call__(
        self, kind: str, mode: str | frozenset[str], batch: int, *, chunk: int | None = None, backwards: int = 1
    ) -> Footprint:
        """Return the footprint of one step.

        Args:
            kind: "fp32" or "qat".
            mode: the checkpointing mode, or names of segments.
            batch: windows of each forward pass.
            chunk: variables that a selection computes at once; by default as configured.
            backwards: forward and backward passes of a step (gradient accumulation).
        """
        shape = self.shape if chunk is None else self.shape.model_copy(update={"selection_chunk": chunk})
        step = replace(self, shape=shape)
        return simulate_step(
            lambda: step.build(kind),
            lambda model, run_segment: step.loss(model, run_segment, batch),
            runner_for(mode),
            backwards=backwards,
            averaging=self.averaging,
        )


def workload_of(config: RunConfig, groups: Groups) -> Workload:
    """Return what the planner has to know of a run: its phases, batch, chunk and accumulation."""
    training, quantization = config.training, config.quantization
    return Workload(
        StepSimulator(config.model, groups, quantization, training.precision, training.averaging),
        ("fp32", "qat") if quantization.use_qat else ("fp32",),
        training.batch_size,
        config.model.variables_together,
        training.accumulation,
    )


def decide_mode(config: RunConfig, groups: Groups) -> tuple[RunConfig, str]:
    """Return the configuration with a mode in place of `auto`, and the sentence that says why.

    Raises:
        ConfigError: no mode fits the memory budget; the message says what would.
    """
    assert config.training.memory_budget is not None
    budget = parse_memory(config.training.memory_budget, where="training.memory_budget")
    choice = pick_mode(workload_of(config, groups), budget)
    return config.with_checkpoint_mode(choice.mode.value), choice.sentence()
