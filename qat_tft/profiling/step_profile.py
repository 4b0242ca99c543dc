"""What training steps of each phase and checkpointing mode take here: measured, beside what the planner simulates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.checkpointing.segments import Mode, choice_name, segments_of
from qat_tft.config.run import RunConfig
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.interleaved import Command, Measured, measure_interleaved
from qat_tft.profiling.step_simulator import StepSimulator
from qat_tft.profiling.synthetic_step import Groups, SyntheticStep
from qat_tft.profiling.worker import Task
from qat_tft.runs.build import accelerator_for

STEPS = 3
"""Steps that are timed in each process, after a first one."""

_MIB = 2**20


class Row(NamedTuple):
    """What one row is about: a phase, "fp32" or "qat", and the segments that are recomputed."""

    kind: str
    segments: frozenset[str]

    @property
    def mode(self) -> str:
        """The mode, or the segments where they are nobody's mode."""
        return choice_name(self.segments)

    def __str__(self) -> str:
        return f"{self.kind}, {self.mode}"


@dataclass(frozen=True)
class Profile:
    """Steps of every phase in every mode.

    Attributes:
        batch: windows of a step.
        device: "cpu" or "cuda".
        repeats: processes that measured each row.
        simulated: the planner's step of each row.
        measured: the measured steps of each row.
    """

    batch: int
    device: str
    repeats: int
    simulated: dict[Row, Footprint]
    measured: dict[Row, Measured]

    def to_json(self) -> dict[str, Any]:
        """Return plain values; sizes in bytes, None for what was not measured because memory ran out."""
        return {
            "batch_size": self.batch,
            "device": self.device,
            "repeats": self.repeats,
            "rows": [self._plain(row) for row in self.measured],
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return the table, a line for each row whose memory ran out, and what the columns mean."""
        names = ("phase", "mode", "simulated", "live", "process", "/ off", "step s", "/ off")
        table = Table(
            title=f"One training step of {self.batch} windows on {self.device}, MiB and seconds",
            title_justify="left",
            box=box.SIMPLE,
            padding=(0, 1, 0, 0),
        )
        for position, name in enumerate(names):
            table.add_column(name, justify="left" if position < 2 else "right", overflow="fold")
        for row in self.measured:
            table.add_row(row.kind, row.mode, *self._cells(self._plain(row)))
        failures = [
            Text(f"{row}: out of memory ({found.failure})") for row, found in self.measured.items() if found.failure
        ]
        return [table, *failures, Text(_legend(self.device, self.repeats), style="dim")]

    def ratio(self, row: Row, what: Callable[[Measured], float]) -> float | None:
        """Return a row's figure over that of its phase without checkpointing; None where one of them is missing."""
        one, off = self.measured[row], self.measured[row._replace(segments=frozenset())]
        return what(one) / what(off) if one.rounds and off.rounds else None

    def _plain(self, row: Row) -> dict[str, Any]:
        found = self.measured[row]
        return {
            "phase": row.kind,
            "mode": row.mode,
            "simulated_bytes": self.simulated[row].peak,
            "live_bytes": found.live_bytes if found.rounds else None,
            "process_bytes": found.process_bytes if found.rounds else None,
            "process_to_off": self.ratio(row, lambda one: one.process_bytes),
            "step_seconds": found.seconds if found.rounds else None,
            "time_to_off": self.ratio(row, lambda one: one.seconds),
            "out_of_memory": found.failure or None,
        }

    @staticmethod
    def _cells(plain: dict[str, Any]) -> list[str]:
        sizes = [_text(plain[f"{name}_bytes"], 1 / _MIB, ",.0f") for name in ("simulated", "live", "process")]
        times = [_text(plain["step_seconds"], 1, ".3g"), _text(plain["time_to_off"], 1, ".2f")]
        return [*sizes, _text(plain["process_to_off"], 1, ".2f"), *times]


def make_profile(
    config: RunConfig,
    groups: Groups,
    *,
    own: frozenset[str] | None = None,
    repeats: int,
    progress: Callable[[str], None],
) -> Profile:
    """Simulate and measure training steps on random numbers, in every mode and every phase of a configuration.

    Args:
        config: model, batch size, precision, device and whether there is a quantization-aware phase.
        groups: widths of the static, historical and future group.
        own: segments to recompute in one more row.
        repeats: worker processes that measure each row.
        progress: told what is done next.

    Raises:
        ConfigError: the device or number format is not there.
    """
    device = accelerator_for(config.training).device.type
    config = config.with_selection_chunks(device)
    simulator = StepSimulator(config.model, groups, config.quantization, config.training.precision)
    batch = config.training.batch_size
    rows = rows_of(("fp32", "qat") if config.quantization.use_qat else ("fp32",), own)
    simulated = simulate(simulator, rows, batch, progress)
    measured = measure_interleaved(commands(simulator, rows, batch, device), repeats, progress)
    return Profile(batch, device, repeats, simulated, measured)


def rows_of(kinds: Sequence[str], own: frozenset[str] | None = None) -> list[Row]:
    """Return the rows of a profile: each phase in every mode, and with segments of one's own where some are given."""
    choices = dict.fromkeys([*(segments_of(mode) for mode in Mode), *([own] if own else [])])
    return [Row(kind, segments) for kind in kinds for segments in choices]


def simulate(
    simulator: StepSimulator, rows: Sequence[Row], batch: int, progress: Callable[[str], None]
) -> dict[Row, Footprint]:
    """Return the planner's step of each row."""
    simulated = {}
    for row in rows:
        progress(f"Simulating {row}")
        simulated[row] = simulator(row.kind, row.segments, batch)
    return simulated


def commands(step: SyntheticStep, rows: Sequence[Row], batch: int, device: str) -> dict[Row, Command]:
    """Return the commands that measure the rows, each in a worker process."""
    return {
        row: Task.of(step, row.kind, row.segments, windows=batch, device=device, steps=STEPS).command for row in rows
    }


def _text(value: float | None, factor: float, form: str) -> str:
    return "-" if value is None else format(value * factor, form)


def _legend(device: str, repeats: int) -> str:
    process = "what the allocator took from the device" if device == "cuda" else "the growth of the process"
    return (
        f"Simulated and live: tensors at the peak of a step. Process: {process} since its start, model and optimizer "
        f"included. Each row was measured in {repeats} worker process{'es' if repeats > 1 else ''} of {STEPS} timed "
        "steps, with all rows interleaved: largest peak, median time."
    )
