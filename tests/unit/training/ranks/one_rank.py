"""One of two ranks; run by test_ranks.py in a process of its own, after the other one.

Arguments: the scenario, folder of its files, rank, Parquet file, and options of the scenario as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

SCENARIO, FOLDER, RANK, DATA, OPTIONS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
os.environ.update(
    {
        "RANK": str(RANK),
        "LOCAL_RANK": str(RANK),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # they meet through a file
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        **json.loads(OPTIONS).get("environment", {}),
    }
)

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import distributed  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from settings import SCHEMA, settings, watched_steps  # noqa: E402

from qat_tft.cli.app import main  # noqa: E402
from qat_tft.quantization.ranges import ActivationQuantizer  # noqa: E402
from qat_tft.training import job  # noqa: E402
from qat_tft.training.steps.step import TrainingStep  # noqa: E402

torch.set_num_threads(1)


def trained(folder: str, options: dict[str, Any]) -> None:
    """Train, and keep what every step has left in every rank."""
    with watched_steps() as kept:
        job.train(settings(DATA, **options), SCHEMA, runs_dir=FOLDER / folder, name="run")
    save_file(kept, str(FOLDER / f"{folder}.{RANK}.safetensors"))


def failing_in(call: int, *, killed: bool) -> None:
    """Let rank 1 run out of memory, or be killed, in the middle of a forward pass where ranges are observed."""
    forward, calls = ActivationQuantizer.forward, iter(range(10**9))

    def failing(self: ActivationQuantizer, x: torch.Tensor, *part: Any) -> torch.Tensor:
        if self.training and self.phase == "qat" and next(calls) == call:
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, x, *part)

    if RANK == 1:
        ActivationQuantizer.forward = failing  # type: ignore[method-assign]


def killed_in(step: int, rank: int, how: signal.Signals) -> None:
    """Let a rank get a signal in the middle of a step."""
    accumulate, calls = TrainingStep._accumulate, iter(range(1, 10**9))

    def dying(self: TrainingStep, *arguments: Any) -> torch.Tensor:
        if next(calls) == step:
            os.kill(os.getpid(), how)
        return accumulate(self, *arguments)

    if rank == RANK:
        TrainingStep._accumulate = dying  # type: ignore[method-assign]


def poisoned(column: int) -> None:
    """Let rank 1 find a number that is not finite in its windows."""
    accumulate, calls = TrainingStep._accumulate, iter(range(10**9))

    def poison(self: TrainingStep, part: Any, told: Any) -> torch.Tensor:
        if next(calls) == 1:
            part.raw.historical[0, 3, column] = torch.nan
        return accumulate(self, part, told)

    if RANK == 1:
        TrainingStep._accumulate = poison  # type: ignore[method-assign]


meeting = distributed.FileStore(str(FOLDER / f"meeting.{SCENARIO}"), 2)
distributed.init_process_group("gloo", store=meeting, rank=RANK, world_size=2, timeout=timedelta(seconds=60))
given = json.loads(OPTIONS)
if SCENARIO == "train":
    for folder, options in given["runs"].items():
        trained(folder, options)
elif SCENARIO == "failing":
    for folder, killed in given["killed"].items():
        failing_in(given["call"], killed=killed)
        trained(folder, {})
else:
    if "killed" in given:
        killed_in(given["killed"], given["rank"], signal.Signals[given["how"]])
    if "poisoned" in given:
        poisoned(given["poisoned"])
    words = [str(word) for word in given["words"]] + (given["words_of_1"] if RANK else [])
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a group that lost a rank cannot be left
