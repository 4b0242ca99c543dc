"""Simulated futures bars: random numbers with the habits of a market, for the reference shape of 225 columns."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qat_tft.data.sample.indicators import WARM_UP, indicators

Array = npt.NDArray[np.float64]

BAR_MINUTES = 5
DAY_BARS = 276  # 23 hours a day, as futures on indices trade; the exchange closes for one
_FIRST_MONDAY = np.datetime64("2023-01-02T00:00", "m")
_HALF_HOUR_BARS = 6
_CONTRACT_DAYS = 64  # trading days until a quarterly contract expires
_YEAR_BARS = 252 * DAY_BARS


@dataclass(frozen=True)
class Contract:
    """What is fixed for one simulated contract; its numbers are the five static columns."""

    name: str
    tick_size: float
    multiplier: float
    annual_volatility: float
    mean_volume: float
    volatility_persistence: float
    first_price: float

    def static(self) -> dict[str, float]:
        """The static columns by name."""
        return {
            "tick_size": self.tick_size,
            "multiplier": self.multiplier,
            "annual_volatility": self.annual_volatility,
            "mean_volume": self.mean_volume,
            "volatility_persistence": self.volatility_persistence,
        }


CONTRACTS = (
    Contract("SIM-A", 0.25, 50.0, 0.17, 900.0, 0.985, 4200.0),
    Contract("SIM-B", 0.01, 1000.0, 0.34, 420.0, 0.975, 78.0),
    Contract("SIM-C", 0.1, 100.0, 0.14, 310.0, 0.990, 1850.0),
    Contract("SIM-D", 0.015625, 1000.0, 0.08, 650.0, 0.980, 112.0),
)

KNOWN = (
    "minute_sin",
    "minute_cos",
    "weekday_sin",
    "weekday_cos",
    "month_day_sin",
    "month_day_cos",
    "minutes_since_open",
    "minutes_to_close",
    "days_to_expiry",
    "near_open_or_close",
)


@dataclass(frozen=True)
class Bars:
    """Columns of one simulated contract, all of the same length, nothing missing."""

    contract: Contract
    time: npt.NDArray[np.datetime64]
    close: Array
    observed: dict[str, Array]
    known: dict[str, Array]


def simulate(rows: int, seed: int) -> Iterator[Bars]:
    """Bars of each of ``CONTRACTS``, ``rows`` in all, shared out evenly; the same for the same seed."""
    share, more = divmod(rows, len(CONTRACTS))
    for number, contract in enumerate(CONTRACTS):
        yield _one_contract(contract, share + (number < more), np.random.default_rng([seed, number]))


def _one_contract(contract: Contract, rows: int, random: np.random.Generator) -> Bars:
    count = rows + WARM_UP
    bar = np.arange(count) - WARM_UP
    in_day = bar % DAY_BARS
    volatility = _volatility(contract, in_day, random)
    open_, high, low, close = _prices(contract, volatility, random)
    volume = _volume(contract, volatility, in_day, random)
    keep = slice(WARM_UP, None)
    observed = {name: values[keep] for name, values in indicators(open_, high, low, close, volume).items()}
    time, known = _calendar(bar[keep])
    return Bars(contract, time, close[keep], observed, known)


def _volatility(contract: Contract, in_day: npt.NDArray[np.int64], random: np.random.Generator) -> Array:
    """Deviation of each bar's log return: a daily U-shape times a log-volatility that reverts to its mean."""
    count = len(in_day)
    shocks = 0.35 * np.sqrt(1 - contract.volatility_persistence**2) * random.standard_normal(count)
    level = np.empty(count)
    state = 0.0
    for at, shock in enumerate(shocks):  # an autoregression has no vectorized form in numpy
        state = contract.volatility_persistence * state + shock
        level[at] = state
    from_edge = np.minimum(in_day, DAY_BARS - 1 - in_day) / (DAY_BARS / 2)
    shape = 0.6 + 1.2 * np.exp(-8 * from_edge) + 0.5 * np.exp(-(((in_day - 170) / 20) ** 2))
    usual: Array = contract.annual_volatility / np.sqrt(_YEAR_BARS) * shape * np.exp(level)
    return usual


def _prices(contract: Contract, volatility: Array, random: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Open, high, low and close on the contract's price grid; returns have fat tails and a little momentum."""
    shocks = random.standard_t(5, len(volatility)) * np.sqrt(3 / 5)
    returns = volatility * (shocks + 0.08 * np.concatenate([[0.0], shocks[:-1]]))
    log_close = np.log(contract.first_price) + np.cumsum(returns)
    log_open = np.concatenate([[np.log(contract.first_price)], log_close[:-1]])
    reach = np.abs(random.standard_normal((2, len(volatility)))) * 0.5 * volatility
    high = np.maximum(log_open, log_close) + reach[0]
    low = np.minimum(log_open, log_close) - reach[1]
    grid = contract.tick_size
    open_, close = (np.round(np.exp(price) / grid) * grid for price in (log_open, log_close))
    high = np.maximum(np.round(np.exp(high) / grid) * grid, np.maximum(open_, close))
    low = np.minimum(np.round(np.exp(low) / grid) * grid, np.minimum(open_, close))
    return open_, high, low, close


def _volume(contract: Contract, volatility: Array, in_day: npt.NDArray[np.int64], random: np.random.Generator) -> Array:
    """Contracts traded per bar, at least 1: more when prices move, and at the same hours."""
    usual = contract.annual_volatility / np.sqrt(_YEAR_BARS)
    busy = 0.4 + np.exp(-(((in_day - 170) / 45) ** 2))
    noise = np.exp(0.4 * random.standard_normal(len(volatility)))
    traded: Array = np.round(contract.mean_volume * busy * (volatility / usual) ** 0.7 * noise)
    return np.maximum(1.0, traded)


def _calendar(bar: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.datetime64], dict[str, Array]]:
    """Times in UTC on weekdays, and what is known of them beforehand."""
    day, in_day = np.divmod(bar, DAY_BARS)
    week, weekday = np.divmod(day, 5)
    minute = in_day * BAR_MINUTES
    time = _FIRST_MONDAY + ((week * 7 + weekday) * 24 * 60 + minute).astype("timedelta64[m]")
    month_day = (time.astype("datetime64[D]") - time.astype("datetime64[M]")).astype(np.float64)
    columns = (
        *_circle(minute / (24 * 60)),
        *_circle(weekday / 5),
        *_circle(month_day / 31),
        minute.astype(np.float64),
        (DAY_BARS * BAR_MINUTES - minute).astype(np.float64),
        (_CONTRACT_DAYS - 1 - day % _CONTRACT_DAYS).astype(np.float64),
        (np.minimum(in_day, DAY_BARS - 1 - in_day) < _HALF_HOUR_BARS).astype(np.float64),
    )
    return time, dict(zip(KNOWN, columns, strict=True))


def _circle(turn: Array) -> tuple[Array, Array]:
    return np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)
