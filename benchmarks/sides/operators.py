"""How many operators a training step calls in the chunks that a GPU gets, counted on the CPU (`operators_on_a_gpu`)."""

from __future__ import annotations

from dataclasses import replace

import torch

from qat_tft.model.forms import SELECTION_FORMS, variables_together
from qat_tft.profiling.operator_count import operators_of_step
from sides.ours_shape import synthetic_step
from sides.workloads import WORKLOADS, Workload

KINDS = ("fp32", "qat")


def operators_on_a_gpu(
    workload: Workload = WORKLOADS["w1"], *, mode: str = "full", device: str = "cuda"
) -> dict[str, dict[str, int]]:
    """Return the operators of a training step, by phase ("fp32", "qat") and form of selection ("exact", "tabulated").

    Args:
        workload: columns and shape; by default those of tft225.
        mode: the checkpointing mode.
        device: whose chunks of variables are taken; "cpu" for what a step calls there.
    """
    return {kind: {form: _operators(workload, kind, form, mode, device) for form in SELECTION_FORMS} for kind in KINDS}


def _operators(workload: Workload, kind: str, form: str, mode: str, device: str) -> int:
    torch.manual_seed(0)
    step = synthetic_step(workload)
    chunk = variables_together(form, None, device)
    shape = step.shape.model_copy(update={"selection": form, "selection_chunk": chunk})
    return operators_of_step(replace(step, shape=shape), kind, mode, workload.batch).total()
