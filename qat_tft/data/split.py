"""Training, validation and test part: two instants in time, the same for all series."""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

import numpy as np

from qat_tft.data.panel import Panel
from qat_tft.errors import ConfigError

_FIRST, _LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


class Part(StrEnum):
    """A part of the data, in the order of time."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True)
class Split:
    """Rows before ``validation_from`` train, those before ``test_from`` validate, those before ``test_until`` test.

    A cut is one instant for all series, so that no series shows the others' future in training. The instants
    count as ``Panel.time`` does. A window belongs to the part that holds all its target rows; its history may
    reach back into earlier parts. Windows whose targets lie on both sides of a cut belong to no part. Rows at or
    after ``test_until`` belong to no part.
    """

    validation_from: int
    test_from: int
    test_until: int = _LAST

    def __post_init__(self) -> None:
        if self.validation_from > self.test_from:
            raise ConfigError(
                "validation_from is after test_from", next_step="Use the earlier time as validation_from."
            )
        if self.test_from > self.test_until:
            raise ConfigError("test_from is after test_until", next_step="Use the later time as test_until.")

    @classmethod
    def by_fraction(
        cls,
        panel: Panel,
        validation: float = 0.15,
        test: float = 0.15,
        test_until: str | int | date | None = None,
    ) -> "Split":
        """Cut so that the last distinct times before ``test_until`` test and those before them validate.

        Args:
            panel: the data.
            validation: share of the distinct times that validates, 0 to below 1.
            test: share that tests, 0 to below 1.
            test_until: first time after the test; None where the data end it.

        Raises:
            ConfigError: a share out of range, nothing left for training, or not a time of the panel's kind.
        """
        for name, share in (("validation", validation), ("test", test)):
            if not 0 <= share < 1:
                raise ConfigError(f"the {name} fraction is {share}", allowed="0 to below 1")
        if validation + test >= 1:
            raise ConfigError(
                f"validation {validation} and test {test} leave nothing for training",
                allowed="fractions whose sum is below 1",
            )
        times = panel.distinct_times()
        until = _LAST if test_until is None else _parsed(panel, "test_until", test_until)
        times = times[times < until]
        if not len(times):
            raise _no_training_row(panel, "test_until", until)
        count = len(times)
        test_at = count - round(count * test)
        validation_at = max(1, test_at - round(count * validation))
        end = int(times[-1]) + 1
        first, second = (int(times[at]) if at < count else end for at in (validation_at, max(validation_at, test_at)))
        return cls(first, second, until)

    @classmethod
    def by_time(
        cls,
        panel: Panel,
        validation_from: str | int | date,
        test_from: str | int | date | None = None,
        test_until: str | int | date | None = None,
    ) -> "Split":
        """Cut at these times: ISO 8601 text (UTC where it names no zone), dates, or steps.

        Without ``test_from`` there is no test part; without ``test_until`` it reaches to the end of the data.

        Raises:
            ConfigError: not a time of the panel's kind, or in the wrong order.
        """
        cuts = {"validation_from": validation_from, "test_from": test_from, "test_until": test_until}
        instants = {name: _parsed(panel, name, value) for name, value in cuts.items() if value is not None}
        instants.setdefault("test_from", max(int(panel.time.max()) + 1, instants["validation_from"]))
        return cls(**instants)

    def require_training_rows(self, panel: Panel) -> None:
        """Refuse a panel of which no row lies in the training part.

        Raises:
            ConfigError: there is none; the message names the times that the panel has.
        """
        if self.validation_from <= int(panel.time.min()):
            raise _no_training_row(panel, "validation_from", self.validation_from)

    def bounds(self, part: Part) -> tuple[int, int]:
        """First instant of a part and the one at which the next begins."""
        match part:
            case Part.TRAIN:
                return _FIRST, self.validation_from
            case Part.VALIDATION:
                return self.validation_from, self.test_from
            case Part.TEST:
                return self.test_from, self.test_until

    def place(self, part: Part, panel: Panel) -> str:
        """Say where a part lies: ``at or after 2015-06-01T00:00:00 and before 2015-07-01T00:00:00``."""
        since, until = self.bounds(part)
        after = f"at or after {panel.time_text(since)}" if since != _FIRST else ""
        before = f"before {panel.time_text(until)}" if until != _LAST else ""
        return " and ".join(text for text in (after, before) if text)


def _no_training_row(panel: Panel, name: str, instant: int) -> ConfigError:
    first, last = panel.time_text(int(panel.time.min())), panel.time_text(int(panel.time.max()))
    return ConfigError(
        f"{name} {panel.time_text(instant)} leaves no row for training",
        where=panel.source,
        allowed=f"after {first}; the data end at {last}",
    )


def _parsed(panel: Panel, name: str, value: str | int | date) -> int:
    try:
        return panel.parse_time(value)
    except ValueError:
        allowed = "a whole number" if panel.time_kind == "step" else "ISO 8601, such as 2015-12-31 or 2015-12-31T18:00"
        raise ConfigError(
            f"{name} is {value!r}",
            where=panel.source,
            allowed=f"{allowed}; the data run from {panel.time_text(int(panel.time.min()))} "
            f"to {panel.time_text(int(panel.time.max()))}",
        ) from None
