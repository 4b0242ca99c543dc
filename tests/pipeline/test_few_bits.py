"""Weights of few bits from training to the file: the control, distillation, `auto`, and a run quantized anew."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from qat_tft.cli.app import main
from qat_tft.config.run import RunConfig
from qat_tft.export.build.run_export import plan_int8, write_plans
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.results import RunResults
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.job import resume, train
from qat_tft.training.progress import Silent, StepReport

ROLES = "time=time target=load id=plant static=plant:category observed=wind known=phase"
SMALL = (
    "linear-path=off history=12 horizon=4 hidden=8 heads=2 batch-size=16 batches-per-epoch=4 epochs=1 products=integer "
    "qat-epochs=2"
)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    random, hours = np.random.default_rng(0), np.arange(240)
    tables = [
        pa.table(
            {
                "plant": [plant] * len(hours),
                "time": (hours * 3600).astype("datetime64[s]"),
                "load": level + 3 * np.sin(hours * 2 * np.pi / 24) + 0.3 * random.normal(size=len(hours)),
                "wind": random.normal(size=len(hours)),
                "phase": np.cos(hours * 2 * np.pi / 24),
            }
        )
        for level, plant in ((10.0, "north"), (50.0, "south"))
    ]
    path = tmp_path_factory.mktemp("data") / "plants.parquet"
    pq.write_table(pa.concat_tables(tables), path)
    given = [f"--{setting}" for setting in f"{ROLES} {SMALL}".split()]
    return ["train", "--parquet-file", str(path), "--use-qat", *given]


def trained(options: list[str], runs: Path, name: str, *more: str) -> RunFolder:
    assert main([*options, *more, "--runs-dir", str(runs), "--name", name]) == 0
    return RunFolder.open(runs / name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def four(options, runs) -> RunFolder:
    return trained(options, runs, "four", "--weight-bits", "4", "--distill", "0.5")


def epochs_of(run: RunFolder) -> list[dict]:
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == "epoch"]


def test_fp32_trained_on_stands_beside_qat(four: RunFolder) -> None:
    results = four.load_results()
    assert list(results.q_risk)[:4] == ["fp32", "ptq", "qat", "continued"]
    phases = [line["phase"] for line in epochs_of(four)]
    assert phases == ["fp32", "qat", "qat", "continued", "continued"]
    assert results.validation_loss["continued"] < results.validation_loss["fp32"]
    assert {"fp32", "qat", "continued"} <= results.validation_loss.keys()
    assert any(note.startswith(("Kept are the QAT weights of epoch", "No QAT epoch")) for note in results.notes)


def test_each_qat_epoch_says_which_share_of_the_codes_it_changed(four: RunFolder) -> None:
    shares = [line.get("codes_changed") for line in epochs_of(four)]
    assert shares[0] is None
    assert all(0 < share < 1 for share in shares[1:3])
    assert shares[3:] == [None, None]


def test_the_tables_name_the_control_and_nothing_is_left_of_the_teacher(four: RunFolder, capsys) -> None:
    assert main(["report", str(four.path)]) == 0
    assert "FP32, trained on" in capsys.readouterr().out
    assert not (four.path / "teacher.scratch").exists()


def test_checkpointing_changes_no_bit_of_distilled_few_bit_training(options, four, tmp_path) -> None:
    """In the mode that recomputes every segment that another mode recomputes."""
    few = ("--weight-bits", "4", "--distill", "0.5")
    other = trained(options, tmp_path, "checkpointed", *few, "--checkpoint-mode", "full")
    one, another = (load_file(run.weights_file("qat")) for run in (four, other))
    assert one.keys() == another.keys()
    assert [name for name in one if not torch.equal(one[name], another[name])] == []


def test_eight_bits_have_no_control_unless_it_is_asked_for(options, runs, four) -> None:
    eight = trained(options, runs, "eight")
    assert "continued" not in eight.load_results().q_risk
    fp32 = load_file(eight.weights_file("fp32"))
    assert all(torch.equal(fp32[name], value) for name, value in load_file(four.weights_file("fp32")).items())


def test_a_run_is_quantized_anew_without_its_fp32_training(runs, four) -> None:
    words = [
        "quantize",
        str(four.path),
        "--weight-bits",
        "2",
        "--qat-epochs",
        "1",
        "--name",
        "two",
        "--runs-dir",
        str(runs),
    ]
    assert main(words) == 0
    two = RunFolder.open(runs / "two")
    assert two.weight_bits == 2
    assert [line["phase"] for line in epochs_of(two)] == ["qat", "continued"]
    assert two.load_results().q_risk["fp32"] == four.load_results().q_risk["fp32"]
    before, after = (load_file(run.weights_file("fp32")) for run in (four, two))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    config = two.load_config()
    assert config.quantization.distill == 0.5, "what is not given stays"
    result = write_plans(two, [plan_int8(two)])  # its FP32 file would be that of any run
    assert (two.path / "model.int2.onnx").is_file()
    assert (result.bits, result.packed) == (2, True)
    assert "INT2" in str(result.tables()[-1].title)


def test_auto_decides_every_layer_and_records_it(runs, four, capsys) -> None:
    words = ["quantize", str(four.path), "--weight-bits", "auto", "--max-drop", "5%", "--qat-epochs", "0"]
    assert main([*words, "--name", "auto", "--runs-dir", str(runs)]) == 0
    run = RunFolder.open(runs / "auto")
    settings = run.load_config().quantization
    assert (settings.weight_bits, settings.max_drop) == ("8", None)
    assert settings.layer_bits
    assert run.load_qat_model().low_bits() == dict(settings.layout.layers)
    assert any(note.startswith("Bits of the weights:") for note in run.load_results().notes)


@pytest.mark.parametrize("saved", [False, True], ids=["before the state tells", "once the state tells"])
def test_a_run_that_is_killed_while_it_decides_on_bits_ends_as_the_straight_one(
    runs, four, tmp_path, monkeypatch, saved
) -> None:
    write_config, written = RunFolder.write_config, []

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def killed_at_the_second(run: RunFolder, config: RunConfig) -> None:
        written.append(run.path)
        (killed if len(written) > 1 else write_config)(run, config)

    words = ["quantize", str(four.path), "--weight-bits", "auto", "--max-drop", "5%", "--qat-epochs", "1"]
    words += ["--calibrator", "auto", "--name", "bits", "--runs-dir"]
    if not (runs / "bits").exists():
        assert main([*words, str(runs)]) == 0
    straight = RunFolder.open(runs / "bits")
    with monkeypatch.context() as lethal:
        if saved:
            lethal.setattr(RunFolder, "write_config", killed_at_the_second)
        else:
            lethal.setattr("qat_tft.training.loop.Phase._save", killed)
        assert main([*words, str(tmp_path)]) == 130
    assert (tmp_path / "bits.unfinished" / "state.safetensors").exists() == saved
    resumed = resume(tmp_path, "bits")
    one, other = (load_file(run.weights_file("qat")) for run in (straight, resumed.folder))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert resumed.results.notes == straight.load_results().notes
    assert resumed.folder.load_config() == straight.load_config()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weight-bits", "3"], "--weight-bits"),
        (["--max-drop", "1%"], "go with --weight-bits auto"),
        (["--weight-bits", "auto", "--max-bytes", "1KB"], "less than the weights take with the fewest bits"),
        (["--weight-bits", "auto", "--max-drop", "much"], "--max-drop"),
        (["--layer-bits", "head"], "'head' is not a layer with its bits"),
        (["--layer-bits", "tail=4"], "there is no layer called 'tail'"),
        (["--distill", "1.5"], "--distill"),
        (["--use-int8", "--epochs", "3"], "No such option"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_message_and_exit_code_2(runs, four, capsys, tmp_path, words, said) -> None:
    assert main(["quantize", str(four.path), *words, "--runs-dir", str(tmp_path)]) == 2
    printed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in printed
    assert "Traceback" not in printed


def test_results_of_before_are_read(four: RunFolder) -> None:
    value = four.load_results().to_json()
    del value["q_risk"]["continued"]
    assert "continued" not in RunResults.from_json(value).q_risk


class Stopping(Silent):
    """Presses Ctrl-C at a step."""

    def __init__(self, phase: str, step: int) -> None:
        self._at = (phase, step)

    def step(self, report: StepReport) -> None:
        if (report.phase, report.step) == self._at:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at", [("qat", 6), ("continued", 3)], ids=str)
def test_a_run_stopped_in_qat_or_in_its_control_ends_as_the_straight_one(four: RunFolder, tmp_path: Path, at) -> None:
    config, schema = four.load_config(), four.load_schema()
    with pytest.raises(Interrupted):
        train(config, schema, runs_dir=tmp_path, name="cut", progress=Stopping(*at))
    found = resume(tmp_path, "cut")
    one, other = (load_file(run.weights_file("qat")) for run in (four, found.folder))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert found.results.q_risk == four.load_results().q_risk
    shares = [line.get("codes_changed") for line in epochs_of(found.folder)]
    assert shares == [line.get("codes_changed") for line in epochs_of(four)]


class KilledAtCalibration(Silent):
    """Loses its power when FP32 training is over and QAT has not begun."""

    def note(self, text: str) -> None:
        if text.startswith("Calibrated"):
            raise SystemError("as if the power had failed")


def test_a_run_killed_between_fp32_and_qat_ends_as_the_straight_one(four: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(SystemError):
        train(four.load_config(), four.load_schema(), runs_dir=tmp_path, name="cut", progress=KilledAtCalibration())
    assert (tmp_path / "cut.unfinished" / "fp32.safetensors").is_file()
    found = resume(tmp_path, "cut")
    one, other = (load_file(run.weights_file("qat")) for run in (four, found.folder))
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert found.results.to_json()["q_risk"] == four.load_results().to_json()["q_risk"]
    assert found.results.validation_loss == four.load_results().validation_loss
