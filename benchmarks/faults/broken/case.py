"""One broken input: what is damaged in a copy of the tiny run, which command meets it, and what it may then do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Damage = Callable[[Path], object]

DATA, SCHEMA, SETTINGS = "data.parquet", "schema.toml", "settings.toml"
RUNS, RUN, UNFINISHED = "runs", "runs/tiny", "runs/half.unfinished"
FORECASTS = "forecasts.parquet"
INT8, FP32 = f"{RUN}/model.int8.onnx", f"{RUN}/model.fp32.onnx"


@dataclass(frozen=True)
class Command:
    """A command line whose paths are relative to the folder of a trial.

    Attributes:
        words: what stands after `qat-tft`.
        writes: patterns of the files that it may write where it succeeds; where it fails, it may write nothing.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()

    @property
    def needs_files(self) -> bool:
        """Whether it has nothing to read where the run was not exported."""
        return self.words[0] in ("check", "predict")


def command(line: str, *writes: str) -> Command:
    return Command(tuple(line.split()), writes)


_NEW = ("runs/new*", "runs/latest")
TRAIN = command(f"train --parquet-file {DATA} --schema {SCHEMA} --config {SETTINGS} --name new --runs-dir runs", *_NEW)
TRAIN_AS_DECLARED = command(f"train --parquet-file {DATA} --config {SETTINGS} --name new --runs-dir runs", *_NEW)
RESUME = command("train --resume half --runs-dir runs", "runs/half*", "runs/latest")
QUANTIZE = command("quantize tiny --qat-epochs 0 --calibrator min-max --name new --runs-dir runs", *_NEW)
INSPECT = command(f"inspect {DATA} --write-schema proposed.toml", "proposed.toml")
INSPECT_AS_JSON = command(f"inspect {DATA} --json")
EXPORT = command("export tiny --runs-dir runs", f"{RUN}/model.*.onnx")  # takes long where it succeeds
CHECK = command("check --run tiny --seconds 0 --runs-dir runs", f"{RUN}/check.json")
CHECK_FP32 = command(f"check {FP32} --seconds 0", f"{RUN}/check.json")
BACKTEST = command("backtest tiny --max-windows 8 --out backtest.parquet --runs-dir runs", "backtest.parquet")
BACKTEST_DATA = command(f"backtest tiny --max-windows 8 --parquet-file {DATA} --json --runs-dir runs")
PREDICT = command(f"predict {INT8} --parquet-file {DATA} --out {FORECASTS}", FORECASTS)
PREDICT_FP32 = command(f"predict {FP32} --parquet-file {DATA} --out {FORECASTS}", FORECASTS)
SENSITIVITY = command("sensitivity tiny --windows 8 --by segment --runs-dir runs")
REPORT = command("report tiny --runs-dir runs", f"{RUN}/forecast.png", f"{RUN}/report.html")
REPORT_LATEST = command("report --runs-dir runs", "runs/*/forecast.png", "runs/*/report.html")

DONE_OR_REFUSED = (0, 2)
REFUSED = (2,)


@dataclass(frozen=True)
class Case:
    """A command on a broken input.

    Attributes:
        name: what is broken, and how.
        command: the command that meets it.
        damage: breaks the copy of the tiny run in a folder.
        allowed: exit codes that are right.
        leaves: patterns of the files that it may write where it fails: an unfinished run that broke off in training.
    """

    name: str
    command: Command
    damage: Damage
    allowed: tuple[int, ...] = DONE_OR_REFUSED
    leaves: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.command.words[0]}: {self.name}"


Cases = Iterator[Case]


def edit(path: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the bytes of one file."""

    def damage(folder: Path) -> None:
        file = folder / path
        file.write_bytes(change(file.read_bytes()))

    return damage


def put(path: str, content: bytes | str) -> Damage:
    """Replace one file."""

    def damage(folder: Path) -> None:
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)

    return damage
