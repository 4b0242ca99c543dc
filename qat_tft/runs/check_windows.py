"""The raw windows that a run keeps for its check, and whether what a file holds are such windows.

N windows, V columns of a group.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from qat_tft.config.model import ModelConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.windows import Batch
from qat_tft.schema import Group, GroupSize


def windows_of(tensors: Mapping[str, Tensor], shape: ModelConfig, preprocessing: Preprocessing) -> Batch:
    """Return tensors as windows that a model of this shape can take.

    Args:
        tensors: as `Batch._asdict` gives them; a missing target is NaN, and nothing else is.
        shape: history and horizon.
        preprocessing: knows how wide each group is, and which codes there are.

    Raises:
        ValueError: a tensor is missing, unknown, of another type or shape, or holds what no window can.
    """
    try:
        windows = Batch(**tensors)
    except TypeError as problem:
        raise ValueError(f"not the windows of this version: {problem}") from None
    count = len(windows.series) if windows.series.ndim else 0
    if not count:
        raise ValueError("there is no window")
    sizes = preprocessing.group_sizes()
    leading = {"static": (count,), "historical": (count, shape.history), "future": (count, shape.horizon)}
    expected = {name: (*leading[name], size.total) for name, size in zip(leading, sizes, strict=True)}
    _require_like("target", windows.target, (count, shape.horizon), torch.float32)
    _require_like("series", windows.series, (count,), torch.int64)
    for group, size in zip(preprocessing.schema.groups, sizes, strict=True):
        values: Tensor = getattr(windows, group.name)
        _require_like(group.name, values, expected[group.name], torch.float32)
        _require_values(group, values, size)
    if bool(torch.isinf(windows.target).any()):
        raise ValueError("target of the check windows holds infinity")
    if not bool(((windows.series >= 0) & (windows.series <= len(preprocessing.series))).all()):
        raise ValueError("series of the check windows holds a code of no series")
    return windows


def _require_like(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} of the check windows is {tensor.dtype} of shape {tuple(tensor.shape)}, not {dtype} of {shape}"
        )


def _require_values(group: Group, values: Tensor, size: GroupSize) -> None:
    broken = ~torch.isfinite(values)
    if bool(broken.any()):
        column = group.columns[int(torch.nonzero(broken)[0, -1])]
        raise ValueError(f"column '{column}' of the check windows ({group.name}) holds NaN or infinity")
    codes = values[..., size.real :]
    if not bool(((codes >= 0) & (codes < torch.tensor(size.cardinalities)) & (codes == codes.round())).all()):
        raise ValueError(f"{group.name} of the check windows holds a code of no category")
