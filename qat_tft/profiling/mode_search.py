"""Plans checkpointing for an amount of memory: each mode's peak, the largest batch that fits, the cheapest mode.

Everything is found by simulated training steps, which compute nothing. Extra time is an estimate: the share of
matrix-product work that is done a second time. A step's elementwise work, its traffic to memory and the better use
of caches by smaller working sets are not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from qat_tft.checkpointing.budget import Budget, memory_text
from qat_tft.checkpointing.segments import Mode
from qat_tft.errors import ConfigError
from qat_tft.profiling.footprint import Footprint

GPU_BUDGETS = tuple(Budget(f"{size} GB", size * 10**9) for size in (4, 12, 24, 48))
"""Usual sizes of a GPU, of 10^9 bytes: a card of that name has a little more, which its driver takes."""

MOST_WINDOWS = 2**20
"""No larger batch is looked for."""


class Simulate(Protocol):
    """How a training step is simulated."""

    def __call__(self, kind: str, mode: str, batch: int, *, chunk: int | None = None, backwards: int = 1) -> Footprint:
        """Return the footprint of a step of a phase ("fp32" or "qat") on `batch` windows for each backward pass."""
        ...


@dataclass(frozen=True)
class Workload:
    """What is to be trained.

    Attributes:
        simulate: how a step of it is simulated.
        kinds: the phases it goes through; a mode has to fit in all of them.
        batch: windows of each forward pass.
        chunk: variables that a selection computes at once.
        accumulation: batches whose gradients are added before a step.
    """

    simulate: Simulate
    kinds: Sequence[str]
    batch: int
    chunk: int
    accumulation: int = 1

    def footprint(self, kind: str, mode: str) -> Footprint:
        """Return the footprint of a step as it is planned."""
        return self.simulate(kind, mode, self.batch, chunk=None, backwards=min(self.accumulation, 2))

    def peak(self, mode: str, batch: int, *, chunk: int | None = None, accumulates: bool = False) -> int:
        """Return the largest peak of the phases."""
        backwards = 2 if accumulates or self.accumulation > 1 else 1
        return max(self.simulate(kind, mode, batch, chunk=chunk, backwards=backwards).peak for kind in self.kinds)

    def only(self, kind: str) -> Workload:
        """Return the same with one phase."""
        return replace(self, kinds=(kind,))

    def extra_time(self, mode: str) -> float:
        """Return by which share a step's work grows over that of mode off, all phases together."""
        if mode == Mode.OFF:
            return 0.0
        recomputed, direct = (sum(self.footprint(kind, one).flops for kind in self.kinds) for one in (mode, Mode.OFF))
        return recomputed / direct - 1


@dataclass(frozen=True)
class Choice:
    """The mode that was picked for a budget, and what its step takes."""

    mode: Mode
    peak: int
    extra_time: float
    budget: Budget
    passed_over: Mapping[Mode, int]

    def sentence(self) -> str:
        """Say what was picked and why."""
        reason = f"needs {memory_text(self.peak)} of the {self.budget.text} allowed"
        if self.passed_over:
            others = " and ".join(f"{mode} would need {memory_text(peak)}" for mode, peak in self.passed_over.items())
            reason += f" for about {self.extra_time:.0%} more matrix work; {others}"
        return f"Checkpointing: mode {self.mode} is the fastest that fits: a simulated step {reason}"


def pick_mode(workload: Workload, budget: Budget) -> Choice:
    """Return the mode with the least extra time among those whose simulated step fits the budget.

    Raises:
        ConfigError: none fits; the message says what would.
    """
    workload = remembering(workload)
    passed_over: dict[Mode, int] = {}
    for mode in _fastest_first(workload):
        peak = workload.peak(mode, workload.batch)
        if peak <= budget.size:
            return Choice(mode, peak, workload.extra_time(mode), budget, passed_over)
        passed_over[mode] = peak
    most_frugal = min(passed_over, key=lambda mode: passed_over[mode])
    raise ConfigError(
        f"no checkpoint mode fits a training step of {workload.batch} windows in {budget.text}: "
        f"mode {most_frugal}, the most frugal, needs {memory_text(passed_over[most_frugal])}",
        where="training.memory_budget",
        next_step=advice(workload, budget),
    )


def _fastest_first(workload: Workload) -> Iterator[Mode]:
    # Nothing is faster than recomputing nothing, so the other modes are simulated only when they are asked for.
    yield Mode.OFF
    yield from sorted(set(Mode) - {Mode.OFF}, key=workload.extra_time)


def advice(workload: Workload, budget: Budget) -> str:
    """Return a sentence that says what would fit the budget where no mode does."""
    workload = remembering(workload)
    kept = max(_kept(workload.footprint(kind, Mode.FULL)) for kind in workload.kinds)
    if kept > budget.size:
        return (
            f"Weights, gradients and the optimizer alone take {memory_text(kept)}: raise the budget, "
            "or make the model smaller (--hidden)"
        )
    ways = [*_smaller_batch(workload, budget.size), *_smaller_chunk(workload, budget.size)]
    needed = f"a budget of {memory_text(workload.peak(Mode.FULL, workload.batch))}"
    if not ways:
        return f"Mode full would fit {needed}, or a smaller model (--hidden)"
    return f"Mode full would fit with {' or with '.join(ways)}; or {needed}"


def require_room_for_weights(workload: Workload, budget: Budget, *, where: str) -> None:
    """Check that a budget holds at least the model.

    Raises:
        ConfigError: it is smaller than the weights.
    """
    weights = max(workload.footprint(kind, Mode.FULL).weights for kind in workload.kinds)
    if budget.size < weights:
        raise ConfigError(
            f"{budget.text} is too small for the weights, which take {memory_text(weights)}",
            where=where,
            next_step=advice(workload, budget),
        )


def largest_batches(peak: Callable[[int], int], start: int, budgets: Sequence[int]) -> dict[int, int]:
    """Return for each budget the largest batch whose peak fits it; 0 where not even one window does.

    Every tensor's size is affine in the batch, and so is what is alive at any one moment: the peak is a maximum of
    affine functions, that is, convex. Two batches give a line below the peak outside them and above it between
    them, so two simulations and one at the batch that the line promises are mostly all it takes.

    Args:
        peak: bytes at the peak of a step, by the number of windows.
        start: where to begin.
        budgets: bytes.
    """
    known = {batch: peak(batch) for batch in (start, 2 * start)}
    return {budget: _largest_batch(peak, known, budget) for budget in sorted(set(budgets), reverse=True)}


def _largest_batch(peak: Callable[[int], int], known: dict[int, int], budget: int) -> int:
    while True:
        below = max((batch for batch, size in known.items() if size <= budget), default=0)
        above = min((batch for batch, size in known.items() if size > budget), default=MOST_WINDOWS + 1)
        if not below and 1 in known:
            return 0
        sure = _crossing(known, below, above, budget) if below in known and above in known else below
        most = min((_crossing(known, *pair, budget) for pair in _pairs(known, below, above)), default=above - 1)
        if min(most, above - 1) <= sure:
            return sure
        guess = min(most, above - 1) if below else 1
        known[guess] = peak(guess)


def _pairs(known: Mapping[int, int], below: int, above: int) -> list[tuple[int, int]]:
    """Return the two known batches at either side of the gap: the line through each pair bounds the answer."""
    fitting = sorted(batch for batch in known if batch <= below)[-2:]
    beyond = sorted(batch for batch in known if batch >= above)[:2]
    return [(pair[0], pair[1]) for pair in (fitting, beyond) if len(pair) == 2]


def _crossing(known: Mapping[int, int], one: int, other: int, budget: int) -> int:
    """Return the largest batch at which the line through two known points stays within the budget."""
    rise, run = known[other] - known[one], other - one
    return one + (budget - known[one]) * run // rise if rise > 0 else MOST_WINDOWS


def _smaller_batch(workload: Workload, budget: int) -> list[str]:
    fits = largest_batches(
        lambda batch: workload.peak(Mode.FULL, batch, accumulates=True), max(1, workload.batch // 2), [budget]
    )[budget]
    # The same windows a step: only a divisor of the batch keeps the gradient what it was.
    smaller = next((n for n in range(min(fits, workload.batch - 1), 0, -1) if workload.batch % n == 0), 0)
    if not smaller:
        return []
    parts = workload.accumulation * workload.batch // smaller
    return [f"--batch-size {smaller} --accumulation {parts} (the same number of windows per step)"]


def _smaller_chunk(workload: Workload, budget: int) -> list[str]:
    chunk = workload.chunk // 2
    while chunk:
        if workload.peak(Mode.FULL, workload.batch, chunk=chunk) <= budget:
            return [f"--selection-chunk {chunk}"]
        chunk //= 2
    return []


def _kept(footprint: Footprint) -> int:
    """Return what is alive whatever the batch, each weight's gradient included."""
    return 2 * footprint.weights + footprint.optimizer


def remembering(workload: Workload) -> Workload:
    """Return the workload with a memory of the steps that it has simulated."""
    simulate = workload.simulate if hasattr(workload.simulate, "cache_info") else cache(workload.simulate)
    return replace(workload, simulate=simulate)
