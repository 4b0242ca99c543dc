"""AdamW as torch has it, with a rate of their own for folded parameters and an average of the weights."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.scheme import scheme_for
from qat_tft.runs.optimizer import averaged_weights, make_optimizer, set_learning_rate

STEPS, DECAY = 40, 0.7
ROUNDING = 1e-6
"""Of single precision sums of numbers near one."""
SAMPLED = 0.05
"""Of a mean of 200 sums of 64 random numbers."""


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
    kept = make_optimizer(ours, learning_rate=0.1, weight_decay=0.1, averaging=DECAY)
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


HIDDEN = 9


def multiple_of(name: str, selection: str) -> float:
    """What the learning rate of a parameter is multiplied by, from its name alone."""
    layer = name.removeprefix("model.").rpartition(".")[0].partition("_selection.")[2]
    if layer in ("real_first", "weighing.real"):
        return 4.5
    return 3.0 if layer == "gate" and selection == "tabulated" else 1.0


@pytest.mark.parametrize("selection", ["tabulated", "exact"])
@pytest.mark.parametrize("kind", ["fp32", "qat", "qat with learned ranges"])
def test_products_have_their_multiple_of_the_rate_and_all_others_the_rate(make_model, make_qat_model, selection, kind):
    options = {"hidden": HIDDEN, "heads": 3, "selection": selection}
    model = make_model(**options) if kind == "fp32" else make_qat_model(learned_ranges=kind != "qat", **options)
    optimizer = make_optimizer(model, weight_decay=0.1)
    set_learning_rate(optimizer, 0.01)
    found = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    assert len(found) == sum(len(group["params"]) for group in optimizer.param_groups)
    assert found.keys() == set(model.parameters())
    multiples = {name: multiple_of(name, selection) for name, _ in model.named_parameters()}
    counts = [list(multiples.values()).count(multiple) for multiple in (4.5, 3.0)]
    assert counts == [3 * 2 * 2, 3 * 2 * (selection == "tabulated")], "weight and bias in three selection networks"
    for name, parameter in model.named_parameters():
        assert found[parameter]["lr"] == pytest.approx(0.01 * multiples[name]), name
        decay = 0.0 if name.endswith("log_scale") else 0.1
        assert found[parameter]["lr"] * found[parameter]["weight_decay"] == pytest.approx(0.01 * decay), name


def test_products_are_known_where_all_products_stay_in_floating_point(make_model):
    model = QATTemporalFusionTransformer(make_model(hidden=HIDDEN, heads=3), scheme_for("x86"), products="float")
    assert [len(group["params"]) for group in make_optimizer(model).param_groups[1:]] == [12, 6]


def test_hardly_any_hidden_units_slow_nothing_down(make_model):
    rates = [group["lr"] for group in make_optimizer(make_model(hidden=1, heads=1), learning_rate=0.01).param_groups]
    assert rates == [0.01]


@pytest.mark.parametrize(
    ("kind", "multiple"),
    [pytest.param("folded", 32, id="a map of an embedding"), pytest.param("merged", 8, id="a map of a map")],
)
def test_a_step_moves_factors_so_that_their_product_moves_a_multiple_as_far(kind, multiple):
    """A map W [1, 64] of an embedding w [64] moves with W alone: w belongs to many maps, which do not agree on it."""
    torch.manual_seed(0)
    one, other = (nn.Parameter(bound * (2 * torch.rand(200, 64) - 1)) for bound in (1.0, 64**-0.5))
    if kind == "merged":
        one = nn.Parameter(one.detach() * 64**-0.5)
    product = nn.Parameter((one * other).sum(1).detach())
    by_factors = moved([other] if kind == "folded" else [one, other], lambda: (one * other).sum(1))
    assert by_factors / moved([product], lambda: product) == pytest.approx(multiple, rel=SAMPLED)


def moved(parameters: list[nn.Parameter], products: Callable[[], Tensor]) -> float:
    """How far one step of AdamW moves products on average, when all shall become smaller."""
    before = products().detach().clone()
    products().sum().backward()
    torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0).step()
    return float((products().detach() - before).abs().mean())
