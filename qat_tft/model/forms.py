"""The forms of a selection network, without torch: what settings and models both have to know."""

from typing import Literal, get_args

SelectionForm = Literal["tabulated", "exact"]
"""Whether each variable's GRN is computed at knots and interpolated, or at every row."""

SELECTION_FORMS: tuple[str, ...] = get_args(SelectionForm)

KNOTS = 65
"""Knots of a real variable's table unless told otherwise (docs/decisions/040)."""

LEAST_KNOTS = 3

_TOGETHER = {"tabulated": 32, "exact": 4}


def variables_together(form: str, chunk: int | None) -> int:
    """Return how many variables a selection network of this form computes together: `chunk`, or what suits the form.

    Raises:
        ValueError: there is no such form.
    """
    if form not in _TOGETHER:
        raise ValueError(f"selection is {form!r}: it must be one of {', '.join(SELECTION_FORMS)}")
    return _TOGETHER[form] if chunk is None else chunk
