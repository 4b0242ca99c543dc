"""Broken and hostile input for every command: Parquet, TOML, JSON, tensors and ONNX files, damaged by machine.

Whatever it is given, a command has to end with a right result, or with one message and exit code 2, in little memory
and time; a check may also say that a file failed. Nothing is executed, and nothing is left behind.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shutil import copytree, rmtree

import torch

from faults.broken import graphs, pages, run_files, settings, tables, tensors, tiny
from faults.broken.case import Case
from faults.broken.judge import problems
from faults.broken.trial import tried
from faults.tally import Tally
from qat_tft.cli.app import main
from qat_tft.export.verify import check

_USED_BY_COMMANDS = (
    "matplotlib.font_manager",  # keeps a list of fonts in the home when it is first imported
    "qat_tft.cli.train_run",
    "qat_tft.cli.display.forecast_picture",
    "qat_tft.data.roles.inspection",
    "qat_tft.export.build.run_export",
    "qat_tft.export.inference.predict",
    "qat_tft.export.inference.run_backtest",
    "qat_tft.runs.report",
    "qat_tft.runs.sensitivity",
    "qat_tft.training.job",
)
"""What commands import when they run: imported once, before processes are forked."""
_WITHOUT_FILES = (pages, tables, settings, tensors)
_KINDS = (*_WITHOUT_FILES, run_files, graphs)
_SECONDS_TO_TRAIN = 300.0


def measure(work: Path, seed: int, share: float, *, exported: bool = True) -> Tally:
    """Try the commands on broken inputs.

    Args:
        work: an empty folder to work in.
        seed: of what is damaged, and which inputs a share is.
        share: of the inputs to try.
        exported: whether the run has ONNX files, which take most of the time to make; without, no command needs them.

    Raises:
        RuntimeError: the run that is to be damaged could not be made.
    """
    for module in _USED_BY_COMMANDS:
        import_module(module)
    torch.set_num_threads(1)  # a forked process has none of the threads of this one
    intact = work / "intact"
    _make_run(intact, exported)
    tally = Tally("mishandled")
    for case in _drawn(cases(seed, exported=exported), seed, share):
        tally.add(str(case), _problems(case, copytree(intact, work / "trial")))
        rmtree(work / "trial")
    return tally


def cases(seed: int, *, exported: bool = True) -> list[Case]:
    """Return every broken input of a seed; without ONNX files, those that need none."""
    if exported:
        return [case for kind in _KINDS for case in kind.cases(random.Random(seed))]
    found = (case for kind in _WITHOUT_FILES for case in kind.cases(random.Random(seed)))
    return [case for case in found if not case.command.needs_files]


def _drawn(every: Sequence[Case], seed: int, share: float) -> list[Case]:
    places = random.Random(seed).sample(range(len(every)), max(1, round(share * len(every))))
    return [every[place] for place in sorted(places)]


def _make_run(folder: Path, exported: bool = True) -> None:
    folder.mkdir()
    made = tried([], folder, program=lambda _: tiny.make(folder, exported), limit=_SECONDS_TO_TRAIN)
    if made.code:
        raise RuntimeError(f"the tiny run could not be made: {made.messages}")


def _problems(case: Case, folder: Path) -> str:
    case.damage(folder)
    return problems(case, tried(case.command.words, folder, program=_program))


def _program(words: Sequence[str]) -> int:
    check._TIMING_SECONDS = 0.0  # nobody reads how fast a broken file is
    return main(words)
