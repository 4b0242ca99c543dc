"""Two ranks that train together: equal to one process, agreed on everything, and what happens when one fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from qat_tft.runs import files, layout
from qat_tft.training import job
from qat_tft.training.progress import Silent
from qat_tft.training.state import load_state

sys.path.insert(0, str(Path(__file__).parent))
from settings import SCHEMA, settings, watched_steps

KINDS = {
    "frozen": {"frozen": 0.999},
    "learned": {"qat_ranges": "learned", "mode": "full"},
    "observed": {"mode": "full"},
}
TIMEOUT = 60.0  # of the ranks' group, see one_rank.py


class Ended(NamedTuple):
    """Exit code and standard error of a rank."""

    code: int
    said: str


def two_ranks(
    scenario: str, folder: Path, data: Path, *, timeout: float = 120.0, **options: Any
) -> list[tuple[int, str]]:
    """Return exit code and standard error of both ranks."""
    script = str(Path(__file__).with_name("one_rank.py"))
    words = [
        [sys.executable, script, scenario, str(folder), str(rank), str(data), json.dumps(options)] for rank in (0, 1)
    ]
    started = [subprocess.Popen(one, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for one in words]
    try:
        said = [process.communicate(timeout=timeout)[1] for process in started]
        return [Ended(process.returncode, one) for process, one in zip(started, said, strict=True)]
    finally:
        for process in started:
            process.kill()


def of_one_process(data: Path, folder: Path, **options: Any) -> dict[str, Tensor]:
    """Return what every step leaves that accumulates the two halves of the ranks' batch."""
    with watched_steps() as kept:
        job.train(settings(str(data), halves=True, **options), SCHEMA, runs_dir=folder, name="run")
    return kept


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for code, said in two_ranks("train", folder, data_file, runs=KINDS):
        assert code == 0, said
    return folder


def weights(folder: Path, kind: str) -> dict[str, Tensor]:
    return files.read_tensors(folder / "run" / f"{kind}.safetensors", kind=kind)[0]


def unlike(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Return what differs, but for how many batches a quantizer has seen, of which halves are two."""
    names = [name for name in one.keys() | other.keys() if not name.endswith(".batches")]
    return [name for name in names if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("kind", ["frozen", "learned"])
def test_two_ranks_give_the_bits_of_one_process_that_accumulates_their_halves(kind, trained, data_file, tmp_path):
    alone = of_one_process(data_file, tmp_path, **KINDS[kind])
    together = load_file(trained / f"{kind}.0.safetensors")
    assert len([name for name in together if name.endswith("loss")]) == 40
    assert unlike(together, alone) == []
    for which in ("fp32", "qat"):
        assert unlike(weights(trained / kind, which), weights(tmp_path, which)) == []


def test_observed_ranges_of_a_whole_batch_train_nearly_as_those_of_its_halves(trained, data_file, tmp_path):
    alone = of_one_process(data_file, tmp_path, **KINDS["observed"])
    together = load_file(trained / "observed.0.safetensors")
    losses = [name for name in alone if name.endswith("loss")]
    qat = losses[len(losses) // 2 :]
    apart = max(float((alone[name] - together[name]).abs()[0] / alone[name][0]) for name in qat)
    assert apart < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_both_ranks_have_the_same_losses_and_ranges_after_every_step(kind, trained):
    assert unlike(load_file(trained / f"{kind}.0.safetensors"), load_file(trained / f"{kind}.1.safetensors")) == []


def test_rank_0_alone_writes(trained):
    state = {path.name for path in (trained / "observed" / "run").iterdir()}
    assert {layout.RESULTS, layout.METRICS, layout.CONFIG, *layout.WEIGHTS.values()} <= state
    lines = (trained / "observed" / "run" / layout.METRICS).read_text().splitlines()
    assert [json.loads(line)["phase"] for line in lines].count("qat") == 1


class Failed(NamedTuple):
    """Two ranks of which rank 1 runs out of memory in the run "short", and is killed in the run "killed"."""

    folder: Path
    ended: list[Ended]
    seconds: float


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Failed:
    folder, started = tmp_path_factory.mktemp("failed"), time.monotonic()
    ended = two_ranks("failing", folder, data_file, call=7, killed={"short": False, "killed": True})  # in mode off
    return Failed(folder, ended, time.monotonic() - started)


def test_a_rank_that_runs_out_of_memory_while_it_observes_takes_the_other_back_with_it(trained, failed):
    assert failed.seconds < TIMEOUT, "the other one has waited until its patience was over"
    for which in ("fp32", "qat"):  # recomputing changes no bit
        assert unlike(weights(failed.folder / "short", which), weights(trained / "observed", which)) == []
    lines = (failed.folder / "short" / "run" / layout.METRICS).read_text().splitlines()
    (fallback,) = [event for event in map(json.loads, lines) if event.get("event") == "out_of_memory"]
    assert (fallback["phase"], fallback["said"]) == ("qat", "CUDA out of memory")


def test_ranges_that_a_broken_step_has_moved_are_not_in_the_state(failed):
    assert [one.code for one in failed.ended] == [1, -signal.SIGKILL], failed.ended
    assert "LostRankError" in failed.ended[0].said
    saved = load_state(failed.folder / "killed" / "run.unfinished" / layout.STATE)
    assert (saved.position.phase, saved.position.step) == ("qat", 0)
    calibrated = {name: tensor for name, tensor in saved.best.items() if name.endswith(("minimum", "maximum"))}
    assert [name for name, tensor in calibrated.items() if not torch.equal(tensor, saved.model[name])] == []


WORDS = [
    *(
        "train",
        "--time",
        "time",
        "--target",
        "load",
        "--id",
        "plant",
        "--static",
        "plant:category",
        "--observed",
        "wind",
    ),
    *("--known", "phase", "--history", "12", "--horizon", "4", "--hidden", "8", "--heads", "2", "--epochs", "1"),
    *("--batch-size", "16", "--batches-per-epoch", "6", "--linear-path", "off", "--save-every", "0", "--name", "run"),
]


def on_the_command_line(folder: Path, data: Path, **options: Any) -> list[Ended]:
    words = [*WORDS, "--parquet-file", str(data), "--runs-dir", str(folder)]
    return two_ranks("cli", folder, data, words=words, words_of_1=[], **options)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_stops_the_other_with_one_message_and_the_run_goes_on_from_that_step(killed, data_file, tmp_path):
    started = time.monotonic()
    ended = on_the_command_line(tmp_path, data_file, killed=4, rank=killed, how="SIGKILL")
    assert time.monotonic() - started < TIMEOUT
    dead, left = ended[killed], ended[1 - killed]
    assert (dead.code, left.code) == (-9, 1)
    assert left.said.count("another rank of this training has ended") == 1
    assert "qat-tft train --resume run" in left.said
    assert load_state(tmp_path / "run.unfinished" / layout.STATE).position.step == 3, "steps that all ranks have made"
    notes: list[str] = []
    listener = Silent()
    listener.note = notes.append  # type: ignore[method-assign]
    finished = job.resume(tmp_path, "run", progress=listener)
    assert any("was trained by 2 ranks and goes on with one process" in note for note in notes)
    lines = [json.loads(line) for line in (finished.folder.path / layout.METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("event") == "epoch"] == [6]


def test_a_signal_to_one_rank_stops_all_after_the_step(data_file, tmp_path):
    ended = on_the_command_line(tmp_path, data_file, killed=3, rank=1, how="SIGTERM")
    assert [one.code for one in ended] == [130, 130]
    assert ended[0].said.count("Interrupted, state saved") == 1
    assert ended[1].said == ""
    assert load_state(tmp_path / "run.unfinished" / layout.STATE).position.step == 3


def test_what_one_rank_finds_in_its_windows_rank_0_tells(data_file, tmp_path):
    ended = on_the_command_line(tmp_path, data_file, poisoned=1)
    assert [one.code for one in ended] == [2, 2]
    assert ended[0].said.count("fp32 epoch 1, batch 2: the loss is nan; non-finite values in 'wind'") == 1
    assert ended[1].said == ""
