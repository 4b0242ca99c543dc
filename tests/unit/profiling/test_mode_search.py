"""The planner finds the largest batch of any convex peak, picks the fastest mode that fits, or says what would."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qat_tft.checkpointing.budget import Budget, memory_text, parse_memory
from qat_tft.errors import ConfigError
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.memory_plan import make_plan
from qat_tft.profiling.mode_search import (
    MOST_WINDOWS,
    Workload,
    advice,
    largest_batches,
    pick_mode,
    require_room_for_weights,
)

MIB = 2**20
ACTIVATIONS = {"off": 10, "aggressive": 9, "full": 1}
WORK = {"off": 100, "aggressive": 102, "full": 133}


class Steps:
    """Footprints by formula, in MiB: 10 of weights, 20 of moments, and activations by mode, batch and chunk."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, kind: str, mode: str, batch: int, *, chunk: int | None = None, backwards: int = 1) -> Footprint:
        self.calls += 1
        activations = ACTIVATIONS[mode] * batch * (2 if kind == "qat" else 1)
        if mode == "full":
            activations = max(1, activations * (chunk or 8) // 8)
        gradients = 10 if backwards > 1 else 1
        sizes = (10, gradients, 20, activations, 0)
        return Footprint(*(size * MIB for size in sizes), flops=WORK[mode] * batch * backwards)


def workload(*kinds: str, batch: int = 32, accumulation: int = 1) -> Workload:
    return Workload(Steps(), kinds or ("fp32",), batch, 8, accumulation)


def mib(size: float) -> Budget:
    return Budget(f"{size} MiB", int(size * MIB))


@pytest.mark.parametrize(
    ("text", "size"),
    [("3.5GiB", 3.5 * 2**30), ("24 GB", 24e9), ("800mib", 800 * MIB), (" 0.5TB ", 5e11), ("12MB", 12e6)],
)
def test_amounts_of_memory_are_read_in_decimal_and_binary_units(text, size):
    assert parse_memory(text, where="here") == (text.strip(), size)


@pytest.mark.parametrize("text", ["", "much", "4", "-4GB", "4 GBit", "1e3GB", "0GB", "0.1 B", "nanGB", "4GB 5GB"])
def test_nonsense_for_an_amount_names_the_units(text):
    with pytest.raises(ConfigError, match=r"here: '.*' is not an amount of memory\. Allowed: .*GiB"):
        parse_memory(text, where="here")


def test_amounts_are_shown_in_a_unit_that_suits_them():
    assert [memory_text(size) for size in (3.5 * 2**30, 412 * MIB)] == ["3.50 GiB", "412 MiB"]


lines = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1, max_size=4)


@given(lines=lines, start=st.integers(1, 600), budgets=st.lists(st.integers(0, 3 * 10**6), min_size=1, max_size=4))
def test_the_largest_batch_is_exact_for_every_convex_peak(lines, start, budgets):
    """Compare with the definition: it fits, and one window more does not."""

    def peak(batch: int) -> int:
        return max(fixed + slope * batch for fixed, slope in lines)

    found = largest_batches(peak, start, budgets)
    for budget in budgets:
        assert found[budget] == 0 or peak(found[budget]) <= budget
        assert found[budget] == MOST_WINDOWS or peak(found[budget] + 1) > budget


def test_two_simulations_and_a_verifying_one_serve_every_budget_of_an_affine_peak():
    asked: list[int] = []

    def peak(batch: int) -> int:
        asked.append(batch)
        return 1000 + 7 * batch

    found = largest_batches(peak, 32, [4000, 12000, 24000, 48000])
    assert asked == [32, 64, 6714]
    assert found == {4000: 428, 12000: 1571, 24000: 3285, 48000: 6714}


@pytest.mark.parametrize(
    ("budget", "mode", "words"),
    [
        pytest.param(mib(400), "off", r"needs 351 MiB of the 400 MiB allowed$", id="off"),
        pytest.param(mib(330), "aggressive", r"about 2% more matrix work; off would need 351 MiB$", id="aggressive"),
        pytest.param(mib(64), "full", r"33% more .*off would need 351 MiB and aggressive would need 319", id="full"),
    ],
)
def test_the_fastest_mode_that_fits_is_picked_and_the_reason_said(budget, mode, words):
    choice = pick_mode(workload(), budget)
    assert choice.mode == mode
    assert re.search(words, choice.sentence())


def test_a_mode_has_to_fit_in_every_phase():
    assert pick_mode(workload("fp32"), mib(360)).mode == "off"
    assert pick_mode(workload("fp32", "qat"), mib(360)).mode == "full"


def test_accumulation_keeps_gradients_and_may_need_another_mode():
    assert pick_mode(workload(), mib(355)).mode == "off"
    assert pick_mode(workload(accumulation=2), mib(355)).mode == "aggressive"


def test_nothing_but_mode_off_is_simulated_where_that_fits():
    steps = Steps()
    pick_mode(Workload(steps, ("fp32",), 32, 8), mib(400))
    assert steps.calls == 1


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        pytest.param(mib(60), r"--batch-size 16 --accumulation 2 .*--selection-chunk 4; or a budget of 63", id="both"),
        pytest.param(mib(42), r"--batch-size 2 --accumulation 16 .*--selection-chunk 2", id="small"),
        pytest.param(mib(38), r"alone take 40 MiB: raise the budget, or make the model smaller", id="model too large"),
    ],
)  # fmt: skip
def test_where_nothing_fits_the_error_says_what_would(budget, words):
    with pytest.raises(ConfigError, match=words) as failure:
        pick_mode(workload(), budget)
    assert "full, the most frugal, needs 63 MiB" in str(failure.value)
    assert failure.value.exit_code == 2


def test_the_advice_fits():
    smaller = re.search(r"--batch-size (\d+) --accumulation (\d+)", advice(workload(), mib(60)))
    assert smaller is not None
    batch, parts = map(int, smaller.groups())
    assert batch * parts == 32
    assert Steps()("fp32", "full", batch, backwards=2).peak <= 60 * MIB


def test_a_budget_below_the_weights_is_refused():
    require_room_for_weights(workload(), mib(10), where="--memory-budget")
    with pytest.raises(ConfigError, match=r"--memory-budget: 9 MiB is too small for the weights, which take 10 MiB"):
        require_room_for_weights(workload(), mib(9), where="--memory-budget")


def test_a_plan_holds_every_mode_and_the_cheapest_for_each_budget():
    plan = make_plan(workload("fp32", "qat"), [mib(1000), mib(100), mib(60)], progress=lambda text: None)
    value = plan.to_json()
    assert [(row["phase"], row["mode"]) for row in value["rows"]] == [
        (kind, mode) for kind in ("fp32", "qat") for mode in ("off", "aggressive", "full")
    ]
    assert value["rows"][0]["largest_batch"] == {"1000 MiB": 96, "100 MiB": 6, "60 MiB": 2}
    assert value["rows"][2]["extra_time_estimated"] == pytest.approx(0.33)
    assert value["cheapest_mode"] == {"1000 MiB": "off", "100 MiB": "full", "60 MiB": None}
    assert list(value["advice"]) == ["60 MiB"]
    assert len(plan.tables()) == 2 + 3 + 1
