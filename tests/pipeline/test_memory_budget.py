"""`--checkpoint-mode auto`: a run trains in the mode that its memory budget allows, and keeps it when it goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.checkpointing.segments import Mode
from qat_tft.cli.app import main
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError
from qat_tft.profiling.step_simulator import workload_of
from qat_tft.runs import files
from qat_tft.schema import Columns, Schema
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.job import FinishedRun, resume, train
from qat_tft.training.progress import Silent, StepReport

WIND = tuple(f"wind{number}" for number in range(12))
SCHEMA = Schema(time="time", target="load", observed=Columns(real=WIND))


class Notes(Silent):
    """Keeps the notes of a run, and presses Ctrl-C in a step of the QAT phase if asked to."""

    def __init__(self, *, interrupt: bool = False) -> None:
        self.notes: list[str] = []
        self.interrupt = interrupt

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, report: StepReport) -> None:
        if self.interrupt and (report.phase, report.step) == ("qat", 1):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, hours = np.random.default_rng(0), np.arange(200)
    columns = {name: random.normal(size=len(hours)) for name in WIND}
    time = (hours * 3_600_000_000_000).astype("datetime64[ns]")
    path = tmp_path_factory.mktemp("data") / "winds.parquet"
    pq.write_table(pa.table({"time": time, "load": np.sin(hours / 4) + columns["wind0"], **columns}), path)
    return path


def configuration(data: Path, **training: object) -> RunConfig:
    return RunConfig.checked(
        {
            "data": {"parquet_files": [str(data)]},
            "model": {"history": 24, "horizon": 4, "hidden": 8, "heads": 2, "selection_chunk": 2},
            "training": {"epochs": 1, "batch_size": 16, "batches_per_epoch": 2, **training},
            "quantization": {"use_qat": True, "qat_epochs": 1, "calibration_batches": 1},
        },
        where="the test",
    )


@pytest.fixture(scope="module")
def budget(data_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An amount that mode full fits into and the others do not."""
    from qat_tft.runs.data import load_data

    config = configuration(data_file)
    data = load_data(config.data, config.model, SCHEMA)
    workload = workload_of(config, data.preprocessing.group_sizes(SCHEMA))
    full, aggressive = (workload.peak(mode, workload.batch) for mode in (Mode.FULL, Mode.AGGRESSIVE))
    assert full < aggressive
    return f"{(full + aggressive) / 2 / 2**20:.4f}MiB"


def auto(data: Path, budget: str) -> RunConfig:
    return configuration(data, checkpoint_mode="auto", memory_budget=budget)


def weights(run: FinishedRun) -> dict[str, torch.Tensor]:
    return files.read_tensors(run.folder.path / "qat.safetensors", kind="qat")[0]


def assert_equal_to_the_bit(one: FinishedRun, other: FinishedRun) -> None:
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_a_run_trains_in_the_mode_that_fits_its_budget_says_why_and_equals_that_mode(data_file, tmp_path, budget):
    log = Notes()
    run = train(auto(data_file, budget), SCHEMA, runs_dir=tmp_path, name="auto", progress=log)
    (reason,) = (note for note in log.notes if "fastest that fits" in note)
    assert "mode full" in reason
    assert f"of the {budget} allowed" in reason
    assert "off would need" in reason
    kept = run.folder.load_config().training
    assert (kept.checkpoint_mode, kept.memory_budget) == ("full", None)
    chosen = train(configuration(data_file, checkpoint_mode="full"), SCHEMA, runs_dir=tmp_path, name="chosen")
    assert_equal_to_the_bit(run, chosen)


def test_an_interrupted_run_goes_on_in_the_mode_that_was_picked(data_file, tmp_path, budget):
    with pytest.raises(Interrupted):
        train(auto(data_file, budget), SCHEMA, runs_dir=tmp_path, name="mine", progress=Notes(interrupt=True))
    log = Notes()
    resumed = resume(tmp_path, "mine", progress=log)
    assert [note for note in log.notes if "fastest that fits" in note] == []
    assert resumed.folder.load_config().training.checkpoint_mode == "full"
    straight = train(configuration(data_file, checkpoint_mode="full"), SCHEMA, runs_dir=tmp_path, name="straight")
    assert_equal_to_the_bit(resumed, straight)


def test_a_generous_budget_recomputes_nothing(data_file, tmp_path):
    config = auto(data_file, "1GB")
    config = config.model_copy(update={"quantization": RunConfig().quantization})
    run = train(config, SCHEMA, runs_dir=tmp_path)
    assert run.folder.load_config().training.checkpoint_mode == "off"


def test_a_budget_that_nothing_fits_leaves_no_run_and_says_what_would_fit(data_file, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.memory_budget: no checkpoint mode fits .* in 0\.01MB"):
        train(auto(data_file, "0.01MB"), SCHEMA, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--memory-budget", "4GB"], "go together", id="budget without auto"),
        pytest.param(["--checkpoint-mode", "auto"], "go together", id="auto without budget"),
        pytest.param(["--checkpoint-mode", "full", "--memory-budget", "4GB"], "go together", id="budget with a mode"),
        pytest.param(
            ["--checkpoint-mode", "auto", "--memory-budget", "plenty"], "'plenty' is not an amount", id="nonsense"
        ),
    ],
)
def test_a_budget_and_auto_go_together(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words, "--json"]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("asked", [False, True], ids=["auto", "auto with use_gradient_checkpointing"])
def test_a_configuration_with_its_mode_decided_is_valid_and_reads_back(data_file, mode, asked):
    config = configuration(
        data_file, checkpoint_mode="auto", memory_budget="1GB", use_gradient_checkpointing=asked
    ).with_checkpoint_mode(mode.value)
    assert RunConfig.from_toml(config.to_toml()) == config
    assert config.training.segments_mode == mode
