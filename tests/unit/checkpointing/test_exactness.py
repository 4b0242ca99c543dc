"""Checkpointing changes nothing: results are bitwise identical with it on or off, and the checks of that can fail."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.utils.checkpoint import checkpoint

from qat_tft.checkpointing.recompute import CheckpointRunner, runner_for
from qat_tft.checkpointing.segments import SEGMENTS, TABLE_SEGMENTS, run_directly, segments_of
from qat_tft.quantization.ranges import ActivationQuantizer, Phase
from qat_tft.quantization.scheme import scheme_for

MODES = [pytest.param(segments_of(mode), id=mode) for mode in ("aggressive", "full")]
CHOICES = [
    *MODES,
    pytest.param(frozenset({"lstm_encoder", "future_selection"}), id="two segments"),
    pytest.param(frozenset({*SEGMENTS, *TABLE_SEGMENTS}), id="tables too"),
]
KINDS = ["fp32", "qat", "qat exact"]


@pytest.fixture
def build(request, make_model, make_qat_model):
    """Build the same model of the requested kind each time it is called; dropout is on."""
    kind, _, exact = request.param.partition(" ")
    make = {"fp32": make_model, "qat": make_qat_model}[kind]
    return lambda: make(dropout=0.2, selection=exact or "tabulated")


@pytest.mark.parametrize("build", KINDS, indirect=True)
@pytest.mark.parametrize("segments", CHOICES)
@pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "no early stop"])
def test_ten_steps_with_dropout_and_changing_batches_are_equal_to_the_bit(
    build, segments, early_stop, train, differing
):
    plain = train(build(), run_directly)
    recomputed = train(build(), CheckpointRunner(segments, early_stop=early_stop))
    assert differing(plain, recomputed) == []


@pytest.mark.parametrize("build", KINDS, indirect=True)
@pytest.mark.parametrize("forwards", [2, 3])
def test_several_forwards_before_one_backward_are_equal_to_the_bit(build, forwards, train, differing):
    plain = train(build(), run_directly, steps=4, forwards=forwards)
    recomputed = train(build(), runner_for("full"), steps=4, forwards=forwards)
    assert differing(plain, recomputed) == []


@pytest.mark.parametrize("build", KINDS, indirect=True)
def test_every_parameter_gets_a_gradient_that_is_not_zero(build, train):
    last = train(build(), runner_for("full"), steps=3)
    gradients = {name: value for name, value in last.items() if name.startswith("gradient 2")}
    assert gradients
    assert [name for name, gradient in gradients.items() if not gradient.any()] == []


def test_gradients_under_checkpointing_are_those_of_finite_differences(make_model, sizes):
    """No path is cut: the loss changes along any direction of the weights as the gradient says."""
    generator, step = torch.Generator().manual_seed(3), 1e-5
    model = make_model().double()
    inputs = [tensor.double() for tensor in sizes.inputs(4, generator)]

    def loss() -> Tensor:
        return model(*inputs, runner_for("full")).quantiles.square().sum()

    loss().backward()
    for parameter in model.parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.double)
        with torch.no_grad():
            parameter.add_(step * direction)
            above = loss()
            parameter.sub_(2 * step * direction)
            below = loss()
            parameter.add_(step * direction)
        expected = (above - below) / (2 * step)
        assert torch.allclose((parameter.grad * direction).sum(), expected, rtol=1e-5, atol=1e-8)


def test_forward_with_checkpointing_equals_forward(build_any, sizes):
    inputs = sizes.inputs(4, torch.Generator().manual_seed(3))
    gradients = []
    for use_checkpointing in (False, True):
        model = build_any()
        model.forward_with_checkpointing(*inputs, use_checkpointing).quantiles.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.fixture(params=["fp32", "qat"])
def build_any(request, make_model, make_qat_model):
    return {"fp32": make_model, "qat": make_qat_model}[request.param]


def test_two_backwards_over_one_graph_are_equal_to_the_bit(build_any, sizes):
    inputs = sizes.inputs(4, torch.Generator().manual_seed(3))
    gradients = []
    for runner in (run_directly, runner_for("full")):
        model = build_any()
        loss = model(*inputs, runner).quantiles.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_each_segment_runs_twice_when_it_is_recomputed_and_once_when_not(make_model, sizes):
    runs: dict[str, int] = dict.fromkeys((*SEGMENTS, *TABLE_SEGMENTS), 0)
    recomputing = CheckpointRunner(segments_of("aggressive"))

    def counting(name, function, /, *tensors):
        def counted(*inputs):
            runs[name] += 1
            return function(*inputs)

        return recomputing(name, counted, *tensors)

    model = make_model()
    model(*sizes.inputs(4, torch.Generator().manual_seed(3)), counting).quantiles.sum().backward()
    # A selection runs once for its weights and once per chunk of at most 3 variables, reals and categories apart; each
    # chunk has a table, which this mode does not recompute either.
    selections = {"static_selection": 1 + 1 + 1, "historical_selection": 1 + 2 + 1, "future_selection": 1 + 1 + 1}
    tables = {f"{name.partition('_')[0]}_tables": calls - 1 for name, calls in selections.items()}
    assert runs == {**dict.fromkeys(SEGMENTS, 2), **selections, **tables}


# The checks above must catch what this project exists to prevent. Each variant below is wrong on purpose.


def detaching(name, function, /, *tensors):
    """A runner that "checkpoints" by detaching the inputs of each segment."""
    inputs = [None if tensor is None else tensor.detach() for tensor in tensors]
    return checkpoint(function, *inputs, use_reentrant=False)


def plainly_checkpointed(name, function, /, *tensors):
    """torch's checkpointing without a tape."""
    return checkpoint(function, *tensors, use_reentrant=False)


@pytest.mark.parametrize("build", KINDS, indirect=True)
def test_detached_segment_inputs_are_caught_by_gradients_and_by_comparison(build, train, differing):
    plain, detached = train(build(), run_directly, steps=3), train(build(), detaching, steps=3)
    assert any(name.startswith("gradient 0") for name in differing(plain, detached))
    without = [name for name, value in detached.items() if name.startswith("gradient 2") and not value.any()]
    assert any("historical_selection" in name for name in without)


def test_our_quantizers_under_checkpointing_without_a_tape_are_caught(make_qat_model, train, differing):
    plain = train(make_qat_model(), run_directly, steps=3)
    untaped = train(make_qat_model(), plainly_checkpointed, steps=3)
    assert any(name.startswith("buffer") for name in differing(plain, untaped))


class Repeating(nn.Module):
    """One quantizer called three times by one segment, as in a loop over time steps."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.quantizer = quantizer

    def forward(self, x: Tensor, run_segment) -> Tensor:
        return run_segment("loop", self.loop, x)

    def loop(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.linear(self.quantizer(2 * x)))
        return x


class Repeated:
    """Trains a `Repeating` model; the trajectory has the form of the TFT's."""

    @staticmethod
    def train(quantizer: nn.Module, run_segment, steps: int = 4) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model, kept = Repeating(quantizer), {}
        for step in range(steps):
            model.zero_grad()
            loss = model((step + 1.0) * torch.randn(6, 4), run_segment).square().sum()
            loss.backward()
            kept[f"loss {step}"] = loss.detach()
            kept |= {f"gradient {step} {name}": p.grad.clone() for name, p in model.named_parameters()}
        return kept | {f"buffer {name}": value.clone() for name, value in model.named_buffers()}


def ours() -> ActivationQuantizer:
    quantizer = ActivationQuantizer(scheme_for("x86").activations)
    quantizer.phase = Phase.QAT
    return quantizer


def stock() -> nn.Module:
    return FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8)


def test_a_quantizer_called_in_a_loop_is_equal_to_the_bit(differing):
    plain = Repeated.train(ours(), run_directly)
    for early_stop in (True, False):
        recomputed = Repeated.train(ours(), CheckpointRunner(frozenset({"loop"}), early_stop=early_stop))
        assert differing(plain, recomputed) == []


def test_observers_turned_off_without_replayed_scales_are_caught(differing):
    quantizer = ours()

    class ObserversOff(AbstractContextManager):
        def __enter__(self):
            quantizer.phase = Phase.FROZEN

        def __exit__(self, *error):
            quantizer.phase = Phase.QAT

    def silenced(name, function, /, *tensors):
        contexts = lambda: (nullcontext(), ObserversOff())  # noqa: E731
        return checkpoint(function, *tensors, use_reentrant=False, context_fn=contexts)

    differences = differing(Repeated.train(ours(), run_directly), Repeated.train(quantizer, silenced))
    assert not any(name.startswith("buffer") for name in differences), "the statistics are right"
    assert any(name.startswith("gradient") for name in differences), "and the gradients are not"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stock_fake_quantizers_under_plain_checkpointing_are_caught(differing):
    differences = differing(Repeated.train(stock(), run_directly), Repeated.train(stock(), plainly_checkpointed))
    assert any(name.startswith("buffer") for name in differences)
    assert any(name.startswith("gradient") for name in differences)


def test_nested_segments_and_shared_modules_are_equal_to_the_bit(differing):
    inner = CheckpointRunner(frozenset({"inner", "outer"}))

    class Nested(Repeating):
        def loop(self, x: Tensor) -> Tensor:
            once = self.run("inner", super().loop, x)
            return once + self.run("inner", super().loop, once)  # the same modules, in two segments

    def train(runner) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model, kept = Nested(ours()), {}
        model.run = runner
        for step in range(3):
            model.zero_grad()
            loss = runner("outer", model.loop, torch.randn(6, 4)).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            kept[f"loss {step}"] = loss.detach()
            kept |= {f"gradient {step} {name}": p.grad.clone() for name, p in model.named_parameters()}
        return kept | {f"buffer {name}": value.clone() for name, value in model.named_buffers()}

    assert differing(train(run_directly), train(inner)) == []
