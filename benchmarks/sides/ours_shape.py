"""A workload as qat-tft's configuration names it."""

from __future__ import annotations

from qat_tft.config.model import ModelConfig
from qat_tft.profiling.step_simulator import StepSimulator
from qat_tft.schema import GroupSize
from sides.workloads import FORM, Workload


def synthetic_step(workload: Workload) -> StepSimulator:
    """Return the workload's training step in the measured form."""
    shape = ModelConfig.model_validate(
        {
            "history": workload.history,
            "horizon": workload.horizon,
            "hidden": workload.hidden,
            "heads": workload.heads,
            "dropout": workload.dropout,
            "quantiles": workload.quantiles,
            **FORM,
        }
    )
    historical = GroupSize(workload.observed + workload.known)
    return StepSimulator(shape, (GroupSize(workload.static), historical, GroupSize(workload.known)))
