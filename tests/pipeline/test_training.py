"""Whole training runs: what they leave, how they stop, and that going on equals never having stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.cli.app import main
from qat_tft.config.run import RunConfig
from qat_tft.data.reading.parquet import read_panel
from qat_tft.data.split import Split
from qat_tft.errors import DataError, NonFiniteLossError, RunFolderError
from qat_tft.quantization.products import INTEGER_STORAGE
from qat_tft.runs import files, layout
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.job import FinishedRun, resume, train
from qat_tft.training.progress import Silent, StepReport
from qat_tft.training.state import load_state

SCHEMA = Schema(
    time="time",
    target="load",
    id=("plant",),
    static=Columns(category=("plant",)),
    observed=Columns(real=("wind",)),
    known=Columns(real=("phase",)),
)
EPOCHS, QAT_EPOCHS, STEPS = 2, 2, 3
MEASURED = {"seconds", "samples_per_second", "peak_mib"}


def write_data(path: Path, *, spike: float | None = None) -> Path:
    random = np.random.default_rng(0)
    hours = np.arange(200)
    tables = []
    for level, plant in ((10.0, "north"), (50.0, "south")):
        load = level + 3 * np.sin(hours * 2 * np.pi / 24) + 0.3 * random.normal(size=len(hours))
        wind = random.normal(size=len(hours))
        if spike is not None:
            wind[-10:] = spike  # in the test part, so that no statistic knows it
        tables.append(
            pa.table(
                {
                    "plant": [plant] * len(hours),
                    "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                    "load": load,
                    "wind": wind,
                    "phase": np.cos(hours * 2 * np.pi / 24),
                }
            )
        )
    pq.write_table(pa.concat_tables(tables), path)
    return path


def configuration(data: Path, *, products: str = "integer", **training: object) -> RunConfig:
    return RunConfig.checked(
        {
            "data": {"parquet_files": [str(data)], "unknown_rate": 0.2},
            "model": {"history": 48, "horizon": 4, "hidden": 8, "heads": 2, "dropout": 0.2},
            "training": {
                "epochs": EPOCHS,
                "batch_size": 8,
                "batches_per_epoch": 2 * STEPS,
                "accumulation": 2,
                "use_gradient_checkpointing": True,
                **training,
            },
            "quantization": {
                "use_qat": True,
                "products": products,
                "qat_epochs": QAT_EPOCHS,
                "calibration_batches": 2,
            },
        },
        where="the test",
    )


class CtrlC(Silent):
    """Presses Ctrl-C during one step of one phase."""

    def __init__(self, phase: str, step: int) -> None:
        self.phase_name, self.at = phase, step
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, report: StepReport) -> None:
        if (report.phase, report.step) == (self.phase_name, self.at):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "plants.parquet")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> FinishedRun:
    return train(configuration(data_file), SCHEMA, runs_dir=tmp_path_factory.mktemp("runs"), name="straight")


def weights(folder: RunFolder, kind: str) -> dict[str, torch.Tensor]:
    return files.read_tensors(folder.path / f"{kind}.safetensors", kind=kind)[0]


def metrics(folder: RunFolder) -> list[dict[str, object]]:
    lines = map(json.loads, (folder.path / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in MEASURED} for line in lines]


def assert_same_run(found: FinishedRun, expected: FinishedRun) -> None:
    for kind in ("fp32", "qat"):
        one, other = weights(found.folder, kind), weights(expected.folder, kind)
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert metrics(found.folder) == metrics(expected.folder)
    assert found.results.q_risk == expected.results.q_risk
    assert found.results.validation_loss == expected.results.validation_loss


def test_a_run_leaves_everything_that_later_steps_need(straight):
    names = {path.name for path in straight.folder.path.iterdir()}
    assert names == {
        "config.toml",
        "schema.toml",
        "preprocessing.json",
        "fp32.safetensors",
        "qat.safetensors",
        "metrics.jsonl",
        "results.json",
        "check_windows.safetensors",
    }
    assert len(metrics(straight.folder)) == EPOCHS + QAT_EPOCHS
    assert set(straight.results.q_risk) == {"fp32", "ptq", "qat", "ridge", "seasonal_naive", "last_value"}
    assert straight.results.season == 24
    assert straight.results.checkpointing["with_bytes"] < straight.results.checkpointing["without_bytes"]
    assert straight.folder.load_config().model.linear_path in ("ridge", "last-value", "seasonal-naive")
    assert straight.folder.load_qat_model().phase == "frozen"


def test_a_run_keeps_the_times_at_which_shares_cut_its_data(straight, data_file):
    panel, settings = read_panel(data_file, SCHEMA), straight.folder.load_config().data
    by_share = Split.by_fraction(panel, settings.validation, settings.test)
    assert Split.by_time(panel, settings.validation_from, settings.test_from) == by_share


def test_the_same_configuration_gives_the_same_run_to_the_bit(straight, data_file, tmp_path):
    again = train(configuration(data_file), SCHEMA, runs_dir=tmp_path, name="again")
    assert_same_run(again, straight)


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        pytest.param("fp32", 1, id="in-the-first-epoch"),
        pytest.param("fp32", STEPS, id="at-the-end-of-an-epoch"),
        pytest.param("fp32", STEPS * EPOCHS, id="at-the-end-of-fp32"),
        pytest.param("qat", 2, id="in-qat-while-observing"),
        pytest.param("qat", STEPS * QAT_EPOCHS - 1, id="in-qat-with-frozen-ranges"),
    ],
)
def test_an_interrupted_and_resumed_run_equals_a_straight_one_to_the_bit(straight, data_file, tmp_path, phase, step):
    with pytest.raises(Interrupted, match="--resume mine"):
        train(configuration(data_file), SCHEMA, runs_dir=tmp_path, name="mine", progress=CtrlC(phase, step))
    assert (tmp_path / "mine.unfinished" / layout.STATE).is_file()
    assert not (tmp_path / "mine").exists()
    torch.manual_seed(12345)  # another process starts elsewhere
    assert_same_run(resume(tmp_path, "mine"), straight)


def test_a_small_run_decides_for_floating_point_once_and_resumes_to_the_bit(data_file, tmp_path):
    """Nothing is calibrated, and the folder holds what was decided, so that a later rule does not change the run."""
    config = configuration(data_file, products="auto")
    whole = train(config, SCHEMA, runs_dir=tmp_path, name="whole")
    interrupting = CtrlC("qat", 2)
    with pytest.raises(Interrupted):
        train(config, SCHEMA, runs_dir=tmp_path, name="cut", progress=interrupting)
    assert_same_run(resume(tmp_path, "cut"), whole)
    assert whole.folder.load_config().quantization.products == "float"
    assert whole.folder.load_qat_model().products == "float"
    assert any(INTEGER_STORAGE in note for note in interrupting.notes)
    assert not any("Calibrated" in note for note in interrupting.notes)
    assert "ptq" in whole.results.q_risk


def test_a_run_killed_between_two_saves_resumes_from_the_last_one(straight, data_file, tmp_path):
    class Killed(Silent):
        def step(self, report: StepReport) -> None:
            if (report.phase, report.step) == ("fp32", STEPS + 2):
                raise SystemError("as if the power had failed")

    with pytest.raises(SystemError):
        train(configuration(data_file), SCHEMA, runs_dir=tmp_path, name="mine", progress=Killed())
    assert_same_run(resume(tmp_path), straight)


def test_changed_data_are_not_resumed(data_file, tmp_path):
    copy = tmp_path / "plants.parquet"
    copy.write_bytes(data_file.read_bytes())
    with pytest.raises(Interrupted):
        train(configuration(copy), SCHEMA, runs_dir=tmp_path, name="mine", progress=CtrlC("fp32", 1))
    write_data(copy, spike=0.0)
    with pytest.raises(RunFolderError, match="data have changed"):
        resume(tmp_path, "mine")


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b""], ids=["cut", "empty"])
def test_a_damaged_state_is_refused(data_file, tmp_path, damage: Callable[[bytes], bytes]):
    with pytest.raises(Interrupted):
        train(configuration(data_file), SCHEMA, runs_dir=tmp_path, name="mine", progress=CtrlC("fp32", 1))
    state = tmp_path / "mine.unfinished" / layout.STATE
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(RunFolderError, match=r"state\.safetensors: truncated"):
        resume(tmp_path, "mine")


def test_a_state_that_does_not_fit_its_run_is_refused_before_a_step(data_file, tmp_path):
    with pytest.raises(Interrupted):
        train(configuration(data_file), SCHEMA, runs_dir=tmp_path, name="mine", progress=CtrlC("fp32", 1))
    state = tmp_path / "mine.unfinished" / layout.STATE
    tensors, header = files.read_tensors(state, kind="state")
    header = {name: value for name, value in header.items() if name not in ("format", "kind")}
    beyond = json.loads(header["rest"])
    beyond["position"]["step_in_epoch"] = 10**6
    halved = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    short = {name: tensor for name, tensor in tensors.items() if not name.startswith("random/")}
    for found, rest in ((tensors, json.dumps(beyond)), (halved, header["rest"]), (short, header["rest"])):
        files.write_tensors(state, found, kind="state", **{**header, "rest": rest})
        with pytest.raises(RunFolderError, match=r"state\.safetensors: the saved state does not fit the run"):
            resume(tmp_path, "mine")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_state(data_file, tmp_path):
    config = configuration(data_file, learning_rate=1e30)
    with pytest.raises(NonFiniteLossError, match=r"fp32 epoch 1, batch [23].*weights have diverged"):
        train(config, SCHEMA, runs_dir=tmp_path, name="mine")
    saved = load_state(tmp_path / "mine.unfinished" / layout.STATE)
    assert saved.position.step == 0
    assert all(bool(tensor.isfinite().all()) for tensor in saved.model.values())


def test_a_fill_value_is_refused_before_training_with_its_column(tmp_path):
    data = write_data(tmp_path / "spike.parquet", spike=9.96921e36)
    with pytest.raises(DataError, match=r"'wind' holds 9\.96921e\+36 at .*plant=north"):
        train(configuration(data), SCHEMA, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_without_qat_there_is_no_quantized_model(data_file, tmp_path):
    config = configuration(data_file, epochs=1).model_copy(update={"quantization": RunConfig().quantization})
    run = train(config, SCHEMA, runs_dir=tmp_path)
    assert set(run.results.q_risk) == {"fp32", "ridge", "seasonal_naive", "last_value"}
    assert not (run.folder.path / "qat.safetensors").exists()


def test_checkpointing_modes_give_the_same_run(straight, data_file, tmp_path):
    config = configuration(data_file, use_gradient_checkpointing=False)
    assert_same_run(train(config, SCHEMA, runs_dir=tmp_path, name="off"), straight)


def options(data: Path, root: Path) -> list[str]:
    (root / "small.toml").write_text(configuration(data).to_toml())
    return ["train", "--config", str(root / "small.toml"), "--runs-dir", str(root / "runs"), "--name", "cli"]


ROLES = ["--time", "time", "--target", "load", "--id", "plant", "--static", "plant"]
ROLES += ["--observed", "wind", "--known", "phase:real"]


def test_the_command_trains_with_roles_and_prints_one_object(data_file, tmp_path, capsys):
    assert main([*options(data_file, tmp_path), *ROLES, "--epochs", "1", "--qat-epochs", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["folder"] == str(tmp_path / "runs" / "cli")
    assert set(printed["q_risk"]["qat"]) == {"0.1", "0.5", "0.9"}
    assert RunFolder.latest(tmp_path / "runs").load_schema() == SCHEMA
    assert main(["report", "--runs-dir", str(tmp_path / "runs"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert Path(reported["picture"]).read_bytes().startswith(b"\x89PNG")
    assert reported["results"]["q_risk"] == printed["q_risk"]


def test_ctrl_c_ends_the_command_with_130_and_says_how_to_go_on(data_file, tmp_path, capsys):
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())  # beside the configuration, as in a run folder
    command = [sys.executable, "-c", "import sys; from qat_tft.cli.app import main; sys.exit(main())"]
    words = [*options(data_file, tmp_path), "--epochs", "100000", "--patience", "100000"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "epoch 1:" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "qat-tft train --resume cli" in said
    assert "Traceback" not in said
    assert main(["train", "--resume", "cli", "--epochs", "1", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "keeps its settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--parquet-file", "none.parquet", "--time", "t", "--target", "y"], "no such file", id="file"),
        pytest.param(["--config", "none.toml"], "none.toml", id="config"),
        pytest.param(["--schema", "none.toml"], "none.toml", id="schema"),
        pytest.param(["--hidden", "30"], "--heads 4 must divide --hidden 30", id="shape"),
        pytest.param(["--quantiles", "low,high"], "numbers separated by commas", id="quantiles"),
        pytest.param(["--target-profile", "z80"], "--target-profile: ", id="target"),
        pytest.param(["--use-int8"], "set --use-qat as well", id="int8-without-qat"),
        pytest.param(["--validation-from", "2010-01-01"], "--test-from", id="one-cut"),
        pytest.param(["--resume"], "no unfinished run", id="nothing-to-resume"),
        pytest.param(["mine"], "Add --resume", id="stray-name"),
        pytest.param(["--device", "cuda"], "CUDA", id="device"),
        pytest.param(["--precision", "fp16"], "fp16 needs a CUDA device", id="precision"),
        pytest.param(["--checkpoint-segments", "lstm"], "lstm_encoder", id="segment"),
        pytest.param(["--checkpoint-segments", "lstm_encoder", "--checkpoint-mode", "full"], "drop one", id="both"),
        pytest.param(["--name", "a/b"], "is not a valid run name", id="name"),
        pytest.param(["--known", "snowfall", "--time", "time", "--target", "cnt"], "snowfall", id="column"),
    ],
)
def test_what_cannot_be_used_is_one_message_with_exit_code_2(tmp_path, monkeypatch, capsys, words, said):
    if torch.cuda.is_available() and words[0] in ("--device", "--precision"):
        pytest.skip("this machine has what the message says is missing")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words, "--json"]) == 2
    captured = capsys.readouterr()
    assert said in json.loads(captured.out)["error"]
    assert "Traceback" not in captured.err
    assert not (tmp_path / "runs").exists()


def test_help_needs_no_large_library_and_shows_defaults(capsys):
    code = "import sys, qat_tft.cli.app; sys.exit(bool(sys.modules.keys() & {'torch', 'numpy', 'pyarrow'}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert main(["train", "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert "Quantization" in shown
    assert "[default: 64]" in shown
