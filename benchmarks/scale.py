"""What several ranks gain, what they must not change, and what a training step would ask of a GPU.

    python benchmarks/scale.py [--json] [--rounds N]

One process alone and two ranks, each with one thread and 64 windows of the shape W2 a step, checkpointing full, make
steps in turn. A launcher's job of two ranks loses rank 1 in the middle of a step and goes on. Operators are counted in
the chunks that a GPU gets; nothing here runs on one. Takes about ten minutes on two cores, which should be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from remote import measure as remote_figures
from remote import served, write_rows
from sides.figure_table import table_of
from sides.operators import operators_on_a_gpu
from sides.process import BENCHMARKS
from sides.rank import KNOWN, OBSERVED

ROWS = 6_000
STEPS_A_ROUND = 6
EQUAL_STEPS = 20
REMOTE_ROWS = 1_000_000
KEYS = {
    "speedup_2_ranks": "samples a second of two ranks over those of one, asked: >= 1.8",
    "speedup_of_strangers": "the same of two that share nothing and wait, after each step, for the slower one",
    "range_difference": "largest difference of a range between ranks in 20 steps, asked: 0",
    "loss_difference": "largest relative difference of a loss from one process that accumulates, asked: <= 1e-6",
    "observed_loss_difference": "the same where ranges are observed: of a batch, or of its halves in turn",
    "restart_lost_steps": "steps made again after a killed rank, asked: 0",
    "restart_changed_weights": "weights that differ from those of a run that nobody killed, asked: 0",
    "operators_per_step_gpu_defaults": "operators of a step in a GPU's chunks, asked: <= 1,500 and <= 4,000",
    "host_reads_per_step": "results that the host waits for while a step is made, asked: 0",
    "remote_over_local": "first scan of a million rows over S3 against here, asked: <= 2.0",
    "model_over_measured": "step of two ranks as modelled over as measured, asked: within 15 %",
    "step": "milliseconds of a step and of its parts",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_shape(folder / "w2.parquet")
        figures = {**ranked(rows, arguments.rounds), **restarted(folder, rows)}
        large = write_rows(folder / "rows.parquet", REMOTE_ROWS)
        with served(folder) as address:
            remote = remote_figures(large, address, 5)
    figures["operators_per_step_gpu_defaults"] = operators_on_a_gpu()
    figures["remote_over_local"] = remote["remote_over_local"]
    figures = {key: figures[key] for key in KEYS}
    print(json.dumps(figures, indent=2) if arguments.json else "\n".join(table_of(figures, KEYS)))


def write_shape(path: Path) -> Path:
    """Write rows of the workload's shape: a daily wave and noise."""
    random, hours = np.random.default_rng(0), np.arange(ROWS)
    columns = {"time": hours, "y": np.sin(hours * 2 * np.pi / 24) + 0.3 * random.normal(size=ROWS)}
    columns |= {name: random.normal(size=ROWS).astype(np.float32) for name in (*OBSERVED, *KNOWN)}
    pq.write_table(pa.table(columns), path)
    return path


def ranked(rows: Path, rounds: int) -> dict[str, Any]:
    """Return what one process and two ranks give, asked in turn."""
    with ExitStack() as stack:
        alone, pair, stranger = (stack.enter_context(started(rows, count)) for count in (1, 2, 1))
        seconds: dict[str, list[float]] = {"alone": [], "pair": [], "slower": []}
        for _ in range(rounds):
            seconds["alone"] += alone.ask("timed", kind="fp32", mode="full", count=STEPS_A_ROUND)[0]["seconds"]
            seconds["pair"] += pair.ask("timed", kind="fp32", mode="full", count=STEPS_A_ROUND)[0]["seconds"]
            # Two that do not know each other: what it costs to share a machine, and to wait for one another.
            both = together([alone, stranger], "timed", kind="fp32", mode="full", count=STEPS_A_ROUND)
            seconds["slower"] += map(max, *(answer["seconds"] for answer in both))
        figures = step_figures(seconds, pair)
        figures["host_reads_per_step"] = {kind: alone.ask("reads", kind=kind)[0]["count"] for kind in ("fp32", "qat")}
        return {**figures, **differences(alone, pair)}


def step_figures(seconds: Mapping[str, list[float]], pair: Ranks) -> dict[str, Any]:
    """Return speed, and the step of two ranks as the model of docs/scale.md has it against the measured one."""
    alone, both, slower = (statistics.median(seconds[name]) for name in ("alone", "pair", "slower"))
    summed, met = pair.ask("summed", count=100)[0], pair.ask("met", count=400)[0]
    gradients, meeting = statistics.median(summed["seconds"]), statistics.median(met["seconds"])
    modelled = slower + gradients
    return {
        "speedup_2_ranks": 2 * alone / both,
        "speedup_of_strangers": 2 * alone / slower,
        "model_over_measured": modelled / both,
        "step": {
            "alone": 1e3 * alone,
            "of two ranks": 1e3 * both,
            "of the slower of two strangers": 1e3 * slower,
            "adding up gradients": 1e3 * gradients,
            "one meeting": 1e3 * meeting,
            "gradients, MB": summed["bytes"] / 1e6,
        },
    }


def differences(alone: Ranks, pair: Ranks) -> dict[str, Any]:
    """Return how far losses and ranges of two ranks are from those of one process, and from each other."""
    losses: dict[str, float] = {}
    ranges = 0.0
    for kind in ("fp32", "frozen", "learned", "qat"):
        for mode in ("off", "full"):
            one = alone.ask("trained", kind=kind, mode=mode, steps=EQUAL_STEPS, halves=True)[0]
            two = pair.ask("trained", kind=kind, mode=mode, steps=EQUAL_STEPS, halves=False)
            pairs = zip(one["losses"], two[0]["losses"], strict=True)
            losses[f"{kind} {mode}"] = max(abs(first - second) / abs(first) for first, second in pairs)
            ends = zip(np.ravel(two[0]["ranges"]), np.ravel(two[1]["ranges"]), strict=True)
            ranges = max([ranges, *(abs(first - second) for first, second in ends)])
    observed = {name: losses.pop(name) for name in list(losses) if name.startswith("qat")}
    return {
        "range_difference": ranges,
        "loss_difference": losses,
        "observed_loss_difference": observed,
    }


def restarted(folder: Path, rows: Path) -> dict[str, Any]:
    """Return how many steps are made again where rank 1 is killed, and how many weights differ in the end."""
    from qat_tft.runs import files

    counts, weights = {}, {}
    for name, killed_in in (("whole", 0), ("killed", 25)):
        counted = folder / f"{name}.counts"
        words = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("--max-restarts", "1", str(BENCHMARKS / "sides" / "rank_that_dies.py"), str(counted), str(killed_in)),
            *("train", "--parquet-file", str(rows), "--time", "time", "--target", "y", "--known", ",".join(KNOWN)),
            *("--observed", ",".join(OBSERVED), "--hidden", "16", "--history", "48", "--horizon", "12"),
            *("--epochs", "1", "--batches-per-epoch", "40", "--runs-dir", str(folder / name), "--name", "run"),
        ]
        subprocess.run(words, check=True, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        counts[name] = len(counted.read_text().splitlines())
        weights[name] = files.read_tensors(folder / name / "run" / "fp32.safetensors", kind="fp32")[0]
    changed = [name for name, tensor in weights["whole"].items() if not tensor.equal(weights["killed"][name])]
    return {
        "restart_lost_steps": counts["killed"] - counts["whole"],
        "restart_changed_weights": len(changed),
    }


class Ranks:
    """Processes that are asked the same at once."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def begin(self, what: str, **arguments: Any) -> None:
        """Ask, and do not wait."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"ask": what, **arguments}) + "\n")
            process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        """Return the answer of each."""
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return answers

    def ask(self, what: str, **arguments: Any) -> list[dict[str, Any]]:
        """Return the answer of each to a request."""
        self.begin(what, **arguments)
        return self.answers()


def together(those: list[Ranks], what: str, **arguments: Any) -> list[dict[str, Any]]:
    """Return the answers of processes that do not know each other and compute at the same time."""
    for one in those:
        one.begin(what, **arguments)
    return [answer for one in those for answer in one.answers()]


@contextmanager
def started(rows: Path, count: int) -> Iterator[Ranks]:
    """Start so many ranks; they end with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    with ExitStack() as stack:
        processes = []
        for rank in range(count):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **meeting} if count > 1 else {}
            process = subprocess.Popen(
                [sys.executable, "-m", "sides.rank", str(rows)],
                cwd=BENCHMARKS,
                env={**environment(), **place},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield Ranks(processes)


def environment() -> dict[str, str]:
    """Return that of a rank: one thread, and its messages on the loopback interface."""
    lo = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **lo}


if __name__ == "__main__":
    main()
