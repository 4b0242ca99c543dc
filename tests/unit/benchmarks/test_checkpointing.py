"""The benchmark's figures follow from what was measured, and its count of bits misses none."""

from __future__ import annotations

import pytest
import torch

from qat_tft.checkpointing.segments import segments_of
from qat_tft.config.model import ModelConfig
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.interleaved import Measured, in_worker
from qat_tft.profiling.measurement import Measurement
from qat_tft.profiling.step_profile import Row, rows_of
from qat_tft.profiling.synthetic_step import SyntheticStep
from qat_tft.schema import GroupSize

TINY = SyntheticStep(
    ModelConfig(history=3, horizon=2, hidden=8, heads=2, selection_chunk=2),
    (GroupSize(1), GroupSize(3), GroupSize(1)),
)
PEAKS = {"off": 100, "aggressive": 90, "full": 20}
SECONDS = {"off": 1.0, "aggressive": 1.1, "full": 1.2}
KIND = {"fp32": 1.0, "qat": 1.4}


@pytest.fixture
def script(benchmark_named):
    return benchmark_named("checkpointing")


def test_figures_are_ratios_of_what_was_simulated_and_measured(script):
    rows = rows_of(("fp32", "qat"))
    simulated = {row: Footprint(10, 0, 0, PEAKS[row.mode] - 10, 0, flops=1) for row in rows}
    measured = {row: Measured((Measurement((9.0,), 3 * PEAKS[row.mode], PEAKS[row.mode] + 2),)) for row in rows}
    seconds = {str(row): SECONDS[row.mode] * KIND[row.kind] for row in rows} | {"plain": 2.0}
    found = script.figures(simulated, measured, seconds)
    assert found == {
        "peak_ratio": {"fp32": 0.2, "qat": 0.2},
        "simulated_peak_ratio": {"fp32": 0.2, "qat": 0.2},
        "activation_ratio": {"fp32": pytest.approx(1 / 9), "qat": pytest.approx(1 / 9)},
        "time_ratio": {"fp32": pytest.approx(1.2), "qat": pytest.approx(1.2)},
        "plain_time_ratio": pytest.approx(0.6),
        "qat_time_ratio": pytest.approx(1.4),
        "qat_activation_ratio": 1.0,
        "simulation_error": pytest.approx(2 / 22),
    }
    assert [*found, "differing_bits"] == list(script.ASKED) == list(script.BOUNDS)


def test_modes_end_in_the_same_bits_and_other_chunks_do_not(script):
    modes = [Row("fp32", segments_of(mode)) for mode in ("off", "full")]
    assert script.differing_bits(TINY, modes) == 0
    kept = script.trained(TINY, modes[0])
    other = SyntheticStep(TINY.shape.model_copy(update={"selection_chunk": 3}), TINY.groups)
    assert sum(script.differing(one, two) for one, two in zip(kept, script.trained(other, modes[0]), strict=True)) > 0


def test_every_differing_bit_is_counted(script):
    one = torch.tensor([1.0, 2.0, -0.0])
    other = torch.tensor([1.0, 2.0, 0.0])
    assert script.differing(one, one) == 0
    assert script.differing(one, other) == 1
    assert script.differing(torch.tensor(7), torch.tensor(8)) == 4


def test_every_row_and_the_plain_model_are_timed(script):
    rows = rows_of(("fp32", "qat"))
    found = script.step_seconds(TINY, rows, rounds=1)
    assert list(found) == [*map(str, rows), "plain"]
    assert all(seconds > 0 for seconds in found.values())


def test_the_plain_model_is_measured_in_a_worker_process(script):
    found = in_worker(script.plain_command(TINY))
    assert isinstance(found, Measurement)
    assert found.live_bytes > 0
