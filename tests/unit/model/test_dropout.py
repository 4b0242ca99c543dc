"""Dropout drops as often as asked, scales what it keeps, and gives gradients of the same mask."""

from __future__ import annotations

import pytest
import torch

from qat_tft.model.dropout import Dropout

COUNT = 200_001  # not a multiple of four: the last draw is cut


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p_and_the_mean_is_kept(p):
    torch.manual_seed(0)
    dropped = Dropout(p)(torch.ones(COUNT))
    five_deviations = 5 * (p * (1 - p) / COUNT) ** 0.5
    assert (dropped == 0).double().mean().item() == pytest.approx(p, abs=five_deviations)
    assert torch.allclose(dropped[dropped != 0], torch.tensor(1 / (1 - p)))


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(COUNT)) != 0).double()
    for distance in range(1, 9):  # four neighbours share one draw
        together = (kept[distance:] * kept[:-distance]).mean().item()
        assert together == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / COUNT) ** 0.5)


def test_the_gradient_has_the_mask_and_scale_of_the_forward_pass():
    torch.manual_seed(0)
    x = torch.full((7, 11), 3.0, requires_grad=True)
    dropped = Dropout(0.4)(x)
    dropped.sum().backward()
    assert torch.allclose(x.grad, dropped.detach() / 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradient_are_those_of_a_product_with_the_mask(dtype):
    x = torch.randn(5, 9, dtype=dtype, requires_grad=True)
    dropped = Dropout(0.25)(x)
    mask = (dropped.detach() != 0).to(dtype)
    assert torch.equal(dropped, x * mask * (1 / (1 - 0.25)))
    gradient = torch.randn_like(dropped)
    assert torch.equal(*torch.autograd.grad(dropped, x, gradient), gradient * mask * (1 / (1 - 0.25)))


def test_one_byte_an_element_is_kept_for_the_backward_pass():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        Dropout(0.4)(torch.ones(7, 11, requires_grad=True))
    assert [(tensor.numel(), tensor.element_size()) for tensor in kept] == [(77, 1)]


def test_the_same_random_state_gives_the_same_mask_and_the_next_call_another():
    dropout, x = Dropout(0.5), torch.ones(100)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("training", [True, False])
def test_without_dropout_or_training_x_passes_as_it_is(training):
    x = torch.randn(5)
    assert Dropout(0.0).train(training)(x) is x
    assert Dropout(0.5).eval()(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_a_probability_that_is_none_is_refused(p):
    with pytest.raises(ValueError, match="must be at least 0 and below 1"):
        Dropout(p)
