"""Runs of a second, the commands that are tried on them, and what each command begins with and ends with.

A command begins in a copy of a prepared folder. What its folder holds in the end is known from an undisturbed trial:
however often the command is disturbed, it has to end there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faults.contents import Contents, contents
from faults.forked import Ended, WarmProcess, can_inject_faults

_ROWS = 60
_START = datetime(2024, 1, 1)
_ROLES = "--time time --target y --id series --known hour --observed x"
_SHAPE = "--history 6 --horizon 3 --hidden 8 --epochs 2 --batch-size 4 --use-qat --qat-epochs 2"
_KEPT_GRAPHS = "faults.prepare:keep_graphs"
_LARGE_ROWS = "faults.prepare:call_all_rows_large"


@dataclass(frozen=True)
class Command:
    """A command that is disturbed.

    Attributes:
        name: what trials are called.
        words: the command line.
        resumes, resume_words: where that folder is there after a disturbance, this command follows.
        finished, finished_words: likewise; where neither is there, the command itself follows.
        prepare: functions `MODULE:NAME` that are called in the child before the command.
    """

    name: str
    words: tuple[str, ...]
    resumes: Path | None = None
    finished: Path | None = None
    resume_words: tuple[str, ...] = ()
    finished_words: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()

    def after(self) -> tuple[str, ...]:
        """The command line that brings the folder to its end after a disturbance."""
        if self.resumes is not None and self.resumes.exists():
            return self.resume_words
        if self.finished is not None and self.finished.exists():
            return self.finished_words
        return self.words


@dataclass
class Workshop:
    """A folder for trials, what it is copied from, and how each command ends undisturbed.

    Attributes:
        work: holds everything.
        warm: the process that commands are forked from.
    """

    work: Path
    warm: WarmProcess
    _before: Contents = field(default_factory=dict)
    _after: dict[str, Contents] = field(default_factory=dict)
    _learned: set[str] = field(default_factory=set)

    @property
    def trial(self) -> Path:
        """The folder that every trial happens in."""
        return trial_folder(self.work)

    @property
    def _prepared(self) -> Path:
        return self.work / "prepared"

    def set_up(self, *, export: bool = True) -> None:
        """Train and export the run that commands work on, and import what they need once.

        Args:
            export: whether there are to be ONNX files, which takes far longer than training.
        """
        write_data(self.work / "data.parquet")
        self.trial.mkdir()
        runs = str(self.trial / "runs")
        first = ["train", *self.training_words, "--name", "old", "--runs-dir", runs]
        self._learn(first)
        if export:
            self._learn(["export", "old", "--int8", "--runs-dir", runs], (_KEPT_GRAPHS,))
        shutil.copytree(self.trial, self._prepared)
        self._before = contents(self.trial)

    @property
    def training_words(self) -> list[str]:
        """Options of `train` without name and folder."""
        return ["--parquet-file", str(self.work / "data.parquet"), *_ROLES.split(), *_SHAPE.split()]

    def begin(self) -> None:
        """Put the folder of trials back to what every command begins with."""
        shutil.rmtree(self.trial)
        shutil.copytree(self._prepared, self.trial)

    def before(self) -> Contents:
        """What the folder holds when a command begins."""
        return self._before

    def undisturbed(self, command: Command) -> Ended:
        """Run a command to its end; what it leaves is what disturbed ones are compared with."""
        if command.words[0] not in self._learned:
            self.begin()
            self._learn(command.words, command.prepare)
        self.begin()
        ended = self.warm.run(command.words, prepare=command.prepare)
        self._done(ended)
        self._after[command.name] = contents(self.trial)
        return ended

    def after(self, command: Command) -> Contents:
        """What the folder holds once a command has ended undisturbed."""
        return self._after[command.name]

    def _learn(self, words: Sequence[str], prepare: Sequence[str] = ()) -> None:
        self._done(self.warm.learn(words, prepare))
        self._learned.add(words[0])

    @staticmethod
    def _done(ended: Ended) -> None:
        if ended.code != 0:
            raise RuntimeError(f"undisturbed, a command ended with {ended.code}: {ended.messages}")


def trial_folder(work: Path) -> Path:
    """Where trials happen."""
    return work / "trial"


def disturb_each(
    work: Path, count: Callable[[Command], int], disturb: Callable[[Workshop, Command, int], None]
) -> None:
    """Let a function disturb every command so often on tiny runs of their own; none where faults cannot be injected."""
    if not can_inject_faults():
        return
    with WarmProcess(work, trial_folder(work)) as warm:
        shop = Workshop(work, warm)
        shop.set_up()
        for command in commands(shop).values():
            if often := count(command):
                disturb(shop, command, often)


def commands(shop: Workshop) -> Mapping[str, Command]:
    """The commands by name."""
    trial, runs = shop.trial, shop.trial / "runs"
    data, where = str(shop.work / "data.parquet"), ("--runs-dir", str(runs))
    cached = ("--cache-dir", str(trial / "cache"))

    def run(name: str, words: tuple[str, ...], new: str, prepare: tuple[str, ...] = ()) -> Command:
        resume = ("train", "--resume", new, *where)
        whole = (*words, "--name", new, *where)
        return Command(name, whole, runs / f"{new}.unfinished", runs / new, resume, ("backtest", *where), prepare)

    schema = trial / "schema.toml"
    int8, out = str(runs / "old" / "model.int8.onnx"), str(trial / "forecasts.parquet")
    found = [
        run("train", ("train", *shop.training_words), "new"),
        run("train with cached rows", ("train", *shop.training_words, *cached), "new", (_LARGE_ROWS,)),
        run("quantize", ("quantize", "old", "--qat-epochs", "3"), "new"),
        Command("export", ("export", "old", "--int8", *where), prepare=(_KEPT_GRAPHS,)),
        Command("check", ("check", "--run", "old", "--seconds", "0", *where)),
        Command("predict", ("predict", int8, "--parquet-file", data, "--out", out)),
        Command("backtest", ("backtest", "old", "--out", out, *where)),
        Command("report", ("report", "old", *where)),
        Command("sensitivity", ("sensitivity", "old", "--by", "segment", "--max-drop", "50%", *where)),
        Command("sample-data", ("sample-data", "--rows", "400", "--overwrite", "--out", str(trial / "sample.parquet"))),
        Command(
            "inspect",
            ("inspect", data, "--write-schema", str(schema)),
            finished=schema,
            finished_words=("inspect", data),
        ),
    ]
    return {command.name: command for command in found}


def write_data(path: Path) -> None:
    """Write two series of 30 hours, alternating by row."""
    rows = range(_ROWS)
    table = pa.table(
        {
            "series": ["a" if row % 2 else "b" for row in rows],
            "time": [_START + timedelta(hours=row // 2) for row in rows],
            "y": [float(row % 7) for row in rows],
            "hour": [(row // 2) % 24 for row in rows],
            "x": [float(row % 5) for row in rows],
        }
    )
    pq.write_table(table, path)
