"""Measures several things interleaved, each time in a worker process, and collects the measurements of each.

Interleaving makes what disturbs a machine for a while, such as another program, affect all of them alike. Only one
process runs at a time, so each has the memory that it would have in training.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from qat_tft.profiling.measurement import Measurement, read_answer

Key = TypeVar("Key", bound=Hashable)
Command = Sequence[str]

_KILLED = "the system killed the process, as it does when memory runs out"


@dataclass(frozen=True)
class Measured:
    """All rounds of one thing.

    Attributes:
        rounds: the measurement of each round, as many as there were before memory ran out.
        failure: what was said when memory ran out; empty where it sufficed.
    """

    rounds: tuple[Measurement, ...] = ()
    failure: str = ""

    @property
    def seconds(self) -> float:
        """Median of a step, over all rounds."""
        return statistics.median(second for one in self.rounds for second in one.seconds)

    @property
    def process_bytes(self) -> int:
        """The largest peak of the rounds."""
        return max(one.process_bytes for one in self.rounds)

    @property
    def live_bytes(self) -> int:
        """The largest peak of live tensors."""
        return max(one.live_bytes for one in self.rounds)

    def after(self, outcome: Measurement | str) -> Measured:
        """Return all rounds with one more; a text is a failure, and what was measured before it does not count."""
        return Measured(failure=outcome) if isinstance(outcome, str) else Measured((*self.rounds, outcome))


def measure_interleaved(
    commands: Mapping[Key, Command], rounds: int, progress: Callable[[str], None]
) -> dict[Key, Measured]:
    """Return what each command measured; one that runs out of memory does not get another round.

    Args:
        commands: each writes the answer of a measurement (`qat_tft.profiling.measurement.answer`).
        rounds: runs of each command, at least one.
        progress: told what is measured next; keys are shown as text.

    Raises:
        RuntimeError: a process failed for another reason than memory; the message is what it wrote.
    """
    measured = {key: Measured() for key in commands}
    for number in range(1, rounds + 1):
        for key, command in commands.items():
            if not measured[key].failure:
                progress(f"Measuring {key}, round {number} of {rounds}")
                measured[key] = measured[key].after(in_worker(command))
    return measured


def in_worker(command: Command) -> Measurement | str:
    """Run a command that measures; return its measurement, or what was said when memory ran out.

    Raises:
        RuntimeError: it failed for another reason.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return _KILLED
    if done.returncode:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}:\n{done.stderr}")
    return read_answer(done.stdout)
