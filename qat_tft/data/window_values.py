"""What windows must hold before a model reads them: a number everywhere. Rows outside of windows do not matter.

B windows, V columns of a group.
"""

import torch

from qat_tft.data.panel import Panel
from qat_tft.data.windows import Batch
from qat_tft.errors import DataError, Way
from qat_tft.schema import Group


def require_values(panel: Panel, batch: Batch, first: torch.Tensor) -> None:
    """Refuse a real column that has no finite value where the model reads one and nothing stands in for it.

    A target to forecast may be missing, but not infinite.

    Args:
        panel: where the windows come from; one whose rows were all checked has no such value.
        batch: the windows, raw.
        first: int64 [B], row in which each window begins.

    Raises:
        DataError: there is one; the message names column, time and series of the first.
    """
    if panel.checked:
        return
    history = batch.historical.shape[1]
    begins = {"static": history - 1, "historical": 0, "future": history}  # rows from the first one of a window
    groups = zip(panel.schema.groups, (batch.static.unsqueeze(1), batch.historical, batch.future), strict=True)
    for group, values in groups:
        broken = ~torch.isfinite(values[..., : len(group.real)])
        if bool(broken.any()):
            window, step, place = torch.nonzero(broken)[0].tolist()
            begin = panel.stretches[panel.stretch_at(first[window] + history - 1)]  # what lies before is padded
            row = torch.maximum(first[window] + begins[group.name] + step, begin)
            raise _refusal(panel, group, group.real[place], float(values[window, step, place]), row)
    if bool(batch.target.isinf().any()):
        window, step = torch.nonzero(batch.target.isinf())[0].tolist()
        row = first[window] + history + step
        raise _refusal(panel, panel.schema.group("historical"), panel.schema.target, torch.inf, row)


def _refusal(panel: Panel, group: Group, column: str, value: float, row: torch.Tensor) -> DataError:
    state = "null or NaN" if value != value else "infinite, or too large for float32"
    series = panel.series_name(int(panel.series_at(row)))
    where = "in every row of" if group.name == "static" else f"at {panel.time_text(int(panel.time[row]))} in"
    return DataError(
        f"column '{column}' is {state} {where} {series}, where a forecast needs it",
        where=panel.source,
        allowed="a finite number in every row that a forecast is made from",
        next_step="Give it a value there",
        ways=[Way("--missing", f"fill it with --missing {column}=forward")],
    )
