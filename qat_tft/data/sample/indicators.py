"""Technical indicators of price bars, vectorized: 209 columns for the simulated reference data set.

T bars. Every function takes and gives float64 [T]; the first WARM_UP values of a result may be NaN.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

WINDOWS = (3, 5, 8, 13, 21, 34, 55, 89, 144, 233)  # bars
LAGS = 30
MACD = ((8, 21, 5), (12, 26, 9), (34, 89, 13))  # spans of fast, slow and signal average
WARM_UP = 320  # bars until every window is full and the averages have forgotten their start

_SMALL = 1e-12
_BLOCK = 16_384


def indicators(open_: Array, high: Array, low: Array, close: Array, volume: Array) -> dict[str, Array]:
    """The 209 observed columns by name; the target ``close`` is not among them.

    All but the bar's own columns are relative to the price or to their own window, so that their level does not
    drift with it. Where a window's deviation is zero a ratio to it is 0.
    """
    log_close = np.log(close)
    returns = np.diff(log_close, prepend=log_close[0])
    before = np.concatenate([close[:1], close[:-1]])
    true_range = np.maximum(high, before) - np.minimum(low, before)
    found: dict[str, Array] = {
        "open": open_,
        "high": high,
        "low": low,
        "volume": volume,
        "bar_range": (high - low) / close,
        "body": (close - open_) / close,
        "upper_shadow": (high - np.maximum(open_, close)) / close,
        "lower_shadow": (np.minimum(open_, close) - low) / close,
        "true_range": true_range / close,
        "log_turnover": np.log(volume * close),
    }
    for lag in range(LAGS):
        found[f"return_lag_{lag}"] = _lagged(returns, lag)
    for window in WINDOWS:
        of_window = _of_window(window, high, low, close, volume, returns, true_range)
        found.update({f"{name}_{window}": values for name, values in of_window.items()})
    for fast, slow, signal in MACD:
        line = (_average(close, fast) - _average(close, slow)) / close
        smooth = _average(line, signal)
        name = f"macd_{fast}_{slow}"
        found |= {name: line, f"{name}_signal": smooth, f"{name}_histogram": line - smooth}
    return found


def _of_window(
    window: int, high: Array, low: Array, close: Array, volume: Array, returns: Array, true_range: Array
) -> dict[str, Array]:
    mean, deviation = _mean(close, window), _deviation(close, window)
    volume_mean, volume_deviation = _mean(volume, window), _deviation(volume, window)
    return_mean, return_deviation = _mean(returns, window), _deviation(returns, window)
    before = _lagged(returns, 1)
    highest, lowest = _highest(high, window), -_highest(-low, window)
    gains, losses = _mean(np.maximum(returns, 0), window), _mean(np.maximum(-returns, 0), window)
    third = _mean(returns**3, window) - 3 * return_mean * _mean(returns**2, window) + 2 * return_mean**3
    return {
        "momentum": np.log(close / _lagged(close, window)),
        "sma_gap": close / mean - 1,
        "ema_gap": close / _average(close, window) - 1,
        "volatility": return_deviation,
        "rsi": 100 * _ratio(gains, gains + losses),
        "atr": _mean(true_range, window) / close,
        "bollinger_position": _ratio(close - mean, 2 * deviation),
        "bollinger_width": 4 * deviation / mean,
        "volume_z": _ratio(volume - volume_mean, volume_deviation),
        "volume_ratio": volume / _average(volume, window),
        "stochastic": 100 * _ratio(close - lowest, highest - lowest),
        "drawdown": close / highest - 1,
        "rally": close / lowest - 1,
        "skewness": _ratio(third, return_deviation**3),
        "return_autocorrelation": _correlation(returns, before, window),
        "volume_correlation": _correlation(np.abs(returns), volume, window),
    }


def _lagged(values: Array, lag: int) -> Array:
    return np.concatenate([np.full(lag, np.nan), values[: len(values) - lag]])


def _over_windows(values: Array, window: int, reduce: Callable[..., Array]) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(values, window)  # [T - window + 1, window]; a view
    # In blocks: a reduction such as std copies what it reads, window times the memory of the bars.
    blocks = [reduce(windows[at : at + _BLOCK], axis=1) for at in range(0, len(windows), _BLOCK)]
    return np.concatenate([np.full(window - 1, np.nan), *blocks])


def _mean(values: Array, window: int) -> Array:
    # Sums of windows, not differences of a running sum: these would leave rounding where a window is constant.
    return _over_windows(values, window, np.mean)


def _deviation(values: Array, window: int) -> Array:
    return _over_windows(values, window, np.std)


def _highest(values: Array, window: int) -> Array:
    return _over_windows(values, window, np.max)


def _average(values: Array, span: int) -> Array:
    """Exponential moving average with weight 2 / (span + 1), started at the first value."""
    weight = 2 / (span + 1)
    result = np.empty_like(values)
    state = values[0]
    for at, value in enumerate(values.tolist()):  # a recursion has no vectorized form in numpy
        state += weight * (value - state)
        result[at] = state
    return result


def _correlation(first: Array, second: Array, window: int) -> Array:
    shared = _mean(first * second, window) - _mean(first, window) * _mean(second, window)
    correlation = _ratio(shared, _deviation(first, window) * _deviation(second, window))
    return np.clip(correlation, -1, 1)


def _ratio(above: Array, below: Array) -> Array:
    # Both are zero where prices stood still; a deviation of rounding size counts as zero.
    still = np.abs(below) <= _SMALL
    return np.where(still, 0.0, above / np.where(still, 1.0, below))
