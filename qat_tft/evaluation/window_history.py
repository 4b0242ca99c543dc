"""What a window's own history tells: the target in it, and its last season repeated.

Legend: T history, F horizon, Vh columns of the historical group.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from qat_tft.schema import Schema

Array = npt.NDArray[np.floating]


def target_history(schema: Schema, historical: torch.Tensor) -> Array:
    """Return the target [steps] of a raw history [T, Vh], without the steps that are padding."""
    present = schema.group("historical").present
    rows = historical if present is None else historical[historical[:, present] != 0]
    return cast(Array, rows[:, 0].numpy())


def season_repeated(history: Array, horizon: int, season: int) -> Array:
    """Return the last season of a history [steps] repeated [F]; its last value where it is shorter than a season."""
    last = history[-season:] if len(history) >= season else history[-1:]
    return np.resize(last, horizon)
