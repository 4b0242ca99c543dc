"""A simulated training step takes what a real one takes, part by part, and computes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qat_tft.checkpointing.recompute import runner_for
from qat_tft.checkpointing.segments import SEGMENTS, TABLE_SEGMENTS
from qat_tft.config.model import ModelConfig
from qat_tft.config.quantization import QuantizationConfig
from qat_tft.model.forms import SelectionForm
from qat_tft.model.loss import quantile_loss
from qat_tft.profiling.footprint import simulate_step
from qat_tft.profiling.live_tensors import peak_bytes
from qat_tft.profiling.step_simulator import StepSimulator
from qat_tft.quantization.ranges import Phase
from qat_tft.runs.build import build_qat_model, model_of_sizes
from qat_tft.schema import GroupSize

# All is counted to the byte but what oneDNN's LSTM keeps, in pages of memory: a percent of so small a model.
ACCURACY = 0.02
BATCH = 8
TABLES = frozenset(TABLE_SEGMENTS)
MODES = ["off", "aggressive", "full"]
KINDS = ["fp32", "qat"]
GROUPS = (GroupSize(2), GroupSize(38, (4, 6)), GroupSize(3, (3,)))
HISTORY, HORIZON = 12, 4


def simulator_of(season: int = 0, selection: SelectionForm = "tabulated") -> StepSimulator:
    older = {"seasonal_difference": season, "linear_path": "off", "normalize": "series"} if season else {}
    shape = ModelConfig(
        history=HISTORY, horizon=HORIZON, hidden=16, selection=selection, selection_chunk=4, scale_input=True, **older
    )
    return StepSimulator(shape, GROUPS, QuantizationConfig(products="integer"))


@pytest.fixture
def simulator() -> StepSimulator:
    return simulator_of()


def real_peak(simulator: StepSimulator, kind: str, mode: str, backwards: int) -> int:
    """Count a training step with real tensors, written out once more: the second, which has the optimizer's memory."""
    shape = simulator.shape
    model = model_of_sizes(shape, GROUPS).train()
    if kind == "qat":
        model = build_qat_model(model, "x86").train()
        model.set_phase(Phase.QAT)
    weights = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])

    def train() -> None:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            for _ in range(backwards):
                raw = torch.zeros(BATCH, 2), torch.zeros(BATCH, HISTORY, 40), torch.zeros(BATCH, HORIZON, 4)
                inputs, target = [tensor * 1 for tensor in raw], torch.zeros(BATCH, HORIZON)
                forecast = model(*inputs, runner_for(mode))
                quantile_loss(forecast.quantiles, target, shape.quantiles).backward()
                del raw, inputs, target, forecast
            optimizer.step()
            optimizer.zero_grad()

    return weights + peak_bytes(train, torch.device("cpu"))


CASES = [pytest.param(kind, mode, 1, 0, id=f"{kind} {mode}") for kind in KINDS for mode in MODES]
CASES += [pytest.param(kind, "full", 2, 0, id=f"{kind} accumulating") for kind in KINDS]
CASES += [pytest.param(kind, "full", 1, 4, id=f"{kind} seasonal") for kind in KINDS]


@pytest.mark.parametrize(("kind", "mode", "backwards", "season"), CASES)
def test_the_simulated_peak_is_the_counted_peak_of_a_real_step(kind, mode, backwards, season):
    simulator = simulator_of(season)
    simulated = simulator(kind, mode, BATCH, backwards=backwards)
    assert simulated.peak == pytest.approx(real_peak(simulator, kind, mode, backwards), rel=ACCURACY)


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_are_those_of_the_model(simulator, kind):
    model = model_of_sizes(simulator.shape, GROUPS)
    trained = build_qat_model(model, "x86") if kind == "qat" else model
    parameters = sum(parameter.nbytes for parameter in trained.parameters())
    buffers = sum(buffer.nbytes for buffer in trained.buffers())
    counters = 4 * len(list(trained.parameters()))  # AdamW counts steps in a number per parameter
    found = simulator(kind, "full", BATCH, backwards=2)
    assert found.weights == parameters + buffers
    assert found.optimizer == 2 * parameters + counters
    assert replace(simulator, averaging=0.9)(kind, "full", BATCH).optimizer == 3 * parameters + counters
    assert found.gradients == parameters  # those of the first backward pass, while the second one runs
    assert found.peak == sum(value for part, value in found.to_json().items() if part not in ("peak", "flops"))


def test_work_is_that_of_every_matrix_product(simulator):
    """A linear layer on 3 rows: one product in the forward pass, two in the backward pass, 2*3*4*5 operations each."""
    found = simulate_step(
        lambda: torch.nn.Linear(4, 5),
        lambda model, run: (run("only", model, torch.zeros(3, 4, requires_grad=True)).sum(), None),
        runner_for("off"),
    )
    assert found.flops == 3 * 2 * 3 * 4 * 5


def test_work_of_an_lstm_is_counted():
    steps, batch, hidden = 7, 3, 8
    forward = 2 * steps * batch * (4 * hidden * hidden) * 2
    found = simulate_step(
        lambda: torch.nn.LSTM(hidden, hidden, batch_first=True),
        lambda model, run: (run("only", model, torch.zeros(batch, steps, hidden))[0].sum(), None),
        runner_for(frozenset({"only"})),
    )
    assert found.flops == (1 + 1 + 2) * forward  # forward, recomputed, backward


@pytest.mark.parametrize("kind", KINDS)
def test_recomputing_more_takes_more_work_and_less_memory(kind):
    exact = simulator_of(selection="exact")
    off, aggressive, full = (exact(kind, mode, BATCH) for mode in MODES)
    assert off.flops < aggressive.flops < full.flops < 1.5 * off.flops
    assert full.activations < off.activations / 3
    assert aggressive.activations < off.activations


@pytest.mark.parametrize("kind", KINDS)
def test_what_tables_take_does_not_grow_with_the_batch_and_no_mode_recomputes_it(simulator, kind):
    kept = frozenset(SEGMENTS)  # at a batch of a few windows the peak lies elsewhere
    with_tables, without = ([simulator(kind, choice, batch) for batch in (16, 64)] for choice in (kept, kept | TABLES))
    saved = [one.activations - other.activations for one, other in zip(with_tables, without, strict=True)]
    assert saved[0] > 100_000
    assert saved[0] == pytest.approx(saved[1], rel=0.25)
    assert with_tables[0].flops < without[0].flops


def test_half_precision_takes_less_activation_memory(simulator):
    half = StepSimulator(simulator.shape, GROUPS, precision="bf16")
    assert half("fp32", "off", BATCH).activations < 0.8 * simulator("fp32", "off", BATCH).activations


@pytest.mark.parametrize("kind", KINDS)
def test_simulating_draws_no_random_number(simulator, kind):
    before = torch.get_rng_state()
    simulator(kind, "full", BATCH)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_of_hundreds_of_gigabytes_is_simulated_without_having_them(simulator):
    assert simulator("fp32", "off", 2**21).peak > 100 * 10**9
