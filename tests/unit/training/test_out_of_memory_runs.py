"""Whole runs in too little memory: they say what they change, continue, and resume exactly."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from qat_tft.config.run import RunConfig
from qat_tft.errors import OutOfMemoryError, SpentProcessError
from qat_tft.evaluation import window_forecasts as forecasts
from qat_tft.runs import files, layout
from qat_tft.training import loop
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.job import FinishedRun, resume, train
from qat_tft.training.progress import Silent, StepReport
from qat_tft.training.state import load_state
from qat_tft.training.steps.step import TrainingStep


class Listener(Silent):
    """Keeps every note, and presses Ctrl-C during one step of the FP32 phase."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.interrupt_at = interrupt_at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, report: StepReport) -> None:
        if (report.phase, report.step) == ("fp32", self.interrupt_at):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def memory_for(monkeypatch):
    """Let a backward pass take at most so many windows from some call on; the next ones of a broken step count too."""
    accumulate = TrainingStep._accumulate
    limit = {"windows": 10**9, "from": 0, "calls": 0}

    def limited(self, part, told):
        value = accumulate(self, part, told)  # statistics, gradients and random numbers have moved by then
        limit["calls"] += 1
        if len(part.raw.target) > limit["windows"] and limit["calls"] > limit["from"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return value

    monkeypatch.setattr(TrainingStep, "_accumulate", limited)
    return lambda windows, after=0: limit.update({"windows": windows, "from": after, "calls": 0})


@pytest.fixture
def fail_once(monkeypatch):
    """Run out of memory in the n-th backward pass of the process."""
    accumulate = TrainingStep._accumulate
    calls = iter(range(10**9))

    def install(number: int, said: str = "[enforce fail] . DefaultCPUAllocator: can't allocate memory") -> None:
        def failing(self, part, told):
            value = accumulate(self, part, told)
            if next(calls) == number:
                raise RuntimeError(said)
            return value

        monkeypatch.setattr(TrainingStep, "_accumulate", failing)

    return install


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, schema):
    """Train with enough memory; settings that several tests compare with are trained once."""
    made: dict[str, FinishedRun] = {}

    def run(config: RunConfig) -> FinishedRun:
        settings = config.model_dump_json()
        if settings not in made:
            made[settings] = train(config, schema, runs_dir=tmp_path_factory.mktemp("undisturbed"), name="run")
        return made[settings]

    return run


def changed(config: RunConfig, **sections: dict[str, object]) -> RunConfig:
    parts = {name: getattr(config, name).model_copy(update=update) for name, update in sections.items()}
    return config.model_copy(update=parts)


def weights(run: FinishedRun, kind: str) -> dict[str, torch.Tensor]:
    return files.read_tensors(run.folder.path / f"{kind}.safetensors", kind=kind)[0]


def same_weights(one: FinishedRun, other: FinishedRun, *kinds: str) -> bool:
    pairs = [(weights(one, kind), weights(other, kind)) for kind in kinds]
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def events(folder: Path) -> list[dict[str, object]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "out_of_memory"]


def test_a_run_that_steps_up_in_a_later_step_gives_the_bits_of_the_run_that_did_not(
    config, schema, tmp_path, fail_once, undisturbed
):
    config = changed(config, training={"epochs": 2})
    plain = undisturbed(config)
    full = changed(config, training={"checkpoint_mode": "aggressive"})
    from_the_start = train(full, schema, runs_dir=tmp_path, name="aggressive")
    fail_once(7)  # in the second batch after the FP32 epochs: while QAT observes
    listener = Listener()
    stepped = train(config, schema, runs_dir=tmp_path, name="stepped", progress=listener)
    assert same_weights(stepped, plain, "fp32", "qat")
    assert same_weights(stepped, from_the_start, "fp32", "qat")
    (event,) = events(stepped.folder.path)
    assert (event["phase"], event["epoch"], event["step"]) == ("qat", 1, 2)
    assert event["left"] == {"segments": [], "micro_batch": 16}
    assert len(event["reached"]["segments"]) == 6
    assert [note for note in listener.notes if "checkpointing changes from off to aggressive" in note]


def test_smaller_micro_batches_train_as_accumulated_batches_of_that_size(config, schema, tmp_path, memory_for):
    alone = {"data": {"unknown_rate": 0.0}, "quantization": {"use_qat": False}}
    memory_for(8)
    listener = Listener()
    stepped = train(changed(config, **alone), schema, runs_dir=tmp_path, name="stepped", progress=listener)
    reached = [
        (len(event["reached"]["segments"]), event["reached"]["micro_batch"]) for event in events(stepped.folder.path)
    ]
    assert reached == [(6, 16), (9, 16), (9, 8)]
    assert [note for note in listener.notes if "the micro-batch shrinks from 16 to 8 windows" in note]
    assert "step" in (tmp_path / "stepped" / "metrics.jsonl").read_text()
    small = {"batch_size": 8, "accumulation": 2, "batches_per_epoch": 6, "checkpoint_mode": "full"}
    accumulated = train(changed(config, **alone, training=small), schema, runs_dir=tmp_path, name="small")
    assert same_weights(stepped, accumulated, "fp32")


def test_the_next_phase_begins_on_the_level_that_was_reached(config, schema, tmp_path, memory_for):
    memory_for(4)
    stepped = train(config, schema, runs_dir=tmp_path)
    found = events(stepped.folder.path)
    assert {(event["phase"], event["step"]) for event in found} == {("fp32", 1)}
    assert [event["reached"]["micro_batch"] for event in found] == [16, 16, 8, 4]


def test_evaluation_takes_no_more_windows_at_once_than_training_could(
    config, schema, tmp_path, memory_for, monkeypatch
):
    sizes, at = [], forecasts.batches_at

    def watched(windows, indices, size, device):
        sizes.append(size)
        return at(windows, indices, size, device)

    monkeypatch.setattr(forecasts, "batches_at", watched)
    memory_for(4)
    train(config, schema, runs_dir=tmp_path)
    assert set(sizes) == {4}


def test_a_resumed_run_stays_on_its_level_and_gives_the_same_bits(config, schema, tmp_path, memory_for):
    config = changed(config, training={"epochs": 2})
    memory_for(8, after=1)
    straight = train(config, schema, runs_dir=tmp_path, name="straight")
    memory_for(8, after=1)
    with pytest.raises(Interrupted):
        train(config, schema, runs_dir=tmp_path, name="mine", progress=Listener(interrupt_at=4))
    assert load_state(tmp_path / "mine.unfinished" / layout.STATE).position.level["micro_batch"] == 8
    memory_for(10**9)  # memory is back, and the run goes on as it was
    resumed = resume(tmp_path, "mine")
    assert same_weights(resumed, straight, "fp32", "qat")
    assert events(resumed.folder.path) == events(straight.folder.path)


def test_a_run_killed_right_after_stepping_up_resumes_on_the_level_to_the_same_bits(
    config, schema, tmp_path, memory_for
):
    class Killed(Listener):
        def note(self, text: str) -> None:
            if "the micro-batch shrinks" in text:
                self.notes.append(text)

        def step(self, report: StepReport) -> None:
            if self.notes:
                raise SystemError("as if the power had failed")

    memory_for(8, after=1)
    straight = train(config, schema, runs_dir=tmp_path, name="straight")
    memory_for(8, after=1)
    with pytest.raises(SystemError):
        train(config, schema, runs_dir=tmp_path, name="mine", progress=Killed())
    memory_for(10**9)
    assert same_weights(resume(tmp_path, "mine"), straight, "fp32", "qat")


def test_what_fits_on_no_level_ends_with_exit_code_2_and_can_be_resumed(
    config, schema, tmp_path, memory_for, undisturbed
):
    config = changed(config, training={"epochs": 2})
    straight = undisturbed(config)
    memory_for(0, after=2)
    with pytest.raises(OutOfMemoryError, match="fp32 epoch 1, batch 3: one window at a time") as stopped:
        train(config, schema, runs_dir=tmp_path, name="mine")
    assert stopped.value.exit_code == 2
    position = load_state(tmp_path / "mine.unfinished" / layout.STATE).position
    assert (position.step, position.level) == (2, None), "the last good step, on the level that made it"
    memory_for(10**9)
    assert same_weights(resume(tmp_path, "mine"), straight, "fp32", "qat")


def test_a_spent_process_leaves_the_next_level_to_the_one_that_resumes(
    config, schema, tmp_path, fail_once, undisturbed
):
    straight = undisturbed(config)
    fail_once(1, "could not create a primitive")
    with pytest.raises(SpentProcessError, match="fp32 epoch 1, batch 2"):
        train(config, schema, runs_dir=tmp_path, name="mine")
    position = load_state(tmp_path / "mine.unfinished" / layout.STATE).position
    assert (position.step, len(position.level["segments"])) == (1, 6)
    resumed = resume(tmp_path, "mine")
    assert same_weights(resumed, straight, "fp32", "qat")
    assert len(events(resumed.folder.path)) == 1


def test_a_state_that_cannot_be_written_for_want_of_memory_leaves_the_one_before(
    config, schema, tmp_path, memory_for, monkeypatch
):
    config, listener = changed(config, training={"epochs": 2}), Listener()
    memory_for(0, after=4)
    saved = loop.save_state

    def save_until_short(*arguments: object, **named: object) -> None:
        if any("out of memory" in note for note in listener.notes):
            raise MemoryError
        saved(*arguments, **named)

    monkeypatch.setattr(loop, "save_state", save_until_short)
    with pytest.raises(OutOfMemoryError):
        train(config, schema, runs_dir=tmp_path, name="mine", progress=listener)
    assert "There is not enough memory to save the state either: the previously saved one is kept" in listener.notes
    assert load_state(tmp_path / "mine.unfinished" / layout.STATE).position.step == 3


def test_a_batch_too_large_to_measure_savings_is_trained_all_the_same(config, schema, tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("qat_tft.training.measured_notes.measure_savings", refused)
    listener = Listener()
    run = train(changed(config, training={"checkpoint_mode": "full"}), schema, runs_dir=tmp_path, progress=listener)
    assert run.results.checkpointing is None
    assert [note for note in listener.notes if note.startswith("Not enough memory to measure")]


def test_ones_own_segments_train_to_the_same_bits(config, schema, tmp_path, undisturbed):
    plain = undisturbed(config)
    own = changed(config, training={"checkpoint_segments": ("historical_selection", "lstm_decoder")})
    run = train(own, schema, runs_dir=tmp_path, name="own")
    assert same_weights(plain, run, "fp32", "qat")
    assert run.results.checkpointing["mode"] == "historical_selection,lstm_decoder"
