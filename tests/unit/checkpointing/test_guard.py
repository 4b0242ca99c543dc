"""A module whose state a recompute would change is found before training and named; our own models pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver, MovingAverageMinMaxObserver

from qat_tft.checkpointing.guard import require_replayable
from qat_tft.checkpointing.segments import SEGMENTS, SegmentRunner
from qat_tft.errors import HiddenStateError, TapeMismatchError, UserError
from qat_tft.quantization.ranges import ActivationQuantizer, Phase
from qat_tft.quantization.scheme import scheme_for

BLOCK = frozenset({"block"})


class Model(nn.Module):
    """A head after one segment, which holds the module under test."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), module)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor, run_segment: SegmentRunner) -> Tensor:
        return self.head(run_segment("block", self.block, x))


class Written(nn.Module):
    """Keeps something in forward, in the way that `write` says."""

    def __init__(self, write: Callable[[Written, Tensor], object], **held: object) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("counter", torch.zeros(()))
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x.detach())
        return x


def replace_buffer(module: Written, x: Tensor) -> None:
    module.counter = module.counter + 1


def count(module: Written, x: Tensor) -> None:
    module.calls += 1


def stock(observer: type) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return FakeQuantize(observer=observer, quant_min=0, quant_max=255, dtype=torch.quint8)


def ours() -> ActivationQuantizer:
    quantizer = ActivationQuantizer(scheme_for("x86").activations)
    quantizer.phase = Phase.QAT
    return quantizer


def check(module: nn.Module, segments: frozenset[str] = BLOCK) -> Model:
    torch.manual_seed(0)
    model, x = Model(module), torch.randn(6, 4)
    require_replayable(model, segments, partial(model, x))
    return model


HIDDEN = [
    pytest.param(partial(stock, MovingAverageMinMaxObserver), "min_val", id="torch.ao-moving-average"),
    pytest.param(partial(stock, MinMaxObserver), "min_val", id="torch.ao-that-would-write-the-same"),
    pytest.param(partial(nn.BatchNorm1d, 4), "running_mean", id="BatchNorm1d"),
    pytest.param(lambda: Written(lambda m, x: m.counter.add_(1)), "counter", id="counter-buffer"),
    pytest.param(lambda: Written(lambda m, x: m.counter.data.add_(1)), "counter", id="counter-without-version"),
    pytest.param(lambda: Written(replace_buffer), "counter", id="buffer-replaced"),
    pytest.param(lambda: Written(count, calls=0), "calls", id="python-number"),
    pytest.param(lambda: Written(lambda m, x: m.seen.append(x.mean()), seen=[]), "seen", id="python-list"),
    pytest.param(lambda: Written(lambda m, x: m.seen.update(last=x), seen={}), "seen", id="python-dict"),
    pytest.param(lambda: Written(lambda m, x: setattr(m, "last", x)), "last", id="tensor-kept"),
]


@pytest.mark.parametrize(("make", "attribute"), HIDDEN)
def test_state_that_a_recompute_would_write_is_named_with_its_segment_and_a_remedy(make, attribute):
    with pytest.raises(HiddenStateError, match=rf"block\.1\S*\.{attribute} \(segment block\)") as refused:
        check(make())
    assert "ActivationQuantizer" in str(refused.value)
    assert isinstance(refused.value, UserError)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(("make", "attribute"), HIDDEN)
def test_state_outside_every_checkpointed_segment_is_no_harm(make, attribute):
    check(make(), frozenset({"another"}))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(ours, id="our-quantizer"),
        pytest.param(partial(nn.Dropout, 0.5), id="dropout"),
        pytest.param(partial(nn.LayerNorm, 4), id="LayerNorm"),
        pytest.param(lambda: nn.BatchNorm1d(4).eval(), id="BatchNorm-in-eval"),
        pytest.param(lambda: Written(lambda m, x: setattr(m, "rows", x.shape)), id="writes-an-equal-plain-value"),
    ],
)
def test_modules_that_a_recompute_leaves_alone_pass(make):
    module = make()
    held = {name: value.clone() for name, value in module.named_buffers()}
    random = torch.get_rng_state()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model, x = Model(module), torch.ones(6, 4)
    torch.set_rng_state(before)
    require_replayable(model, BLOCK, partial(model, x))
    assert torch.equal(torch.get_rng_state(), before), "the random state is as before"
    assert all(torch.equal(value, held[name]) for name, value in module.named_buffers())
    torch.set_rng_state(random)


@pytest.mark.parametrize(("make", "attribute"), HIDDEN)
def test_a_refused_module_is_left_as_it_was(make, attribute):
    module = make()
    plain = {name: value for name, value in vars(module).items() if isinstance(value, int | list | dict)}
    contents = {name: value.copy() for name, value in plain.items() if isinstance(value, list | dict)}
    held = {name: (value, value.clone()) for name, value in module.named_buffers()}
    with pytest.raises(HiddenStateError):
        check(module)
    for name, value in module.named_buffers():
        assert value is held[name][0], name
        assert torch.equal(value, held[name][1]), name
    assert vars(module).get("calls", 0) == 0
    assert "last" not in vars(module)
    assert {name: vars(module)[name] for name in contents} == contents


def test_a_function_that_depends_on_something_else_is_refused():
    draws = iter(range(100))
    with pytest.raises(HiddenStateError, match=r"^block: a segment gives a different result"):
        check(Added(lambda: next(draws)))


class Added(nn.Module):
    def __init__(self, draw: Callable[[], int]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x + self.draw()


def test_a_quantizer_that_is_called_in_another_way_the_second_time_is_refused():
    times = iter((1, 2))

    class Unsteady(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantizer = ours()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(next(times)):
                x = self.quantizer(x)
            return x

    with pytest.raises(TapeMismatchError, match="more than the 1 recorded calls"):
        check(Unsteady())


@pytest.mark.parametrize("kind", ["fp32", "qat"])
def test_the_tft_passes_and_keeps_its_ranges(kind, make_model, make_qat_model, sizes):
    model = {"fp32": make_model, "qat": make_qat_model}[kind](dropout=0.2).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = sizes.inputs(4, torch.Generator().manual_seed(3))
    require_replayable(model, frozenset(SEGMENTS), partial(model, *inputs))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("segment", ["historical_encoder", "temporal_attention"])
def test_a_foreign_module_inside_the_tft_is_found_in_its_segment(segment, make_model, sizes):
    model, foreign = make_model().train(), Written(lambda m, x: m.counter.add_(1))
    getattr(model, segment).register_module("foreign", foreign)
    getattr(model, segment).register_forward_pre_hook(lambda module, inputs: (foreign(inputs[0]), *inputs[1:]))
    inputs = sizes.inputs(1, torch.Generator().manual_seed(3))
    with pytest.raises(HiddenStateError, match=rf"{segment}\.foreign\.counter \(segment {segment}\)"):
        require_replayable(model, frozenset(SEGMENTS), partial(model, *inputs))
