"""AdamW as torch has it, with an average of the weights beside them."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from qat_tft.runs.optimizer import averaged_weights, make_optimizer

STEPS, DECAY = 40, 0.7
ROUNDING = 1e-6
"""Of single precision sums of numbers near one."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def gradients(steps: int, seed: int = 1) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield [torch.randn(parameter.shape, generator=generator) for parameter in network().parameters()]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> Iterator[None]:
    """Make one step each time it is asked for one."""
    for step in gradients(steps, seed):
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient
        optimizer.step()
        yield


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_it_moves_weights_as_torchs_adamw_does_to_the_bit():
    ours, plain = network(), network()
    kept = make_optimizer(ours, learning_rate=0.1, weight_decay=0.1)
    expected = torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=0.1, fused=True)
    for _ in zip(trained(ours, kept, STEPS), trained(plain, expected, STEPS), strict=True):
        assert all(map(torch.equal, ours.parameters(), plain.parameters()))
    for own, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        assert kept.state[own].keys() - expected.state[theirs].keys() == {"average"}
        for name, value in expected.state[theirs].items():
            assert torch.equal(kept.state[own][name], value)
            assert kept.state[own][name].dtype == value.dtype


def test_averages_are_those_of_all_steps_with_the_past_weighing_less_at_first():
    model = network()
    optimizer = make_optimizer(model, learning_rate=0.1, averaging=DECAY)
    expected = [value.double() for value in values(model)]
    for step, _ in enumerate(trained(model, optimizer, STEPS)):
        past = min(DECAY, (1 + step) / (10 + step))
        expected = [past * old + (1 - past) * new for old, new in zip(expected, values(model), strict=True)]
        before = values(model)
        with averaged_weights(optimizer):
            for found, wanted in zip(values(model), expected, strict=True):
                assert torch.allclose(found.double(), wanted, atol=ROUNDING)
        assert all(map(torch.equal, values(model), before))


def test_weights_come_back_after_an_error_too_and_stay_where_they_are():
    model = network()
    optimizer = make_optimizer(model, averaging=DECAY)
    list(trained(model, optimizer, 3))
    before, places = values(model), [parameter.data_ptr() for parameter in model.parameters()]

    def fail_on_averages() -> None:
        with averaged_weights(optimizer):
            assert not any(map(torch.equal, values(model), before))
            raise MemoryError

    with pytest.raises(MemoryError):
        fail_on_averages()
    assert all(map(torch.equal, values(model), before))
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_before_the_first_step_and_without_averaging_weights_are_their_own():
    for averaging, steps in ((DECAY, 0), (0.0, 3)):
        model = network()
        optimizer = make_optimizer(model, averaging=averaging)
        list(trained(model, optimizer, steps))
        before = values(model)
        with averaged_weights(optimizer):
            assert all(map(torch.equal, values(model), before))
        assert not any("average" in state for state in optimizer.state.values())


def test_an_optimizer_that_is_loaded_goes_on_averaging_to_the_bit():
    straight, stopped = network(), network()
    optimizer, first = (make_optimizer(model, averaging=DECAY) for model in (straight, stopped))
    list(trained(straight, optimizer, 3))
    list(trained(stopped, first, 3))
    second = make_optimizer(stopped, averaging=DECAY)
    second.load_state_dict(first.state_dict())
    for _ in zip(trained(straight, optimizer, 4, seed=2), trained(stopped, second, 4, seed=2), strict=True):
        with averaged_weights(optimizer), averaged_weights(second):
            assert all(map(torch.equal, values(straight), values(stopped)))


def test_a_parameter_without_a_gradient_has_no_average_until_it_gets_one():
    model = network()
    optimizer = make_optimizer(model, averaging=DECAY)
    first, *others = model.parameters()
    for parameter in others:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert first not in optimizer.state
    before = first.detach().clone()
    first.grad = torch.ones_like(first)
    optimizer.step()
    past = 2 / 11
    with averaged_weights(optimizer):
        found = first.detach().clone()
    assert torch.allclose(found, past * before + (1 - past) * first.detach(), atol=ROUNDING)
