"""Categories and ids as text: one value has one text, in whatever type it was stored."""

from datetime import date
from decimal import Decimal

import numpy as np

NULL_CATEGORY = "<null>"
"""The category that a null in a category column becomes."""
BOOLEANS = {"true": "1", "false": "0"}
"""Texts of truth to those of a number."""


def category_text(value: object) -> str | None:
    """The text of a value; None for a null or NaN.

    A number is its digits, exact whatever their count: 7, 7.0 and a decimal 7.00 are ``7``; true is 1 and false 0, as
    databases without booleans store them. A date is ISO 8601. Text is itself: ``007`` is not ``7``.

    Raises:
        ValueError: a number that is not whole.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else _whole(Decimal(float(value)))
    if isinstance(value, Decimal):
        return _whole(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _whole(number: Decimal) -> str:
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError(f"{number} is not a whole number")
    return str(int(number))
