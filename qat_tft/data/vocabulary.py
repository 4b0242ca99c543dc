"""The values of a category column and their codes; code 0 stands for every value not seen in training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_tft.data.category_text import BOOLEANS, NULL_CATEGORY

UNKNOWN = 0


@dataclass(frozen=True)
class Vocabulary:
    """Category values of one column; ``values[i]`` has the code ``i + 1``.

    Where they are those of a flag, ``true`` is read as ``1`` and ``false`` as ``0``, and the other way round.
    """

    column: str
    values: tuple[str, ...]

    @classmethod
    def fit(cls, column: str, seen: Iterable[str]) -> "Vocabulary":
        """The distinct values among those seen in the training rows, sorted."""
        return cls(column, tuple(sorted(set(seen))))

    @property
    def size(self) -> int:
        """Number of codes, the unknown one included."""
        return len(self.values) + 1

    @cached_property
    def _codes(self) -> dict[str, int]:
        codes = {value: code for code, value in enumerate(self.values, start=UNKNOWN + 1)}
        for spellings in (BOOLEANS, {number: word for word, number in BOOLEANS.items()}):
            if codes.keys() - {NULL_CATEGORY} <= set(spellings):  # a flag: the words and the numbers mean the same
                codes |= {other: codes[one] for one, other in spellings.items() if one in codes}
        return codes

    def encode(self, values: Sequence[str]) -> npt.NDArray[np.int64]:
        """Codes of these values, int64 of the same length; 0 where a value is unknown."""
        return np.fromiter((self._codes.get(value, UNKNOWN) for value in values), dtype=np.int64, count=len(values))

    def to_json(self) -> list[str]:
        """The values in the order of their codes; the column is the key under which they are kept."""
        return list(self.values)

    @classmethod
    def from_json(cls, column: str, values: Any) -> "Vocabulary":
        """The inverse of ``to_json``. ValueError if it is no list of distinct texts."""
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"the vocabulary of '{column}' is not a list of texts")
        if len(set(values)) != len(values):
            raise ValueError(f"the vocabulary of '{column}' holds a value twice")
        return cls(column, tuple(values))
