"""Evaluation looks at evenly spaced windows and leaves the model as it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.evaluation.window_forecasts import Forecasts, evaluating, even_indices


@given(count=st.integers(1, 500), limit=st.integers(1, 100))
def test_even_indices_are_ascending_in_range_and_span_everything(count, limit):
    found = even_indices(count, limit)
    assert len(found) == min(count, limit)
    assert bool((found.diff() > 0).all())
    assert int(found[0]) == 0
    assert int(found[-1]) == (count - 1 if len(found) > 1 or count == 1 else 0)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back_also_after_an_error(training):
    model = torch.nn.Dropout().train(training)
    inside = []

    def fail() -> None:
        with evaluating(model):
            inside.extend([model.training, torch.is_grad_enabled()])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [False, False]
    assert model.training is training
    assert torch.is_grad_enabled()


def test_q_risk_is_twice_the_pinball_loss_over_the_sum_of_targets():
    found = Forecasts(torch.tensor([[[3.0]], [[5.0]]]), torch.tensor([[4.0], [4.0]])).q_risk((0.5,))
    assert found[0.5] == pytest.approx(2 * (0.5 + 0.5) / 8)
