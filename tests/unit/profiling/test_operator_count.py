"""Operators of a training step: what counts as one, and that their number does not follow the number of columns."""

from __future__ import annotations

import pytest
import torch

from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.model.forms import variables_together
from qat_tft.profiling.operator_count import count_operators, operators_of_step
from qat_tft.profiling.synthetic_step import SyntheticStep
from qat_tft.schema import GroupSize

GROUPS = GroupSize(5), GroupSize(220), GroupSize(10)  # those of tft225: 210 observed and 10 known columns are history
MOST = {"fp32": 1500, "qat": 4000}
"""Operators of a step. A few for each column would be more, whatever each of them computes."""


def step_in_chunks_of(device: str, selection: str, **shape: object) -> SyntheticStep:
    chunk = variables_together(selection, None, device)
    sizes = {"history": 4, "horizon": 2, "hidden": 8, "heads": 2, "knots": 5, **shape}
    model = ModelConfig(selection=selection, selection_chunk=chunk, **sizes)
    return SyntheticStep(model, GROUPS, QuantizationConfig(products="integer"))


def test_views_of_a_tensor_are_no_operators():
    x = torch.ones(3, 4)

    def function() -> None:
        y = x.view(4, 3).t()[1:].unsqueeze(0).expand(2, -1, -1)
        y.detach().add(1).mul_(2).split(1)
        (x @ x.t()).sum().item()

    assert count_operators(function) == {
        "aten.add.Tensor": 1,
        "aten.mul_.Tensor": 1,
        "aten.mm.default": 1,
        "aten.sum.default": 1,
        "aten._local_scalar_dense.default": 1,
    }


@pytest.mark.parametrize("selection", ["tabulated", "exact"])
@pytest.mark.parametrize("kind", ["fp32", "qat"])
def test_a_step_of_225_columns_calls_few_operators_in_the_chunks_of_a_gpu(kind, selection):
    calls, direct = (operators_of_step(step_in_chunks_of("cuda", selection), kind, mode, 2) for mode in ("full", "off"))
    assert calls.total() > direct.total(), "what is recomputed counts"
    assert calls["aten._fused_adamw_.default"] >= 1
    assert calls["aten._foreach_norm.Scalar"] == 1, "the gradients are clipped"
    assert calls.total() <= MOST[kind]


def test_how_much_a_step_computes_does_not_change_its_operators():
    small = operators_of_step(step_in_chunks_of("cuda", "tabulated"), "fp32", "full", windows=2)
    large = step_in_chunks_of("cuda", "tabulated", history=7, horizon=3, hidden=16, knots=9)
    assert operators_of_step(large, "fp32", "full", windows=3) == small
