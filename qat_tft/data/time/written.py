"""Times in the type and form that a file has them in, so that what is written can be joined with what was read."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qat_tft.data.reading.columns import in_type, is_text
from qat_tft.data.time.kind import TimeKind

_CLOCK = re.compile(r"(?P<gap>[T ])\d\d:\d\d(?P<seconds>:\d\d)?(?P<fraction>\.\d+)?(?P<zone>Z|[+-][\d:]+)?$")
_UNITS = ("D", "m", "s", "ms", "us", "ns")  # of numpy, from the coarsest


@dataclass(frozen=True)
class WrittenTimes:
    """How a file writes its times.

    Attributes:
        type: of the column's values.
        example: one of its values where they are text.
    """

    type: pa.DataType
    example: str = ""

    def array(self, times: npt.NDArray[np.int64], kind: TimeKind) -> pa.Array:
        """Times as ``Panel.time`` counts them, in this type; in one that holds them where this one does not."""
        if is_text(self.type):
            return pa.array(self._texts(times), pa.string()).cast(self.type)
        numbers = pa.array(times)
        if kind is not TimeKind.STEP:
            numbers = numbers.cast(pa.timestamp("ns", tz=getattr(self.type, "tz", None)))
        return in_type(numbers, self.type)

    def _texts(self, times: npt.NDArray[np.int64]) -> list[str]:
        found = _CLOCK.search(self.example)
        instants = times.astype("datetime64[ns]")
        unit = max(_unit(found), _coarsest(instants), key=_UNITS.index)
        texts = np.datetime_as_string(instants.astype(f"datetime64[{unit}]")).tolist()
        finish = _finish(found)
        return [finish(text) for text in texts]


def _unit(found: re.Match[str] | None) -> str:
    if found is None:
        return "D"
    if found["fraction"]:
        return _UNITS[2 + -(-(len(found["fraction"]) - 1) // 3)]
    return "s" if found["seconds"] else "m"


def _coarsest(instants: npt.NDArray[np.datetime64]) -> str:
    """The coarsest unit that these instants are whole numbers of."""
    return next(unit for unit in _UNITS if bool((instants.astype(f"datetime64[{unit}]") == instants).all()))


def _finish(found: re.Match[str] | None) -> Callable[[str], str]:
    """What makes a text of numpy one of the file: what stands between day and clock, and how UTC is written."""
    if found is None:
        return str
    zone, gap = found["zone"] or "", found["gap"]
    utc = zone if zone in ("", "Z") else "+00:00" if ":" in zone else "+0000"[: len(zone)]
    return lambda text: text.replace("T", gap) + utc
