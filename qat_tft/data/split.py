"""Training, validation and test part: two instants in time, the same for all series."""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

import numpy as np
import torch

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
    """Rows before ``validation_from`` train, those before ``test_from`` validate, the rest tests.

    A cut is one instant for all series, so that no series shows the others' future in training. The instants
    count as ``Panel.time`` does. A window belongs to the part that holds all its target rows; its history may
    reach back into earlier parts. Windows whose targets lie on both sides of a cut belong to no part.
    """

    validation_from: int
    test_from: int

    def __post_init__(self) -> None:
        if self.validation_from > self.test_from:
            raise ConfigError(
                "validation_from lies after test_from", next_step="Name the earlier time as validation_from."
            )

    @classmethod
    def by_fraction(cls, panel: Panel, validation: float = 0.15, test: float = 0.15) -> "Split":
        """Cut so that the last distinct times of the panel test and those before them validate.

        Args:
            panel: the data.
            validation: share of the distinct times that validates, 0 to below 1.
            test: share that tests, 0 to below 1.

        Raises:
            ConfigError: a share out of range, or nothing left for training.
        """
        for name, share in (("validation", validation), ("test", test)):
            if not 0 <= share < 1:
                raise ConfigError(f"the {name} fraction is {share}", allowed="0 to below 1")
        if validation + test >= 1:
            raise ConfigError(
                f"validation {validation} and test {test} leave nothing for training",
                allowed="fractions with a sum below 1",
            )
        times = torch.unique(panel.time)  # sorted
        count = len(times)
        test_at = count - round(count * test)
        validation_at = max(1, test_at - round(count * validation))
        end = int(times[-1]) + 1
        return cls(*(int(times[at]) if at < count else end for at in (validation_at, max(validation_at, test_at))))

    @classmethod
    def by_time(
        cls, panel: Panel, validation_from: str | int | date, test_from: str | int | date | None = None
    ) -> "Split":
        """Cut at these times: ISO 8601 text (UTC where it names no zone), dates, or steps.

        Without ``test_from`` there is no test part.

        Raises:
            ConfigError: not a time of the panel's kind, or no row before ``validation_from``.
        """
        cuts = [
            _parsed(panel, name, value)
            for name, value in (("validation_from", validation_from), ("test_from", test_from))
            if value is not None
        ]
        first, last = int(panel.time.min()), int(panel.time.max())
        if cuts[0] <= first:
            raise ConfigError(
                f"validation_from {panel.time_text(cuts[0])} leaves no row for training",
                where=panel.source,
                allowed=f"after {panel.time_text(first)}; the data end at {panel.time_text(last)}",
            )
        return cls(cuts[0], cuts[1] if len(cuts) > 1 else max(last + 1, cuts[0]))

    def bounds(self, part: Part) -> tuple[int, int]:
        """First instant of a part and the one at which the next begins."""
        match part:
            case Part.TRAIN:
                return _FIRST, self.validation_from
            case Part.VALIDATION:
                return self.validation_from, self.test_from
            case Part.TEST:
                return self.test_from, _LAST


def _parsed(panel: Panel, name: str, value: str | int | date) -> int:
    try:
        return panel.parse_time(value)
    except ValueError:
        allowed = "a whole number" if panel.time_kind == "step" else "ISO 8601, such as 2015-12-31 or 2015-12-31T18:00"
        raise ConfigError(
            f"{name} is {value!r}",
            where=panel.source,
            allowed=f"{allowed}; the data reach from {panel.time_text(int(panel.time.min()))} "
            f"to {panel.time_text(int(panel.time.max()))}",
        ) from None
