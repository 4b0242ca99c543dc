import pytest
import torch

from qat_tft.model.weighted_rows import sum_of_rows

ROUNDING = 1e-12  # double precision; at most 30 summands


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(9, 4, dtype=torch.double, generator=generator).requires_grad_()
    index = torch.randint(8, (30, 5), generator=generator, dtype=torch.int32)  # row 8 is never taken
    weights = torch.randn(30, 5, dtype=torch.double, generator=generator).requires_grad_()
    return table, index, weights


def gathered(table, index, weights):
    return (table[index.long()] * weights.unsqueeze(-1)).sum(1)


def test_it_is_the_sum_of_gathered_rows_times_their_weights(case):
    found = sum_of_rows(*case)
    assert torch.allclose(found, gathered(*case), rtol=0, atol=ROUNDING)
    with torch.no_grad():
        assert torch.equal(sum_of_rows(*case), found)


def test_its_gradients_are_those_of_the_gathered_sum(case):
    table, index, weights = case
    incoming = torch.randn(30, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(sum_of_rows(table, index, weights), (table, weights), incoming)
    theirs = torch.autograd.grad(gathered(table, index, weights), (table, weights), incoming)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=ROUNDING)
    assert not ours[0][8].any(), "a row that no sum takes has a gradient of zero"


@pytest.mark.parametrize("wanted", [0, 2], ids=["table alone", "weights alone"])
def test_a_gradient_that_is_not_wanted_is_not_needed_for_the_other(case, wanted):
    table, index, weights = case
    both = torch.autograd.grad(sum_of_rows(*case).square().sum(), (table, weights))
    alone = [table.detach(), index, weights.detach()]
    alone[wanted].requires_grad_()
    (found,) = torch.autograd.grad(sum_of_rows(*alone).square().sum(), alone[wanted])
    assert torch.equal(found, both[wanted // 2])
