"""The learning rate and the quantization phase as functions of the step alone: nothing to save or restore."""

import math

FLOOR = 0.01
"""Share of the peak learning rate that the cosine ends at."""


def learning_rate(step: int, steps: int, *, peak: float, warmup: float) -> float:
    """Return the learning rate of step 0 <= `step` < `steps`: linear warm-up, then a cosine down to 1 %.

    Args:
        step: the step about to be made.
        steps: all steps of the phase.
        peak: the largest learning rate.
        warmup: share of the steps that rise.
    """
    rising = round(steps * warmup)
    if step < rising:
        return peak * (step + 1) / (rising + 1)
    done = (step - rising) / max(1, steps - 1 - rising)
    return peak * (FLOOR + (1.0 - FLOOR) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))


def ranges_are_frozen(step: int, steps: int, *, frozen: float) -> bool:
    """Say whether a QAT step runs with frozen ranges: the last `frozen` share of the steps does."""
    return step >= steps - round(steps * frozen)
