"""Input that cannot be used, of every kind: exit code 2, one message that says what and where, nothing half-written."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from qat_tft.cli.app import main

ROWS = 60
START = datetime(2024, 1, 1)
HOURS = [START + timedelta(hours=row // 2) for row in range(ROWS)]
ROLES = {"--time": "time", "--target": "y", "--id": "series", "--known": "hour", "--observed": "x"}
SHAPE = ["--history", "6", "--horizon", "3", "--hidden", "8", "--epochs", "1"]
Write = Callable[[Path], None]
Said = Sequence[str]


def table(rows: int = ROWS, **changes: object) -> pa.Table:
    """Two series, alternating by row; `changes` replace whole columns."""
    columns: dict[str, object] = {
        "series": ["a" if row % 2 else "b" for row in range(rows)],
        "time": [START + timedelta(hours=row // 2) for row in range(rows)],
        "y": [float(row % 7) for row in range(rows)],
        "hour": [(row // 2) % 24 for row in range(rows)],
        "x": [float(row % 5) for row in range(rows)],
    }
    return pa.table({**columns, **changes})


def changed(column: str, row: int, value: object) -> pa.Table:
    """A table with one value replaced."""
    values = table().column(column).to_pylist()
    values[row] = value
    return table(**{column: values})


def holds(make: Callable[[], pa.Table]) -> Write:
    """Write one table."""
    return lambda path: pq.write_table(make(), path)


def folder(*makes: Callable[[], pa.Table]) -> Write:
    """Write a folder of tables."""

    def write(path: Path) -> None:
        path.mkdir()
        for number, make in enumerate(makes):
            pq.write_table(make(), path / f"{number}.parquet")

    return write


def truncated(path: Path) -> None:
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-40])


def with_a_text_file(path: Path) -> None:
    folder(table)(path)
    (path / "notes.parquet").write_text("time,y\n1,2\n")


def two_columns_of_one_name() -> pa.Table:
    return table().append_column("x", pa.array([1.0] * ROWS))


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run a command that has to be refused: what it says, and that it leaves everything as it was."""

    def run(words: Sequence[object], said: Said) -> None:
        before = contents(tmp_path)
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, "")
        assert "Traceback" not in printed.err
        message = printed.err.split("error: ")
        assert len(message) == 2, printed.err
        assert [word for word in said if word not in message[1]] == [], message[1]
        assert message[1].count("\n") == 1, message[1]
        assert contents(tmp_path) == before

    return run


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder; empty folders do not count."""
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def training(data: Path, *options: str, **roles: str) -> list[str]:
    """A training on this data that would work but for what is broken; keywords replace role options."""
    named = {**ROLES, **{f"--{role}": columns for role, columns in roles.items()}}
    given = [word for pair in named.items() for word in pair]
    return ["train", "--parquet-file", str(data), *given, *SHAPE, *options, "--runs-dir", str(data.parent / "runs")]


FILES = [
    pytest.param(holds(lambda: table().drop_columns("x")), ["no column 'x'"], id="missing column"),
    pytest.param(holds(two_columns_of_one_name), ["2 columns are called 'x'"], id="two columns of one name"),
    pytest.param(holds(lambda: table(y=["high"] * ROWS)), ["'y'", "string"], id="target that is text"),
    pytest.param(holds(lambda: table(y=[START] * ROWS)), ["'y'", "timestamp"], id="target that is a time"),
    pytest.param(holds(lambda: table(x=[[1.0]] * ROWS)), ["'x'", "list"], id="list column"),
    pytest.param(holds(lambda: table(x=[{"a": 1.0}] * ROWS)), ["'x'", "struct"], id="struct column"),
    pytest.param(holds(lambda: table(x=[b"a"] * ROWS)), ["'x'", "binary"], id="bytes"),
    pytest.param(holds(lambda: table(series=[[1]] * ROWS)), ["'series'", "list"], id="nested id"),
    pytest.param(holds(lambda: changed("series", 5, None)), ["'series'", "row 5"], id="null id"),
    pytest.param(holds(lambda: table(time=["monday"] * ROWS)), ["'time'", "monday"], id="text that is no time"),
    pytest.param(holds(lambda: changed("time", 4, None)), ["'time'", "row 4"], id="null time"),
    pytest.param(holds(lambda: table(time=[1.5] * ROWS)), ["'time'", "double"], id="time that is a fraction"),
    pytest.param(holds(lambda: table(time=[time(12)] * ROWS)), ["'time'", "time64"], id="time of day"),
    pytest.param(holds(lambda: changed("time", 7, datetime(9999, 12, 31))), ["'time'", "9999"], id="placeholder date"),
    pytest.param(holds(lambda: changed("x", 7, None)), ["'x'", "7"], id="null"),
    pytest.param(holds(lambda: changed("y", 8, float("nan"))), ["'y'", "8"], id="NaN in the target"),
    pytest.param(holds(lambda: table(x=[0.5] * ROWS)), ["same value", ": x."], id="constant column"),
    pytest.param(holds(lambda: table(y=[2.0] * ROWS)), ["same value", ": y."], id="constant target"),
    pytest.param(holds(lambda: changed("x", 9, float("inf"))), ["'x'", "9"], id="infinity"),
    pytest.param(holds(lambda: table(x=pa.nulls(ROWS, pa.float64()))), ["'x'"], id="all null"),
    pytest.param(holds(lambda: table(y=pa.nulls(ROWS))), ["'y'"], id="target of type null"),
    pytest.param(holds(lambda: changed("x", 58, 1e30)), ["'x'", "1e+30", "missing"], id="fill value"),
    pytest.param(holds(lambda: changed("x", 3, 1e300)), ["'x'", "1e+300", "float32"], id="beyond float32"),
    pytest.param(
        holds(lambda: table(x=[1e12 + row % 5 for row in range(ROWS)])), ["'x'", "float32"], id="lost in float32"
    ),
    pytest.param(holds(lambda: changed("time", 4, START)), ["series=b", "2024-01-01"], id="two rows of one time"),
    pytest.param(holds(lambda: pa.concat_tables([table(), table()])), ["60 rows"], id="every row twice"),
    pytest.param(holds(lambda: table(12)), ["0 train windows", "need 9 rows", "longest has 6"], id="too short"),
    pytest.param(holds(lambda: table(0)), ["no rows"], id="no rows"),
    pytest.param(lambda path: path.write_text("time,y\n1,2\n"), ["Parquet"], id="not a Parquet file"),
    pytest.param(truncated, ["Parquet"], id="truncated"),
    pytest.param(lambda path: path.write_bytes(b""), ["Parquet"], id="empty file"),
    pytest.param(lambda path: None, ["no such file"], id="no file"),
    pytest.param(lambda path: path.mkdir(), ["no .parquet file"], id="empty folder"),
    pytest.param(with_a_text_file, ["notes.parquet", "Parquet"], id="folder with a text file"),
    pytest.param(
        folder(table, lambda: table(time=list(range(ROWS)))), ["'time'", "int64", "timestamp"], id="two kinds of time"
    ),
    pytest.param(folder(table, lambda: table(y=["a"] * ROWS)), ["'y'", "string"], id="number in one file, text in one"),
    pytest.param(folder(table, lambda: table().drop_columns("time")), ["1.parquet", "'time'"], id="file without time"),
    pytest.param(folder(table, table), ["60 rows", "repeat"], id="the same rows in two files"),
]


@pytest.mark.parametrize(("write", "said"), FILES)
def test_data_that_cannot_be_used_are_refused(write: Write, said: Said, tmp_path: Path, refused) -> None:
    path = tmp_path / "data.parquet"
    write(path)
    refused(training(path), ["data.parquet", *said])


def daily() -> pa.Table:
    return table(time=[date(2024, 1, 1) + timedelta(days=row // 2) for row in range(ROWS)])


def steps() -> pa.Table:
    return table(time=[row // 2 for row in range(ROWS)])


def with_a_gap() -> pa.Table:
    return table().filter(pa.array([row not in (20, 22) for row in range(ROWS)]))


def off_the_hour() -> pa.Table:
    return changed("time", 20, HOURS[20] + timedelta(minutes=7))


USES = [
    pytest.param(lambda: table(x=["high"] * ROWS), [], {"observed": "x:real"}, ["'x'", "string"], id="text as number"),
    pytest.param(lambda: table(x=[0.5] * ROWS), [], {"observed": "x:category"}, ["'x'", "whole"], id="half a category"),
    pytest.param(
        lambda: table(x=[START] * ROWS), [], {"known": "x", "observed": ""}, ["'x'", "timestamp"], id="time as known"
    ),
    pytest.param(table, [], {"static": "x", "observed": ""}, ["'x' changes within series=b"], id="static that changes"),
    pytest.param(table, [], {"target": "y,x"}, ["--target names 2 columns", "per target"], id="two targets"),
    pytest.param(table, [], {"target": "time"}, ["'time' is both time and target"], id="time as target"),
    pytest.param(table, [], {"known": "hour,x"}, ["'x' is both observed and known"], id="two roles"),
    pytest.param(table, [], {"known": "hour,hour"}, ["'hour' stands more than once"], id="named twice"),
    pytest.param(table, [], {"known": "hours"}, ["no column 'hours'", "'hour'?"], id="unknown column"),
    pytest.param(table, [], {"id": "shop"}, ["no column 'shop'"], id="unknown id"),
    pytest.param(table, [], {"id": ""}, ["30 rows repeat", "id"], id="id left out"),
    pytest.param(table, [], {"time": ""}, ["--time names 0 columns"], id="no time"),
    pytest.param(steps, ["--calendar", "month"], {}, ["steps, which have no calendar"], id="calendar of steps"),
    pytest.param(daily, ["--calendar", "hour"], {}, ["dates, which have no hour"], id="hour of dates"),
    pytest.param(with_a_gap, ["--gaps", "error"], {}, ["series=b", "2024-01-01"], id="gap"),
    pytest.param(off_the_hour, ["--gaps", "fill"], {}, ["series=b", "10:07"], id="filling between steps"),
    pytest.param(
        lambda: changed("y", 3, -1.0), ["--target-transform", "log"], {}, ["'y'", "-1"], id="logarithm of a negative"
    ),
    pytest.param(table, ["--target-transform", "softplus"], {}, ["'y'", "0"], id="softplus of a zero"),
    pytest.param(table, ["--missing", "wnd=mean"], {}, ["'wnd'", "y, x, hour"], id="policy of an unknown column"),
    pytest.param(
        table, ["--missing", "hour=mean"], {"known": "hour:category"}, ["'hour'", "category"], id="policy of a category"
    ),
    pytest.param(
        table, ["--validation-from", "2030-01-01", "--test-from", "2031-01-01"], {}, ["0 validation"], id="split beyond"
    ),
    pytest.param(
        table, ["--validation-from", "2001-01-01", "--test-from", "2002-01-01"], {},
        ["--validation-from 2001", "no row for training"], id="split before",
    ),
    pytest.param(
        table, ["--validation-from", "2024-01-02", "--test-from", "2024-01-01"], {},
        ["--validation-from lies after --test-from"], id="split in the wrong order",
    ),
    pytest.param(
        table, ["--validation-from", "soon", "--test-from", "2024-01-02"], {},
        ["--validation-from is 'soon'", "ISO 8601"], id="split that is no time",
    ),
    pytest.param(table, ["--history", "200"], {}, ["need 203 rows", "longest has 30"], id="history beyond the data"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "roles", "said"), USES)
def test_data_used_in_a_way_that_does_not_fit_are_refused(
    make: Callable[[], pa.Table], options: list[str], roles: dict[str, str], said: Said, tmp_path: Path, refused
) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(make(), path)
    refused(training(path, *options, **roles), said)


OPTIONS = [
    pytest.param(["--batch-size", "0"], ["--batch-size", "1"], id="batch of 0"),
    pytest.param(["--history", "0"], ["--history"], id="no history"),
    pytest.param(["--horizon", "0"], ["--horizon"], id="no horizon"),
    pytest.param(["--selection-chunk", "0"], ["--selection-chunk"], id="chunk of 0"),
    pytest.param(["--heads", "3"], ["--heads 3 must divide --hidden 8"], id="heads"),
    pytest.param(["--dropout", "1"], ["--dropout", "less than 1"], id="dropout of everything"),
    pytest.param(["--quantiles", "0.9,0.1"], ["--quantiles", "ascending"], id="quantiles out of order"),
    pytest.param(["--quantiles", "0.1,0.1"], ["--quantiles", "ascending"], id="quantile twice"),
    pytest.param(["--quantiles", "0.5,1.5"], ["--quantiles", "less than 1"], id="quantile beyond 1"),
    pytest.param(["--quantiles", ""], ["--quantiles", "at least one"], id="no quantile"),
    pytest.param(["--quantiles", "low,high"], ["--quantiles", "numbers"], id="quantiles that are words"),
    pytest.param(["--learning-rate", "-1"], ["--learning-rate"], id="negative learning rate"),
    pytest.param(["--seasonal-difference", "9"], ["--seasonal-difference 9", "--history 6"], id="season too long"),
    pytest.param(["--min-history", "7"], ["--min-history 7", "--history 6"], id="shortest history too long"),
    pytest.param(["--validation", "0.6", "--test", "0.4"], ["--validation", "--test", "no training"], id="no training"),
    pytest.param(["--validation-from", "2024-01-02"], ["--test-from"], id="one of two cuts"),
    pytest.param(["--standardize", "city"], ["--standardize", "'series' or 'global'"], id="standardize"),
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
    options: list[str], said: Said, tmp_path: Path, refused
) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(table(), path)
    refused(training(path, *options), said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("options", [["--device", "cuda"], ["--precision", "fp16"]], ids=["device", "fp16"])
def test_what_needs_a_gpu_is_refused_without_one(options: list[str], tmp_path: Path, refused) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(table(), path)
    refused(training(path, *options), [options[0], "CUDA"])


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
def test_a_schema_file_that_cannot_be_used_is_refused(text: str, said: Said, tmp_path: Path, refused) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    (tmp_path / "roles.toml").write_text(text)
    words = ["train", "--parquet-file", tmp_path / "data.parquet", "--schema", tmp_path / "roles.toml"]
    where = "data.parquet" if "no column" in said[0] else "roles.toml"
    refused([*words, *SHAPE, "--runs-dir", tmp_path / "runs"], [where, *said])


def test_a_schema_file_that_is_no_text_is_refused(tmp_path: Path, refused) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    (tmp_path / "roles.toml").write_bytes(b"\xff\xfe\x00")
    words = ["train", "--parquet-file", tmp_path / "data.parquet", "--schema", tmp_path / "roles.toml"]
    refused([*words, "--runs-dir", tmp_path / "runs"], ["roles.toml", "not UTF-8"])


def test_data_without_any_schema_are_refused_with_the_ways_to_give_one(tmp_path: Path, refused) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    words = ["train", "--parquet-file", tmp_path / "data.parquet", "--runs-dir", tmp_path / "runs"]
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
def test_a_configuration_file_that_cannot_be_used_is_refused(text: str, said: Said, tmp_path: Path, refused) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    (tmp_path / "my.toml").write_text(text)
    refused(training(tmp_path / "data.parquet", "--config", str(tmp_path / "my.toml")), ["my.toml", *said])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    pytest.param("inspect {data} --write-schema {data}", ["exists already"], id="schema over a file"),
    pytest.param("inspect {data} --write-schema {tmp}/no/s.toml", ["s.toml", "No such"], id="schema into no folder"),
    pytest.param("sample-data --preset gold --out {tmp}/g.parquet", ["'gold'", "tft225"], id="unknown preset"),
    pytest.param("sample-data --rows 1 --out {tmp}/g.parquet", ["1 rows are too few"], id="too few rows"),
    pytest.param("sample-data --out {data}", ["exists already", "--overwrite"], id="sample over a file"),
    pytest.param("sample-data --out {tmp}/no/g.parquet", ["g.parquet", "cannot be written"], id="no folder"),
    pytest.param("plan --memory-budget lots", ["--memory-budget", "'lots'"], id="plan for any memory"),
    pytest.param("plan --parquet-file {data}", ["data.schema.toml"], id="plan for data without a schema"),
]


@pytest.mark.parametrize(("words", "said"), COMMANDS)
def test_other_commands_refuse_what_is_not_there_or_in_the_way(
    words: str, said: Said, runs: Path, tmp_path: Path, refused
) -> None:
    data = tmp_path / "data.parquet"
    pq.write_table(table(), data)
    refused([word.format(runs=runs / "runs", tmp=tmp_path, data=data) for word in words.split()], said)


def test_a_run_of_that_name_is_not_written_over(runs: Path, refused) -> None:
    refused([*training(runs / "data.parquet"), "--name", "mine"], ["mine", "finished run of that name"])


def test_a_file_where_the_runs_folder_should_be_is_refused(tmp_path: Path, refused) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    (tmp_path / "runs").write_text("a file")
    refused(training(tmp_path / "data.parquet"), [str(tmp_path / "runs")])


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, refused) -> None:
    pq.write_table(table(), tmp_path / "data.parquet")
    (tmp_path / "runs").mkdir(mode=0o500)
    refused(training(tmp_path / "data.parquet"), [str(tmp_path / "runs"), "Permission"])


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
