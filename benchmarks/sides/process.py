"""Starts sides in processes of their own and asks them in turn, so that only one computes at a time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

BENCHMARKS = Path(__file__).resolve().parent.parent

PEERS = {
    "pytorch-forecasting": "sides.peer_pytorch_forecasting",
    "darts": "sides.peer_darts",
    "neuralforecast": "sides.peer_neuralforecast",
}
"""A peer's environment and the module that runs there."""


@dataclass(frozen=True)
class Program:
    """What is started for a side.

    Attributes:
        python: the interpreter of its environment.
        module: the side's module.
        workload: name of the workload.
        options: what the module is asked for.
    """

    python: str
    module: str
    workload: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def ours(cls, workload: str, *, kind: str = "fp32", mode: str = "off", **more: int) -> Self:
        """Return the program that trains qat-tft."""
        return cls(sys.executable, "sides.ours", workload, {"kind": kind, "mode": mode, **more})

    @property
    def command(self) -> list[str]:
        """The command that starts it."""
        return [self.python, "-m", self.module, self.workload, json.dumps(self.options)]


def peer_programs(folder: Path | None, workload: str) -> dict[str, Program]:
    """Return the program of each peer; none without a folder of environments.

    Raises:
        FileNotFoundError: a peer has no environment there.
    """
    if folder is None:
        return {}
    programs = {}
    for name, module in PEERS.items():
        python = folder.absolute() / name / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"{folder} holds no environment of {name}: {python} is missing")
        programs[name] = Program(str(python), module, workload)
    return programs


class Worker:
    """A side's process, which answers one request after the other."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process, self._name = process, name

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            RuntimeError: the process has ended; it has said why on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"ask": what, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the process of {self._name} ended with exit code {self._process.wait()}")
        return dict(json.loads(line))


@contextmanager
def working(program: Program) -> Iterator[Worker]:
    """Run a program; at the end its input is closed, which ends it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        program.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=BENCHMARKS,
        env=environment,
    )
    try:
        yield Worker(process, f"{program.module} {program.workload}")
    finally:
        process.kill()  # it has nothing to save
        process.communicate()


@dataclass(frozen=True)
class Timed:
    """Training steps of one side: the library's version, weights trained, and CPU seconds of each step."""

    version: str
    parameters: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median CPU seconds of a step."""
        return statistics.median(self.seconds)


def timed_steps(programs: Mapping[str, Program], rounds: int) -> dict[str, Timed]:
    """Return steps of every program, one of each in a round.

    A first round, in which the optimizers allocate their memory, is not timed.
    """
    with ExitStack() as stack:
        workers = {name: stack.enter_context(working(program)) for name, program in programs.items()}
        described = {name: worker.ask("describe") for name, worker in workers.items()}
        seconds = in_turn(workers, rounds + 1)
    return {name: Timed(**described[name], seconds=tuple(taken[1:])) for name, taken in seconds.items()}


def in_turn(workers: Mapping[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each worker's steps; the workers go in turn, one after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            seconds[name].append(worker.ask("step")["seconds"])
    return seconds


def peak_of_steps(program: Program, steps: int) -> int:
    """Return the peak of resident memory of steps in a fresh process over that before them, in bytes."""
    with working(program) as worker:
        worker.ask("describe")
        return int(worker.ask("memory", steps=steps)["bytes"])


def qat_tft(*words: str) -> str:
    """Run a `qat-tft` command and return what it printed.

    Raises:
        SystemExit: it failed.
    """
    print("qat-tft", *words, file=sys.stderr)
    program = Path(sys.executable).with_name("qat-tft")
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"qat-tft {words[0]} ended with exit code {done.returncode}")
    return done.stdout
