"""The forms of a selection network, without torch: what settings and models both have to know."""

from typing import Literal, get_args

SelectionForm = Literal["tabulated", "exact"]
"""Whether each variable's GRN is computed at knots and interpolated, or at every row."""

SELECTION_FORMS: tuple[str, ...] = get_args(SelectionForm)

KNOTS = 65
"""Knots of a real variable's table unless told otherwise (docs/decisions/040)."""

LEAST_KNOTS = 3

_TOGETHER = {"tabulated": 32, "exact": 4}
"""On a CPU: the tensors of one chunk stay in its cache."""

_TOGETHER_ON_A_GPU = {"tabulated": 128, "exact": 32}
"""On a GPU each operator of a chunk is a kernel to launch, so there are few chunks (docs/decisions/047)."""


def variables_together(form: str, chunk: int | None, device: str = "cpu") -> int:
    """Return how many variables a selection network computes together: `chunk`, or what suits form and device.

    Args:
        form: of the network.
        chunk: what is set; None where nothing is.
        device: type of the device as torch names it; all but "cpu" count as a GPU.

    Raises:
        ValueError: there is no such form.
    """
    if form not in _TOGETHER:
        raise ValueError(f"selection is {form!r}: it must be one of {', '.join(SELECTION_FORMS)}")
    suited = _TOGETHER if device == "cpu" else _TOGETHER_ON_A_GPU
    return suited[form] if chunk is None else chunk
