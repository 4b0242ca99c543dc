"""`qat-tft` as one rank that keeps count of its steps, of which rank 1 is killed once, in the middle of a step.

    torchrun ... sides/rank_that_dies.py COUNTS STEP train ...

Rank 0 appends a line to COUNTS for every step that it has made.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from qat_tft.cli.app import main
from qat_tft.launch import launched
from qat_tft.training.steps.step import TrainingStep

COUNTS, STEP, WORDS = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def watch() -> None:
    """Count the steps of rank 0, and kill rank 1 in one of those that were made before any restart."""
    make, accumulate, begun = TrainingStep.__call__, TrainingStep._accumulate, iter(range(1, 10**9))
    place = launched()

    def counted(self: TrainingStep, *arguments: Any, **named: Any) -> Any:
        made = make(self, *arguments, **named)
        with open(COUNTS, "a") as file:
            file.write(f"{named['place']}\n")
        return made

    def dying(self: TrainingStep, *arguments: Any) -> Any:
        if next(begun) == STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return accumulate(self, *arguments)

    if place.is_first:
        TrainingStep.__call__ = counted  # type: ignore[method-assign]
    elif place.restarts == 0 and STEP:
        TrainingStep._accumulate = dying  # type: ignore[method-assign]


watch()
sys.exit(main(WORDS))
