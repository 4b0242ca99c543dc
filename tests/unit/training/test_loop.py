"""What a phase makes of its epochs: groups of batches, averages of the weights, and the tail when patience is over."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from qat_tft.config.run import RunConfig
from qat_tft.runs import files
from qat_tft.training import loop
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.job import FinishedRun, resume, train
from qat_tft.training.progress import EpochReport, Silent, StepReport
from qat_tft.training.schedule import FLOOR, learning_rate
from qat_tft.training.steps.step import TrainingStep

PEAK = 2e-3
ROUNDING = 1e-6
"""Of single precision sums of weights, which are near one."""


def changed(config: RunConfig, **sections: dict[str, object]) -> RunConfig:
    settings = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=settings)


def weights(run: FinishedRun, kind: str = "fp32") -> dict[str, Tensor]:
    return files.read_tensors(run.folder.path / f"{kind}.safetensors", kind=kind)[0]


def differing(one: FinishedRun, other: FinishedRun) -> list[str]:
    pairs = [(kind, weights(one, kind), weights(other, kind)) for kind in ("fp32", "qat")]
    return [f"{kind} {name}" for kind, a, b in pairs for name in a | b if not torch.equal(a[name], b[name])]


def test_a_group_that_the_epoch_leaves_incomplete_is_a_step_like_any_other(config, schema, tmp_path):
    alone = changed(config, training={"batches_per_epoch": 1, "epochs": 2})
    grouped = changed(config, training={"batches_per_epoch": 1, "epochs": 2, "accumulation": 4, "gradient_clip": 1e9})
    expected = train(changed(alone, training={"gradient_clip": 1e9}), schema, runs_dir=tmp_path, name="alone")
    assert differing(train(grouped, schema, runs_dir=tmp_path, name="grouped"), expected) == []


@pytest.fixture
def config(config):
    """Without a linear path, whose forecast would be a candidate for the best weights before the first epoch."""
    return changed(config, model={"linear_path": "off"})


class Listener(Silent):
    """Keeps reports, and presses Ctrl-C during one step of a phase."""

    def __init__(self, interrupt_at: int | None = None, phase: str = "fp32") -> None:
        self.interrupted = phase, interrupt_at
        self.notes: list[str] = []
        self.steps: list[StepReport] = []
        self.epochs: list[EpochReport] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, report: StepReport) -> None:
        if report.phase == "fp32":
            self.steps.append(report)
        if (report.phase, report.step) == self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)

    def epoch(self, report: EpochReport) -> None:
        self.epochs.append(report)


@pytest.fixture
def validated(monkeypatch) -> Callable[[Iterator[float]], list[dict[str, Tensor]]]:
    """Let validation find these losses one after the other; what it was given comes back as it goes."""
    seen: list[dict[str, Tensor]] = []

    def install(losses: Iterator[float]) -> list[dict[str, Tensor]]:
        def find(model: torch.nn.Module, *_: object, **__: object) -> float:
            seen.append(loop.copy_weights(model))
            return next(losses)

        monkeypatch.setattr(loop, "validation_loss", find)
        return seen

    return install


@pytest.fixture
def stepped(monkeypatch) -> list[dict[str, Tensor]]:
    """The state of the model before the first step and after each one, of both phases; the keys tell which."""
    states: list[dict[str, Tensor]] = []
    make = TrainingStep.__call__

    def watched(self, *arguments: object, **named: object) -> object:
        if not states or states[-1].keys() != self.model.state_dict().keys():
            states.append(loop.copy_weights(self.model))
        outcome = make(self, *arguments, **named)
        states.append(loop.copy_weights(self.model))
        return outcome

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    return states


def average(states: list[dict[str, Tensor]], decay: float) -> dict[str, Tensor]:
    """What is kept of weights that went through these states; whatever moves otherwise is the last one's."""
    kept = {name: tensor.double() for name, tensor in states[0].items()}
    for step, state in enumerate(states[1:]):
        past = min(decay, (1 + step) / (10 + step))
        kept = {name: past * kept[name] + (1 - past) * tensor.double() for name, tensor in state.items()}
    return kept


OBSERVED = ("minimum", "maximum", "batches", "scale", "zero_point")
"""What calibration and QAT observe: the last states of the names of quantizers."""


def is_observed(name: str) -> bool:
    return name.rpartition(".")[2] in OBSERVED


def test_averages_are_validated_kept_and_carried_into_qat_and_ranges_are_as_observed(
    config, schema, tmp_path, stepped, validated
):
    seen = validated(itertools.count(10.0, -1.0))
    config = changed(config, training={"epochs": 2, "averaging": 0.7}, quantization={"qat_epochs": 2, "frozen": 0.0})
    run = train(config, schema, runs_dir=tmp_path)
    fp32 = [state for state in stepped if state.keys() == stepped[0].keys()]
    qat = stepped[len(fp32) :]
    assert (len(fp32), len(qat)) == (7, 7)
    epochs = [(fp32[:4], average), (fp32, average), (qat[:1], None), (qat[:4], average), (qat, average)]
    expected = [found for states, kept in epochs for found in ([states[-1]] + ([kept(states, 0.7)] if kept else []))]
    after = [states[-1] for states, kept in epochs for _ in range(2 if kept else 1)]
    for found, wanted, raw in zip(seen, expected, after, strict=True):
        for name, tensor in found.items():
            if is_observed(name):
                assert torch.equal(tensor, raw[name]), name
            else:
                assert torch.allclose(tensor.double(), wanted[name].double(), atol=ROUNDING), name
    assert not torch.equal(qat[6]["model.head.weight"], seen[-1]["model.head.weight"])
    for kind, last in (("fp32", seen[3]), ("qat", seen[8])):
        kept = weights(run, kind)
        assert [name for name in last if not torch.equal(kept[name], last[name])] == []


def test_without_averaging_the_weights_themselves_are_validated_and_kept(config, schema, tmp_path, stepped, validated):
    seen = validated(itertools.count(10.0, -1.0))
    config = changed(config, training={"averaging": 0.0}, quantization={"use_qat": False})
    kept = weights(train(config, schema, runs_dir=tmp_path))
    assert all(torch.equal(kept[name], stepped[-1][name]) for name in kept)
    assert all(torch.equal(seen[0][name], stepped[-1][name]) for name in kept)


def test_products_of_maps_are_trained_at_their_multiple_of_the_rate_that_is_reported(
    config, schema, tmp_path, monkeypatch
):
    used, make = [], TrainingStep.__call__

    def watched(self, *arguments: object, **named: object) -> object:
        used.append(sorted(group["lr"] for group in self.optimizer.param_groups))
        return make(self, *arguments, **named)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    listener = Listener()
    train(changed(config, quantization={"use_qat": False}), schema, runs_dir=tmp_path, progress=listener)
    multiples = torch.tensor([1.0, 8**0.5, 4.0])  # of hidden size 8
    rates = torch.tensor([report.learning_rate for report in listener.steps])
    assert torch.allclose(torch.tensor(used), rates.unsqueeze(1) * multiples)


@pytest.mark.parametrize(("phase", "step"), [("fp32", 4), ("qat", 2)])
def test_a_resumed_run_goes_on_averaging_to_the_bit(config, schema, tmp_path, validated, phase, step):
    config = changed(config, training={"epochs": 2, "averaging": 0.7}, quantization={"frozen": 0.0})
    validated(itertools.count(10.0, -1.0))
    straight = train(config, schema, runs_dir=tmp_path, name="straight")
    validated(itertools.count(10.0, -1.0))
    with pytest.raises(Interrupted):
        train(config, schema, runs_dir=tmp_path, name="mine", progress=Listener(step, phase))
    assert differing(resume(tmp_path, "mine"), straight) == []


def test_averages_are_the_same_in_every_checkpointing_mode(config, schema, tmp_path, validated):
    runs = []
    for mode in ("off", "full"):
        validated(itertools.count(10.0, -1.0))
        changes = {"epochs": 2, "averaging": 0.7, "checkpoint_mode": mode}
        runs.append(train(changed(config, training=changes), schema, runs_dir=tmp_path, name=mode))
    assert differing(*runs) == []


def test_the_weights_themselves_are_kept_where_they_are_better_than_their_average(
    config, schema, tmp_path, stepped, validated
):
    validated(iter([2.0, 3.0, 1.0, 1.5]))
    config = changed(config, training={"epochs": 2, "averaging": 0.7}, quantization={"use_qat": False})
    run = train(config, schema, runs_dir=tmp_path)
    kept = weights(run)
    assert all(torch.equal(kept[name], stepped[-1][name]) for name in kept)
    assert run.results.validation_loss["fp32"] == 1.0


def once_better(config: RunConfig, **training: object) -> RunConfig:
    settings = {"epochs": 20, "patience": 3, "learning_rate": PEAK, **training}
    return changed(config, training=settings, quantization={"use_qat": False})


def test_when_patience_is_over_the_rate_falls_to_its_floor_in_a_fifth_of_the_epochs(
    config, schema, tmp_path, validated
):
    validated(itertools.chain([1.0, 0.9], itertools.repeat(1.0)))
    listener = Listener()
    train(once_better(config), schema, runs_dir=tmp_path, progress=listener)
    tail = range(5 * 3, 9 * 3)
    assert [report.learning_rate for report in listener.steps] == [
        learning_rate(step, 60, peak=PEAK, warmup=0.05, tail=tail) for step in range(9 * 3)
    ]
    assert listener.steps[tail.start - 1].learning_rate > 0.8 * PEAK
    assert listener.steps[-1].learning_rate == pytest.approx(FLOOR * PEAK)
    (note,) = [note for note in listener.notes if "No lower validation loss" in note]
    assert note.startswith("No lower validation loss since epoch 2: ")
    assert note.endswith("by the end of epoch 9, the last one")


def test_a_lower_loss_in_the_tail_is_kept_and_does_not_end_it(config, schema, tmp_path, validated):
    validated(itertools.chain([1.0, 1.1, 1.1, 1.1, 0.5], itertools.repeat(1.0)))
    listener = Listener()
    run = train(once_better(config), schema, runs_dir=tmp_path, progress=listener)
    assert [report.best for report in listener.epochs] == [True, False, False, False, True, False, False, False]
    assert run.results.validation_loss["fp32"] == 0.5


def test_where_the_schedule_ends_as_soon_there_is_no_other_tail(config, schema, tmp_path, validated):
    validated(itertools.repeat(1.0))
    listener = Listener()
    train(once_better(config, epochs=5, patience=3), schema, runs_dir=tmp_path, progress=listener)
    assert [report.learning_rate for report in listener.steps] == [
        learning_rate(step, 15, peak=PEAK, warmup=0.05) for step in range(15)
    ]
    assert not [note for note in listener.notes if "No lower validation loss" in note]


@pytest.mark.parametrize("step", [3 * 4, 3 * 4 + 1, 3 * 6], ids=["as-it-begins", "within-it", "between-its-epochs"])
def test_a_run_that_is_resumed_in_its_tail_gives_the_same_bits(config, schema, tmp_path, validated, step):
    def losses() -> Iterator[float]:
        return itertools.chain([1.0, 1.1, 1.1, 1.1, 1.1], itertools.repeat(0.5))

    validated(losses())
    straight = train(once_better(config), schema, runs_dir=tmp_path, name="straight")
    found = losses()
    validated(found)
    with pytest.raises(Interrupted):
        train(once_better(config), schema, runs_dir=tmp_path, name="mine", progress=Listener(step))
    listener = Listener()
    resumed = resume(tmp_path, "mine", progress=listener)
    ours, theirs = weights(resumed), weights(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)
    assert listener.steps[-1].step == 3 * 8
