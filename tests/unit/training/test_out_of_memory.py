"""A step that runs out of memory is rolled back exactly and retried with less memory, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from qat_tft.checkpointing.segments import SEGMENTS, run_directly, segments_of
from qat_tft.data.loading.loader import batches
from qat_tft.device import is_out_of_memory
from qat_tft.errors import HiddenStateError, OutOfMemoryError, SpentProcessError, TornUpdateError
from qat_tft.model.loss import loss_of
from qat_tft.quantization.calibrate import calibrate
from qat_tft.runs.build import accelerator_for, build_model, build_qat_model
from qat_tft.runs.optimizer import make_optimizer
from qat_tft.training.steps.out_of_memory import FallbackEvent, FallbackLevel, OutOfMemoryFallback
from qat_tft.training.steps.step import TrainingStep, micro_batches

OFF, AGGRESSIVE, FULL = (segments_of(mode) for mode in ("off", "aggressive", "full"))
BATCH, STEPS = 6, 5
ROUNDING = 1e-6
"""Two single precision sums of the same gradients in another order; gradients here are below one."""

CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to..."
SHORTAGES = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError(CPU_ALLOCATOR),
    "python": MemoryError(),
}


@dataclass
class Shortage:
    """Raises `failure` in the first `times` forward passes, when all segments have run, or in the given place."""

    times: int
    failure: BaseException = field(default_factory=lambda: torch.OutOfMemoryError("CUDA out of memory."))
    left: int = 0

    def arm(self) -> None:
        self.left = self.times

    def __call__(self, *_: object) -> None:
        if self.left:
            self.left -= 1
            raise self.failure


def in_forward(step: TrainingStep, shortage: Shortage) -> None:
    head = next(module for name, module in step.model.named_modules() if name.endswith("head"))
    head.register_forward_pre_hook(shortage)


def in_backward(step: TrainingStep, shortage: Shortage) -> None:
    next(step.model.parameters()).register_hook(shortage)  # the first parameter's gradient comes last


def in_clipping(step: TrainingStep, shortage: Shortage) -> None:
    clip = step.accelerator.clip_grad_norm_

    def clipped(*arguments: object) -> object:
        norm = clip(*arguments)
        shortage()
        return norm

    step.accelerator.clip_grad_norm_ = clipped


def in_the_optimizers_first_allocations(step: TrainingStep, shortage: Shortage) -> None:
    def half_made(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if shortage.left and all(state["step"] == 0 for state in optimizer.state.values()):
            for parameter in list(optimizer.state)[3:]:
                del optimizer.state[parameter]
        shortage()

    step.optimizer.optimizer.register_step_pre_hook(half_made)


PLACES = [in_forward, in_backward, in_clipping, in_the_optimizers_first_allocations]


@pytest.fixture(params=["fp32", "qat"])
def make_step(request, config, data) -> Callable[..., TrainingStep]:
    """Build the same step of one kind each time it is called."""

    def build(*, dropout: float = 0.2, kind: str = request.param) -> TrainingStep:
        torch.manual_seed(0)
        shape = config.model.model_copy(update={"dropout": dropout})
        model: nn.Module = build_model(shape, data.preprocessing, data.schema)
        scaling = data.preprocessing.scaling()
        if kind == "qat":
            model = build_qat_model(model, "x86")
            first = next(iter(batches(data.training, BATCH)))
            calibrate(model, [scaling.scale_inputs(first.static, first.historical, first.future, first.series)])
            model.set_phase("qat")
        accelerator = accelerator_for(config.training)
        optimizer = make_optimizer(model, learning_rate=1e-2, averaging=0.9)
        return TrainingStep(
            accelerator=accelerator,
            model=model,
            scaling=scaling,
            schema=data.schema,
            optimizer=accelerator.prepare_optimizer(optimizer),
            run_segment=run_directly,
            loss=loss_of(config.model.quantiles),
            gradient_clip=0.5,
        )

    return build


@dataclass
class Run:
    """Makes some steps on a fallback and keeps every bit of what they leave."""

    step: TrainingStep
    level: FallbackLevel
    data: object
    events: list[FallbackEvent] = field(default_factory=list)

    def make(self, *, shortage: Shortage | None = None, at: int = 0, steps: int = STEPS) -> dict[str, Tensor]:
        fallback = OutOfMemoryFallback(self.step, self.level, self.events.append)
        torch.manual_seed(1)
        for index, batch in zip(range(steps), batches(self.data.training, BATCH), strict=False):
            if shortage is not None and index == at:
                shortage.arm()
            outcome = fallback([batch], place=f"step {index}").settled()
        self.level = fallback.level
        return {**self.kept(), "loss": torch.tensor(outcome.loss)}

    def kept(self) -> dict[str, Tensor]:
        states = self.step.optimizer.state_dict()["state"]
        memory = {f"{index} {key}": value for index, state in states.items() for key, value in state.items()}
        tensors = {**self.step.model.state_dict(), **memory, "random": torch.get_rng_state()}
        return {name: tensor.clone() for name, tensor in tensors.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("failure", SHORTAGES.values(), ids=SHORTAGES)
@pytest.mark.parametrize(
    ("at", "place", "times", "reached"),
    [
        pytest.param(0, in_the_optimizers_first_allocations, 1, AGGRESSIVE, id="one-level-in-the-first-update"),
        pytest.param(0, in_forward, 2, FULL, id="two-levels-in-the-first-forward"),
        pytest.param(2, in_backward, 2, FULL, id="two-levels-in-a-later-backward"),
        pytest.param(2, in_clipping, 1, AGGRESSIVE, id="one-level-in-a-later-clipping"),
    ],
)
def test_a_step_made_again_in_another_mode_gives_the_bits_of_that_mode_from_the_start(
    make_step, data, failure, at, place, times, reached
):
    expected = Run(make_step(), FallbackLevel(reached, BATCH), data).make()
    run, shortage = Run(make_step(), FallbackLevel(OFF, BATCH), data), Shortage(times, failure)
    place(run.step, shortage)
    assert same(run.make(shortage=shortage, at=at), expected)
    assert run.level == FallbackLevel(reached, BATCH)
    assert [event.place for event in run.events] == [f"step {at}"] * times
    assert run.events[-1].reached == run.level


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_step_made_again_in_micro_batches_equals_one_made_so_at_once(make_step, data, place):
    half = Run(make_step(), FallbackLevel(FULL, 3), data)
    run, shortage = Run(make_step(), FallbackLevel(FULL, BATCH), data), Shortage(1)
    place(run.step, shortage)
    assert same(run.make(shortage=shortage), half.make())
    assert run.level == FallbackLevel(FULL, 3)


@pytest.mark.parametrize("place", [in_forward, in_backward], ids=lambda place: place.__name__)
def test_micro_batches_that_break_off_in_the_middle_leave_no_gradient_behind(make_step, data, place):
    class Late(Shortage):
        calls = 0

        def __call__(self, *_: object) -> None:
            self.calls += 1
            if self.calls == 2:
                super().__call__()

    expected = Run(make_step(), FallbackLevel(FULL, 2), data).make()
    run, shortage = Run(make_step(), FallbackLevel(FULL, 3), data), Late(1)
    shortage.arm()
    place(run.step, shortage)
    assert same(run.make(), expected)
    assert shortage.left == 0


@pytest.mark.parametrize("size", [1, 4, 6, 100])
def test_micro_batches_have_the_gradient_of_the_batch_to_rounding(make_step, data, size):
    batch = next(iter(batches(data.training, BATCH)))
    gradients = []
    for micro_batch in (None, size):
        step = replace(make_step(dropout=0.0, kind="fp32"), micro_batch=micro_batch)
        step.optimizer.step, step.optimizer.zero_grad = lambda: None, lambda: None  # keep the gradients
        outcome = step([batch], place="here")
        gradients.append([parameter.grad for parameter in step.model.parameters()])
        assert outcome.windows == BATCH
    for whole, summed in zip(*gradients, strict=True):
        assert torch.allclose(whole, summed, atol=ROUNDING)
    assert any(whole.any() for whole in gradients[0])


def test_micro_batches_hold_every_window_once_and_in_order(data):
    batch = next(iter(batches(data.training, 7)))
    parts = list(micro_batches(batch, 3))
    assert [len(part.target) for part in parts] == [3, 3, 1]
    whole = [torch.cat(tensors) for tensors in zip(*(part[:5] for part in parts), strict=True)]
    assert all(map(torch.equal, whole, batch[:5]))


def test_each_level_takes_less_memory_than_the_one_before():
    levels = [FallbackLevel(OFF, 5)]
    while following := levels[-1].next():
        levels.append(following)
    assert [(level.name, level.micro_batch) for level in levels] == [
        ("off", 5),
        ("aggressive", 5),
        ("full", 5),
        ("full", 3),
        ("full", 2),
        ("full", 1),
    ]
    assert [FallbackLevel.from_json(level.to_json()) for level in levels] == levels


@pytest.mark.parametrize(
    ("own", "following"),
    [
        pytest.param({"lstm_encoder"}, "aggressive", id="inside-aggressive"),
        pytest.param({"lstm_encoder", "future_selection"}, "full", id="with-a-selection"),
    ],
)
def test_ones_own_segments_go_to_the_mode_that_holds_them(own, following):
    level = FallbackLevel(frozenset(own), 4)
    assert level.name == ",".join(name for name in SEGMENTS if name in own)
    assert level.next() == FallbackLevel(segments_of(following), 4)


def test_tables_that_are_recomputed_stay_so_on_every_level():
    levels = [FallbackLevel(frozenset({"historical_tables"}), 2)]
    while following := levels[-1].next():
        levels.append(following)
    assert [level.segments for level in levels[1:]] == [
        wanted | {"historical_tables"} for wanted in (AGGRESSIVE, FULL, FULL)
    ]
    assert [FallbackLevel.from_json(level.to_json()) for level in levels] == levels


def test_what_fits_on_no_level_is_an_error_that_changes_nothing(make_step, data):
    run, shortage = Run(make_step(), FallbackLevel(OFF, BATCH), data), Shortage(1000)
    in_forward(run.step, shortage)
    before = Run(make_step(), FallbackLevel(OFF, BATCH), data).make(steps=2)
    with pytest.raises(OutOfMemoryError, match=r"step 2: one window at a time.*Free memory and resume") as stopped:
        run.make(shortage=shortage, at=2)
    assert stopped.value.exit_code == 2
    assert same({**run.kept(), "loss": before["loss"]}, before)
    assert all(parameter.grad is None for parameter in run.step.model.parameters())
    assert [event.reached.micro_batch for event in run.events] == [6, 6, 3, 2, 1]


def test_a_shortage_while_weights_are_written_is_never_made_again(make_step, data):
    run, shortage = Run(make_step(), FallbackLevel(OFF, BATCH), data), Shortage(1)
    run.step.optimizer.optimizer.register_step_post_hook(shortage)
    with pytest.raises(TornUpdateError, match="while the weights were being written"):
        run.make(shortage=shortage, at=1)
    assert run.events == []


def test_a_library_that_is_spent_leaves_the_next_level_to_another_process(make_step, data):
    failure = RuntimeError("could not execute a primitive")
    run, shortage = Run(make_step(), FallbackLevel(OFF, BATCH), data), Shortage(1, failure)
    in_forward(run.step, shortage)
    before = Run(make_step(), FallbackLevel(OFF, BATCH), data).make(steps=2)
    with pytest.raises(SpentProcessError, match=r"--resume` resumes .* checkpointing aggressive and 6 windows"):
        run.make(shortage=shortage, at=2)
    assert same({**run.kept(), "loss": before["loss"]}, before)
    assert [event.reached for event in run.events] == [FallbackLevel(AGGRESSIVE, BATCH)]


def test_another_failure_is_not_taken_for_a_shortage(make_step, data):
    run, shortage = Run(make_step(), FallbackLevel(OFF, BATCH), data), Shortage(1, RuntimeError("shapes do not match"))
    in_forward(run.step, shortage)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run.make(shortage=shortage)
    assert run.events == []


def test_the_allocators_own_complaint_is_recognized_and_quoted_with_the_amount(make_step, data):
    with pytest.raises((RuntimeError, MemoryError)) as refused:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
    run, shortage = Run(make_step(kind="fp32"), FallbackLevel(OFF, BATCH), data), Shortage(1, refused.value)
    in_forward(run.step, shortage)
    run.make(shortage=shortage, steps=1)
    assert str(2**55) in run.events[0].said
    assert "alloc_cpu.cpp" not in run.events[0].said


def test_a_fallback_says_what_happened_and_what_changes():
    said, sizes = "CUDA out of memory", (FallbackLevel(FULL, 8), FallbackLevel(FULL, 4))
    modes = FallbackEvent("qat epoch 2, batch 3", said, FallbackLevel(OFF, 8), FallbackLevel(AGGRESSIVE, 8)).sentence()
    assert "qat epoch 2, batch 3: out of memory (CUDA out of memory)" in modes
    assert "from off to aggressive; results are bitwise identical" in modes
    micro = FallbackEvent("qat epoch 2, batch 3", said, *sizes).sentence()
    assert "from 8 to 4 windows; the effective batch size stays the same" in micro


def test_a_module_with_state_of_its_own_is_refused_before_the_first_recomputing_step(make_step, data):
    def plant(step: TrainingStep) -> None:
        norm = nn.BatchNorm1d(8)
        encoder = step.model.get_submodule("temporal_attention")
        encoder.register_module("foreign", norm)
        encoder.register_forward_pre_hook(lambda module, inputs: (norm(inputs[0].mT).mT, *inputs[1:]))

    step = make_step(kind="fp32")
    plant(step)
    untouched = Run(make_step(kind="fp32"), FallbackLevel(OFF, BATCH), data)
    plant(untouched.step)
    untouched.make(steps=1)  # without checkpointing it may stay
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    with pytest.raises(HiddenStateError, match=r"temporal_attention\.foreign\.running_mean"):
        Run(step, FallbackLevel(FULL, BATCH), data).make(steps=1)
    assert all(torch.equal(value, before[name]) for name, value in step.model.state_dict().items())
