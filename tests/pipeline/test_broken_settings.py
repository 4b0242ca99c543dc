"""Settings, schemas, runs and commands that cannot be: exit code 2, one message, nothing half-written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree

import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.cli.app import main

SHAPE = ["--history", "6", "--horizon", "3", "--hidden", "8", "--epochs", "1"]
Said = Sequence[str]


OPTIONS = [
    pytest.param(["--batch-size", "0"], ["--batch-size", "1"], id="batch of 0"),
    pytest.param(["--history", "0"], ["--history"], id="no history"),
    pytest.param(["--horizon", "0"], ["--horizon"], id="no horizon"),
    pytest.param(["--selection-chunk", "0"], ["--selection-chunk"], id="chunk of 0"),
    pytest.param(["--knots", "2"], ["--knots", "greater than or equal to 3"], id="two knots"),
    pytest.param(["--selection", "sorted"], ["--selection", "tabulated", "exact"], id="unknown selection"),
    pytest.param(["--heads", "3"], ["--heads 3 must divide --hidden 8"], id="heads"),
    pytest.param(["--dropout", "1"], ["--dropout", "less than 1"], id="dropout of everything"),
    pytest.param(["--quantiles", "0.9,0.1"], ["--quantiles", "ascending"], id="quantiles out of order"),
    pytest.param(["--quantiles", "0.1,0.1"], ["--quantiles", "ascending"], id="quantile twice"),
    pytest.param(["--quantiles", "0.5,1.5"], ["--quantiles", "less than 1"], id="quantile beyond 1"),
    pytest.param(["--quantiles", ""], ["--quantiles", "at least one"], id="no quantile"),
    pytest.param(["--quantiles", "low,high"], ["--quantiles", "numbers"], id="quantiles that are words"),
    pytest.param(["--learning-rate", "-1"], ["--learning-rate"], id="negative learning rate"),
    pytest.param(["--min-history", "7"], ["--min-history 7", "--history 6"], id="shortest history too long"),
    pytest.param(["--validation", "0.6", "--test", "0.4"], ["--validation", "--test", "no training"], id="no training"),
    pytest.param(["--validation-from", "2024-01-02"], ["--test-from"], id="one of two cuts"),
    pytest.param(["--normalize", "city"], ["--normalize", "'window', 'series' or 'global'"], id="normalize"),
    pytest.param(["--linear-path", "lasso"], ["--linear-path", "'ridge'"], id="linear-path"),
    pytest.param(
        ["--linear-path", "seasonal-naive", "--season", "1000"],
        ["--linear-path", "a season of 1000 rows gives no linear path"],
        id="season-beyond-the-history",
    ),
    pytest.param(["--duplicates", "first"], ["--duplicates", "'last'"], id="duplicates"),
    pytest.param(["--gaps", "leap"], ["--gaps", "'split'"], id="gaps"),
    pytest.param(["--missing", "guess"], ["'guess'", "forward"], id="missing"),
    pytest.param(["--missing", "mean,zero"], ["twice"], id="two defaults"),
    pytest.param(["--target-transform", "square"], ["--target-transform", "'log1p'"], id="transform"),
    pytest.param(["--calendar", "hours"], ["--calendar", "'hours'", "did you mean hour"], id="calendar"),
    pytest.param(["--calendar", "year:category"], ["--calendar", "'category'"], id="form of a calendar feature"),
    pytest.param(["--calendar", "hour,hour"], ["--calendar", "twice"], id="calendar feature twice"),
    pytest.param(["--checkpoint-mode", "some"], ["--checkpoint-mode", "'aggressive'"], id="mode"),
    pytest.param(["--checkpoint-segments", "head"], ["--checkpoint-segments", "'head'", "lstm_decoder"], id="segment"),
    pytest.param(["--memory-budget", "3.5GiB"], ["--memory-budget", "--checkpoint-mode auto"], id="budget alone"),
    pytest.param(
        ["--checkpoint-mode", "auto", "--memory-budget", "plenty"], ["--memory-budget", "'plenty'"], id="budget"
    ),
    pytest.param(["--precision", "int4"], ["--precision", "'bf16'"], id="precision"),
    pytest.param(["--device", "tpu"], ["--device", "'cuda'"], id="device"),
    pytest.param(["--use-int8"], ["--use-int8", "--use-qat"], id="INT8 without QAT"),
    pytest.param(["--target-profile", "z80"], ["--target-profile", "'x86'"], id="target profile"),
    pytest.param(["--qat-ranges", "wide"], ["--qat-ranges", "'learned'"], id="ranges"),
    pytest.param(["--calibrator", "crystal"], ["--calibrator", "'crystal'"], id="calibrator"),
    pytest.param(["--seed", "-1"], ["--seed"], id="seed"),
    pytest.param(["--use-qat", "--float-layers", "nothing"], ["--float-layers", "nothing", "lstm_encoder"], id="layer"),
    pytest.param(["--schema", "nowhere.toml"], ["nowhere.toml", "cannot be read"], id="no schema file"),
    pytest.param(["--config", "nowhere.toml"], ["nowhere.toml", "cannot read"], id="no configuration file"),
    pytest.param(["--resume"], ["a resumed run keeps its settings"], id="resume with settings"),
    pytest.param(["mine"], ["unexpected argument 'mine'", "--resume"], id="argument"),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS)
def test_options_that_cannot_be_are_refused_by_their_names(
    options: list[str], said: Said, data_file: Path, training, refused
) -> None:
    refused(training(data_file, *options), said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("options", [["--device", "cuda"], ["--precision", "fp16"]], ids=["device", "fp16"])
def test_what_needs_a_gpu_is_refused_without_one(options: list[str], data_file: Path, training, refused) -> None:
    refused(training(data_file, *options), [options[0], "CUDA"])


WHOLE = """time = "time"
target = "y"
id = "series"
[known]
real = ["hour"]
"""

SCHEMAS = [
    pytest.param('time = "time"', ["target", "missing"], id="no target"),
    pytest.param("time = time", ["not TOML"], id="not TOML"),
    pytest.param(WHOLE + "[observed]\nrael = ['x']", ["unknown key 'observed.rael'"], id="unknown key"),
    pytest.param(WHOLE + "[future]\nreal = ['x']", ["unknown key 'future'"], id="unknown role"),
    pytest.param(WHOLE + "[observed]\nreal = 'x'", ["'observed.real'"], id="text for a list"),
    pytest.param(WHOLE + "[observed]\nreal = [3]", ["'observed.real.0'"], id="number for a name"),
    pytest.param(WHOLE + "[observed]\nreal = ['hour']", ["'hour' is both observed and known"], id="two roles"),
    pytest.param(WHOLE.replace('"y"', '["y", "x"]'), ["target names 2 columns", "per target"], id="two targets"),
    pytest.param(WHOLE.replace('"y"', '""'), ["'target'"], id="empty name"),
    pytest.param(WHOLE.replace("hour", "hours"), ["no column 'hours'"], id="unknown column"),
]


@pytest.mark.parametrize(("text", "said"), SCHEMAS)
def test_a_schema_file_that_cannot_be_used_is_refused(
    text: str, said: Said, tmp_path: Path, data_file: Path, refused
) -> None:
    (tmp_path / "roles.toml").write_text(text)
    words = ["train", "--parquet-file", data_file, "--schema", tmp_path / "roles.toml"]
    where = "data.parquet" if "no column" in said[0] else "roles.toml"
    refused([*words, *SHAPE, "--runs-dir", tmp_path / "runs"], [where, *said])


def test_a_schema_file_that_is_no_text_is_refused(tmp_path: Path, data_file: Path, refused) -> None:
    (tmp_path / "roles.toml").write_bytes(b"\xff\xfe\x00")
    words = ["train", "--parquet-file", data_file, "--schema", tmp_path / "roles.toml"]
    refused([*words, "--runs-dir", tmp_path / "runs"], ["roles.toml", "not UTF-8"])


def test_data_without_any_schema_are_refused_with_the_ways_to_give_one(
    tmp_path: Path, data_file: Path, refused
) -> None:
    words = ["train", "--parquet-file", data_file, "--runs-dir", tmp_path / "runs"]
    refused(words, ["data.parquet", "--schema", "--time", "inspect"])


CONFIGS = [
    pytest.param("[training", ["not TOML"], id="not TOML"),
    pytest.param("[trainning]\nepochs = 1", ["unknown key trainning", "training"], id="unknown section"),
    pytest.param("[training]\nepoch = 1", ["unknown key training.epoch", "epochs"], id="unknown key"),
    pytest.param("[training]\npatience = 'long'", ["training.patience"], id="text for a number"),
    pytest.param("[training]\nbatch_size = 0", ["training.batch_size", "not 0"], id="batch of 0"),
    pytest.param("[model]\nheads = 3", ["model.heads 3 must divide --hidden 8"], id="key against option"),
    pytest.param("[data]\ncalendar = ['hours']", ["data.calendar", "'hours'"], id="calendar"),
]


@pytest.mark.parametrize(("text", "said"), CONFIGS)
def test_a_configuration_file_that_cannot_be_used_is_refused(
    text: str, said: Said, tmp_path: Path, data_file: Path, training, refused
) -> None:
    (tmp_path / "my.toml").write_text(text)
    refused(training(data_file, "--config", str(tmp_path / "my.toml")), ["my.toml", *said])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, training, table) -> Path:
    """A runs folder with one run in FP32, of one step."""
    root = tmp_path_factory.mktemp("trained")
    pq.write_table(table(240), root / "data.parquet")
    (root / "short.toml").write_text("[training]\nbatches_per_epoch = 1\n")
    assert main([*training(root / "data.parquet", "--config", str(root / "short.toml")), "--name", "mine"]) == 0
    return root


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = [
    pytest.param("export", "config.toml", Path.unlink, ["config.toml"], id="no configuration"),
    pytest.param("export", "config.toml", lambda path: path.write_text("x"), ["config.toml"], id="other configuration"),
    pytest.param("export", "schema.toml", Path.unlink, ["schema.toml"], id="no schema"),
    pytest.param("export", "preprocessing.json", cut_short, ["preprocessing.json"], id="preprocessing cut short"),
    pytest.param(
        "export", "preprocessing.json", lambda path: path.write_text("{}"), ["preprocessing.json"], id="empty JSON"
    ),
    pytest.param("export", "fp32.safetensors", cut_short, ["fp32.safetensors"], id="weights cut short"),
    pytest.param("export", "fp32.safetensors", Path.unlink, ["fp32.safetensors"], id="no weights"),
    pytest.param(
        "export", "config.toml",
        lambda path: path.write_text(path.read_text().replace("hidden = 8", "hidden = 16")),
        ["fp32.safetensors"], id="weights of another shape",
    ),
    pytest.param("check", "config.toml", lambda path: None, ["no ONNX file", "export"], id="not exported"),
    pytest.param("report", "results.json", cut_short, ["results.json"], id="results cut short"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "file", "damage", "said"), DAMAGE)
def test_a_damaged_run_is_refused(
    command: str, file: str, damage: Callable[[Path], object], said: Said, runs: Path, tmp_path: Path, refused
) -> None:
    copytree(runs / "runs", tmp_path / "runs")
    damage(tmp_path / "runs" / "mine" / file)
    refused([command, "--runs-dir", tmp_path / "runs"], said)


COMMANDS = [
    pytest.param("export other --runs-dir {runs}", ["other", "no run"], id="unknown run"),
    pytest.param("export --runs-dir {tmp}/nowhere", ["nowhere"], id="no runs folder"),
    pytest.param("export mine --int8 --runs-dir {runs}", ["--use-qat"], id="INT8 of a run without QAT"),
    pytest.param("report {tmp} --runs-dir {runs}", ["config.toml"], id="folder that is no run"),
    pytest.param("backtest other --runs-dir {runs}", ["other"], id="backtest of no run"),
    pytest.param(
        "backtest mine --from soon --runs-dir {runs}",
        ["--from soon", "2024-01-01T"],
        id="backtest at no time",
    ),
    pytest.param("backtest mine --from 2030-01-01 --runs-dir {runs}", ["2030-01-01"], id="backtest beyond the data"),
    pytest.param("train --resume --runs-dir {runs}", ["unfinished"], id="nothing to resume"),
    pytest.param("predict {tmp}/no.onnx --parquet-file {data}", ["no.onnx", "no such file"], id="no ONNX file"),
    pytest.param("predict {data} --parquet-file {data}", ["data.parquet", "ONNX"], id="data as ONNX file"),
    pytest.param("inspect {tmp}/no.parquet", ["no.parquet", "no such file"], id="inspect no file"),
    pytest.param("inspect {data} --target z", ["no column 'z'"], id="inspect unknown target"),
    pytest.param("inspect {data} --write-schema {data}", ["already exists"], id="schema over a file"),
    pytest.param("inspect {data} --write-schema {tmp}/no/s.toml", ["s.toml", "No such"], id="schema into no folder"),
    pytest.param("sample-data --preset gold --out {tmp}/g.parquet", ["'gold'", "tft225"], id="unknown preset"),
    pytest.param("sample-data --rows 1 --out {tmp}/g.parquet", ["1 rows are too few"], id="too few rows"),
    pytest.param("sample-data --out {data}", ["already exists", "--overwrite"], id="sample over a file"),
    pytest.param("sample-data --out {tmp}/no/g.parquet", ["g.parquet", "cannot be written"], id="no folder"),
    pytest.param("plan --memory-budget lots", ["--memory-budget", "'lots'"], id="plan for any memory"),
    pytest.param("plan --parquet-file {data}", ["data.schema.toml"], id="plan for data without a schema"),
]


@pytest.mark.parametrize(("words", "said"), COMMANDS)
def test_other_commands_refuse_what_is_not_there_or_in_the_way(
    words: str, said: Said, runs: Path, tmp_path: Path, data_file: Path, refused
) -> None:
    refused([word.format(runs=runs / "runs", tmp=tmp_path, data=data_file) for word in words.split()], said)


def test_a_run_of_that_name_is_not_written_over(runs: Path, training, refused) -> None:
    refused([*training(runs / "data.parquet"), "--name", "mine"], ["mine", "finished run of that name"])


def test_a_file_where_the_runs_folder_should_be_is_refused(tmp_path: Path, data_file: Path, training, refused) -> None:
    (tmp_path / "runs").write_text("a file")
    refused(training(data_file), [str(tmp_path / "runs")])


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, data_file: Path, training, refused) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    refused(training(data_file), [str(tmp_path / "runs"), "Permission"])


USAGE = [
    pytest.param(["train", "--epochs", "many"], "--epochs", id="not a number"),
    pytest.param(["train", "--epoch", "3"], "--epoch", id="unknown option"),
    pytest.param(["frobnicate"], "frobnicate", id="unknown command"),
    pytest.param(["predict"], "Missing", id="missing argument"),
]


@pytest.mark.parametrize(("words", "said"), USAGE)
def test_wrong_usage_is_told_with_the_way_to_help(words: list[str], said: str, capsys) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "-h" in printed.err
    assert "Traceback" not in printed.err


def test_the_same_rows_unbroken_are_trained(runs: Path) -> None:
    assert (runs / "runs" / "mine" / "results.json").is_file()
