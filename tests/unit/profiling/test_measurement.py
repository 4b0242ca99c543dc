"""Steps are measured in worker processes: what a mode takes there, and what happens when memory runs out."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from qat_tft.checkpointing.segments import segments_of
from qat_tft.config.model import ModelConfig
from qat_tft.profiling.interleaved import Measured, in_worker, measure_interleaved
from qat_tft.profiling.measurement import Measurement, OptimizerStep
from qat_tft.profiling.step_simulator import StepSimulator
from qat_tft.profiling.worker import Task, synthetic_step_of
from qat_tft.schema import GroupSize

MIB = 2**20
BALLAST = 400 * MIB
SIMULATION = 0.05
"""The largest error of a simulated peak: in so small a model, what oneDNN's LSTM keeps is a few percent of all."""

SIMULATOR = StepSimulator(
    ModelConfig(history=12, horizon=4, hidden=8, selection="exact", selection_chunk=16),
    (GroupSize(2), GroupSize(300, (4, 6)), GroupSize(3, (3,))),
)
WINDOWS = 64


def task(mode: str, windows: int = WINDOWS) -> Task:
    return Task.of(SIMULATOR, "fp32", segments_of(mode), windows=windows, device="cpu", steps=2)


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    """Measure two modes after this process had far more memory than either needs."""
    ballast = bytearray(b"x" * BALLAST)
    del ballast
    return measure_interleaved({mode: task(mode).command for mode in ("off", "full")}, 1, lambda text: None)


def test_each_mode_is_measured_in_a_process_that_knows_nothing_of_this_one_s_memory(measured):
    assert measured["off"].live_bytes <= measured["off"].process_bytes < BALLAST


def test_checkpointing_takes_less_memory_live_and_of_the_process(measured):
    off, full = measured["off"], measured["full"]
    assert full.live_bytes < off.live_bytes / 2
    assert full.process_bytes < off.process_bytes


@pytest.mark.parametrize("mode", ["off", "full"])
def test_the_simulation_is_within_a_few_percent_of_the_live_peak(measured, mode):
    simulated = SIMULATOR("fp32", mode, WINDOWS).peak
    assert simulated == pytest.approx(measured[mode].live_bytes, rel=SIMULATION)


def test_every_step_after_the_first_is_timed(measured):
    for found in measured.values():
        assert [len(one.seconds) for one in found.rounds] == [2]
        assert found.seconds > 0


def test_the_heap_is_set_up_before_torch_is_there():
    seen = subprocess.run(
        [sys.executable, "-c", "import sys, qat_tft.profiling.worker; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip() == "False"


def test_a_batch_beyond_all_memory_is_said_to_run_out_of_it():
    said = in_worker(task("full", windows=10**12).command)
    assert isinstance(said, str)
    assert "can't allocate memory" in said


def test_a_killed_process_counts_as_out_of_memory():
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert in_worker([sys.executable, "-c", killed]) == (
        "the system killed the process, as it does when memory runs out"
    )


def test_a_process_that_fails_otherwise_is_an_error_with_what_it_wrote():
    with pytest.raises(RuntimeError, match="oh dear"):
        in_worker([sys.executable, "-c", "raise SystemExit('oh dear')"])


def test_a_task_carries_its_step_whole():
    text = task("full").text
    assert Task.from_text(text).text == text
    step = synthetic_step_of(Task.from_text(text))
    assert (step.shape, step.groups) == (SIMULATOR.shape, SIMULATOR.groups)


def test_figures_of_several_rounds_are_the_median_time_and_the_largest_peak():
    rounds = [Measurement((9.0, 1.0), 10, 7), Measurement((2.0,), 30, 5), Measurement((4.0, 5.0), 20, 6)]
    found = Measured(tuple(rounds))
    assert (found.seconds, found.process_bytes, found.live_bytes) == (4.0, 30, 7)


def test_what_an_optimizer_step_keeps_is_the_weights_and_two_moments():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    step = OptimizerStep(model, lambda: (model(torch.randn(4, 3)).square().sum(), None))
    step()
    weights = [parameter.nbytes for parameter in model.parameters()]
    counters = 4 * len(weights)  # AdamW counts steps in a number per parameter
    assert step.kept_bytes == 3 * sum(weights) + sum(buffer.nbytes for buffer in model.buffers()) + counters
