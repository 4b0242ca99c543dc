"""The learning rate and the quantization phase as functions of the step and of where the tail begins."""

import math

FLOOR = 0.01
"""Share of the peak learning rate that the cosine ends at."""

TAIL = 0.2
"""Share of a phase's epochs in which the learning rate falls to its floor once patience is over."""


def learning_rate(step: int, steps: int, *, peak: float, warmup: float, tail: range | None = None) -> float:
    """Return the learning rate of step 0 <= `step` < `steps`: linear warm-up, then a cosine down to 1 %.

    Args:
        step: the step about to be made.
        steps: all steps of the phase.
        peak: the largest learning rate.
        warmup: share of the steps that rise.
        tail: steps in which the rate falls to 1 % of the peak along a cosine, from where it would be at their start.
    """
    if tail is not None and step >= tail.start:
        start = learning_rate(tail.start, steps, peak=peak, warmup=warmup)
        return _between(start, FLOOR * peak, (step + 1 - tail.start) / len(tail))
    rising = round(steps * warmup)
    if step < rising:
        return peak * (step + 1) / (rising + 1)
    done = (step - rising) / max(1, steps - 1 - rising)
    return _between(peak, FLOOR * peak, done)


def tail_epochs(epochs: int) -> int:
    """Return how many epochs the tail of a phase has that may have `epochs`: a fifth of them, and at least one."""
    return max(1, round(epochs * TAIL))


def first_frozen_step(steps: int, *, frozen: float) -> int:
    """Return the first of a QAT phase's steps that runs with frozen ranges: the last `frozen` share of them does."""
    return steps - round(steps * frozen)


def _between(high: float, low: float, done: float) -> float:
    """Return the value of half a cosine that falls from `high` to `low`, of which a share is done."""
    share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    return share * high + (1.0 - share) * low
