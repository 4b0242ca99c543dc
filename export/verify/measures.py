"""How far two forecasts are apart, and how long two files take. N windows, P horizon, Q quantiles."""

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

EXACT_DB = 200.0  # stands for "no difference at all": beyond what float32 can tell apart
_MIN_REPEATS = 3
_MAX_REPEATS = 1000


def sqnr_db(reference: Array, actual: Array) -> float | None:
    """Signal to quantization noise ratio, `10 log10(sum reference^2 / sum (actual - reference)^2)`, in dB.

    Returns None if either side is not finite throughout, and at most ``EXACT_DB``.
    """
    if not (np.isfinite(reference).all() and np.isfinite(actual).all()):
        return None
    signal = float(np.square(reference, dtype=np.float64).sum())
    noise = float(np.square(np.subtract(actual, reference, dtype=np.float64)).sum())
    if noise == 0.0:
        return EXACT_DB
    if signal == 0.0:
        return -EXACT_DB
    return min(EXACT_DB, 10 * float(np.log10(signal / noise)))


def largest_steps(difference: Array, step: npt.NDArray[np.float64]) -> float | None:
    """Largest absolute difference [N, P, Q] in units of each quantile's step [Q]; None if it is not finite."""
    largest = float(np.max(np.abs(difference) / step))
    return largest if np.isfinite(largest) else None


def crossings(quantiles: Array) -> int:
    """How many of the N x P forecasts [N, P, Q] hold a quantile below one of a lower probability."""
    return int((np.diff(quantiles, axis=-1) < 0).any(-1).sum())


def spread_order(count: int) -> npt.NDArray[np.int64]:
    """An order of ``count`` rows of which every beginning is spread evenly over all of them.

    Multiples of the golden ratio, modulo one, fill the unit interval evenly however many are taken.
    """
    golden = (np.sqrt(5.0) - 1) / 2
    return np.argsort(np.arange(count) * golden % 1.0, kind="stable")


def interleaved_medians(
    functions: Mapping[str, Callable[[], object]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    least: int = _MIN_REPEATS,
) -> dict[str, float]:
    """Median milliseconds of each function, called in turn so that a slower spell of the machine hits all.

    Args:
        functions: name to what is timed; each is called once beforehand.
        seconds: about how long to go on; at most a thousand rounds.
        clock: tells the seconds that are measured: of the wall, or of the processor.
        least: fewest rounds.
    """
    for function in functions.values():
        function()
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in _rounds(seconds, least):
        for name, function in functions.items():
            start = clock()
            function()
            samples[name].append(clock() - start)
    return {name: 1000 * float(np.median(taken)) for name, taken in samples.items()}


def _rounds(seconds: float, least: int) -> Iterator[int]:
    end = time.perf_counter() + seconds
    for number in range(_MAX_REPEATS):
        if number >= least and time.perf_counter() > end:
            return
        yield number
