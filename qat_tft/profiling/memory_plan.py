"""The table of a plan: what each mode takes and costs, which batches fit, and the cheapest mode for each budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.checkpointing.budget import Budget
from qat_tft.checkpointing.segments import Mode
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.mode_search import MOST_WINDOWS, Workload, advice, largest_batches, remembering

ESTIMATE = (
    "Simulated: tensors of a step, without kernels' scratch space and the CUDA context. Extra time is an estimate: "
    "the share of matrix-product work that is recomputed."
)


@dataclass(frozen=True)
class PlanRow:
    """One phase in one mode.

    Attributes:
        kind: "fp32" or "qat".
        mode: the checkpointing mode.
        footprint: of a step on the planned batch.
        extra_time: share of the work that is done again (an estimate).
        largest_batch: largest number of windows of a step, in the order of the budgets; 0 where none fits.
    """

    kind: str
    mode: Mode
    footprint: Footprint
    extra_time: float
    largest_batch: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Every phase in every mode, and the mode to take for each budget.

    Attributes:
        batch: windows of the planned step.
        budgets: what was planned for.
        rows: phases, and within each the modes.
        cheapest: for each budget the mode with the least extra time that fits in all phases; None where none does.
        advice: for each budget what would fit where nothing does; empty where something does.
    """

    batch: int
    budgets: tuple[Budget, ...]
    rows: tuple[PlanRow, ...]
    cheapest: tuple[Mode | None, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values; sizes in bytes."""
        names = [budget.text for budget in self.budgets]
        return {
            "batch_size": self.batch,
            "budgets": {budget.text: budget.size for budget in self.budgets},
            "rows": [
                {
                    "phase": row.kind,
                    "mode": str(row.mode),
                    **row.footprint.to_json(),
                    "extra_time_estimated": row.extra_time,
                    "largest_batch": dict(zip(names, row.largest_batch, strict=True)),
                }
                for row in self.rows
            ],
            "cheapest_mode": dict(zip(names, self.cheapest, strict=True)),
            "advice": {name: words for name, words in zip(names, self.advice, strict=True) if words},
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return the memory of a step, the batches that fit, and a sentence for each budget."""
        return [self._memory_table(), self._batch_table(), *self._sentences(), Text(ESTIMATE, style="dim")]

    def _memory_table(self) -> Table:
        parts = ("peak", "weights", "gradients", "optimizer", "activations", "temporaries")
        table = _table(f"One training step of {self.batch} windows at its peak, MiB", ("peak", *parts[1:5], "rest"))
        for row in self.rows:
            sizes = row.footprint.to_json()
            table.add_row(row.kind, row.mode, *(_mebibytes(sizes[part]) for part in parts))
        return table

    def _batch_table(self) -> Table:
        table = _table("Largest batch that fits", ("extra time", *(budget.text for budget in self.budgets)))
        for row in self.rows:
            batches = (f"{n:,}" + ("" if n < MOST_WINDOWS else "+") for n in row.largest_batch)
            table.add_row(row.kind, row.mode, f"{row.extra_time:+.0%}", *batches)
        return table

    def _sentences(self) -> list[Text]:
        return [
            Text(
                f"{budget.text}: mode {mode} is the fastest that fits {self.batch} windows"
                if mode
                else f"{budget.text}: no mode fits {self.batch} windows. {words}"
            )
            for budget, mode, words in zip(self.budgets, self.cheapest, self.advice, strict=True)
        ]


def make_plan(workload: Workload, budgets: Sequence[Budget], *, progress: Callable[[str], None]) -> Plan:
    """Return the plan of a workload; it takes a few seconds of simulation for each row.

    Args:
        workload: what is to be trained.
        budgets: amounts of memory, at least one.
        progress: told which row is being simulated.
    """
    workload = remembering(workload)
    rows = []
    for kind in workload.kinds:
        for mode in Mode:
            progress(f"Simulating {kind}, mode {mode}")
            rows.append(_row(workload, kind, mode, budgets))
    cheapest = tuple(_cheapest(workload, budget) for budget in budgets)
    return Plan(
        workload.batch,
        tuple(budgets),
        tuple(rows),
        cheapest,
        tuple("" if mode else f"{advice(workload, budget)}." for mode, budget in zip(cheapest, budgets, strict=True)),
    )


def _row(workload: Workload, kind: str, mode: Mode, budgets: Sequence[Budget]) -> PlanRow:
    one = workload.only(kind)
    fits = largest_batches(lambda batch: one.peak(mode, batch), workload.batch, [budget.size for budget in budgets])
    largest = tuple(fits[budget.size] for budget in budgets)
    return PlanRow(kind, mode, one.footprint(kind, mode), one.extra_time(mode), largest)


def _cheapest(workload: Workload, budget: Budget) -> Mode | None:
    fitting = [mode for mode in Mode if workload.peak(mode, workload.batch) <= budget.size]
    return min(fitting, key=workload.extra_time, default=None)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.{0 if size >= 10 * 2**20 or not size else 2}f}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in ("phase", "mode"):
        table.add_column(name)
    for name in columns:
        table.add_column(name, justify="right")
    return table
