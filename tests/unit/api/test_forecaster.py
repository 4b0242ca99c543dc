"""A table in memory trains the run that its Parquet file trains, and the run goes on as any other."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import warnings
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qat_tft import Forecaster
from qat_tft.api import recipe
from qat_tft.cli.app import main
from qat_tft.data.reading import parquet
from qat_tft.errors import ConfigError, DataError, RunFolderError, SchemaError
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Columns, Schema
from qat_tft.training.interrupt import Interrupted
from qat_tft.training.progress import Silent, StepReport

ROLES = {"time": "time", "target": "load", "id": "plant", "static": "plant", "observed": "wind", "known": "phase"}
SETTINGS = {"history": 12, "horizon": 4, "hidden": 8, "heads": 2, "epochs": 1, "batch_size": 16, "batches_per_epoch": 3}
QAT = {"use_qat": True, "qat_epochs": 1}
WEIGHTS = ("fp32.safetensors", "qat.safetensors")


def plants() -> pa.Table:
    """Two plants of 240 hours, rows in no order."""
    random, hours = np.random.default_rng(0), np.arange(240)
    tables = [
        pa.table(
            {
                "plant": pa.array([plant] * len(hours)).dictionary_encode(),
                "time": (hours * 3_600_000_000_000).astype("datetime64[ns]"),
                "load": level + 3 * np.sin(hours * 2 * np.pi / 24) + 0.3 * random.normal(size=len(hours)),
                "wind": random.normal(size=len(hours)),
                "phase": np.cos(hours * 2 * np.pi / 24),
            }
        )
        for level, plant in ((10.0, "north"), (50.0, "south"))
    ]
    table = pa.concat_tables(tables)
    return table.take(random.permutation(table.num_rows))


class Once:
    """Speaks Arrow's stream interface, once."""

    def __init__(self, table: pa.Table) -> None:
        self._reader: Any = table.to_reader(max_chunksize=7)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader, self._reader = self._reader, None
        return reader.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def fitted(root: Path) -> Forecaster:
    return forecaster(root / "runs", **QAT).fit(Once(plants()), name="table")


def forecaster(runs_dir: Path, **more: Any) -> Forecaster:
    return Forecaster(**{**ROLES, **SETTINGS, "runs_dir": runs_dir, **more})


def words(data: Path, runs_dir: Path, **more: Any) -> list[str]:
    """What is typed for the same training."""
    given = {**ROLES, **SETTINGS, "parquet_file": data, "runs_dir": runs_dir, **more}
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in given.items()]
    return ["train", *(word for flag, value in pairs for word in ([flag] if value is True else [flag, str(value)]))]


def test_a_table_trains_the_same_bits_as_the_command_on_its_file(fitted: Forecaster, root: Path) -> None:
    pq.write_table(plants(), root / "plants.parquet")
    assert main(words(root / "plants.parquet", root / "runs", name="file", **QAT)) == 0
    file = RunFolder.open(root / "runs" / "file")
    assert [(fitted.run / name).read_bytes() == (file.path / name).read_bytes() for name in WEIGHTS] == [True, True]
    mine, other = fitted.results, file.load_results()
    assert (mine.q_risk, mine.coverage, mine.notes) == (other.q_risk, other.coverage, other.notes)
    assert (fitted.run / layout.SCHEMA).read_text() == (file.path / layout.SCHEMA).read_text()
    config = (fitted.run / layout.CONFIG).read_text()
    own = file.load_config().with_own_table().to_toml()
    assert config == own


def test_the_rows_stand_in_the_run_and_nothing_else_is_left(fitted: Forecaster) -> None:
    runs = fitted.run.parent
    assert {path.name for path in runs.iterdir()} <= {"table", "file", "latest"}
    assert pq.read_table(fitted.run / layout.TABLE).equals(plants())


def test_a_run_with_its_own_rows_can_be_moved_and_its_configuration_trains_again(
    fitted: Forecaster, tmp_path: Path
) -> None:
    moved = copytree(fitted.run, tmp_path / "elsewhere")
    there = Forecaster.load(moved)
    assert there.backtest(max_windows=3)["source"] == str(moved / layout.TABLE)
    elsewhere = there.backtest(plants(), max_windows=3)
    assert elsewhere["models"] == there.backtest(max_windows=3)["models"]
    assert elsewhere["source"] == "the table given as `data`"
    again = ["train", "--config", str(moved / layout.CONFIG), "--runs-dir", str(tmp_path), "--name", "again"]
    assert main([*again, "--epochs", "0", "--no-cache"]) == 0
    assert RunFolder(tmp_path / "again").load_config().data.parquet_files == (str(moved / layout.TABLE),)


def test_a_run_that_is_quantized_anew_has_the_rows_too(fitted: Forecaster, tmp_path: Path) -> None:
    first = copytree(fitted.run, tmp_path / "first")
    assert main(["quantize", str(first), "--qat-epochs", "0", "--runs-dir", str(tmp_path), "--name", "second"]) == 0
    rmtree(first)
    assert Forecaster.load(tmp_path / "second").backtest(max_windows=2)["windows"] == 2


def test_explanations_are_the_table_that_the_command_writes(fitted: Forecaster, tmp_path: Path) -> None:
    out = tmp_path / "weights.parquet"
    assert main(["explain", str(fitted.run), "--by-series", "--max-windows", "5", "--out", str(out)]) == 0
    assert fitted.explain(detail="series", max_windows=5).equals(pq.read_table(out))
    with pytest.raises(ConfigError, match="`detail` is 'step'"):
        fitted.explain(detail="step")  # type: ignore[arg-type]


def test_the_report_is_the_page_of_the_run(fitted: Forecaster, tmp_path: Path) -> None:
    page = fitted.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert "training-data.parquet" in page.read_text()


def test_a_backtest_is_the_object_that_the_command_prints(
    fitted: Forecaster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backtest", str(fitted.run), "--stride", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(fitted.backtest(stride=9)))
    with pytest.raises(ConfigError, match="`stride` is 0"):
        fitted.backtest(stride=0)
    with pytest.raises(ConfigError, match=r"`since` .* is not before `until`"):
        fitted.backtest(since="1970-01-10", until="1970-01-09")


def test_an_interrupted_fit_is_resumed_with_the_rows_in_its_folder(fitted: Forecaster, tmp_path: Path) -> None:
    class CtrlC(Silent):
        def step(self, report: StepReport) -> None:
            if (report.phase, report.step) == ("qat", 2):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        forecaster(tmp_path, progress=CtrlC(), **QAT).fit(plants(), name="broken")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.unfinished"]
    resumed = Forecaster.resume("broken", runs_dir=tmp_path)
    assert [(resumed.run / name).read_bytes() == (fitted.run / name).read_bytes() for name in WEIGHTS] == [True, True]
    assert (resumed.run / layout.CONFIG).read_text() == (fitted.run / layout.CONFIG).read_text()


def test_rows_that_are_kept_prepared_are_kept_for_the_file_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAPPED_BYTES", 0)
    kept = tmp_path / "cache"
    one = forecaster(tmp_path / "runs", cache_dir=kept, epochs=0).fit(plants())
    assert not kept.exists()
    one.backtest(max_windows=1)
    assert len([*kept.iterdir()]) == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"time": "when"}, SchemaError, "the table: there is no column 'when'", id="column"),
        pytest.param({"target": "load,wind"}, SchemaError, "`target` names 2 columns", id="two targets"),
        pytest.param({"history": 500}, DataError, "the table: ", id="history"),
        pytest.param({"validation_from": "1970-01-02"}, ConfigError, "`validation_from` and `test_from`", id="split"),
        pytest.param({"name": "x/y"}, RunFolderError, "'x/y' is not a valid run name.*another `name`", id="name"),
    ],
)
def test_a_refusal_names_arguments_and_the_table_and_leaves_nothing(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    name = changes.pop("name", None)
    with pytest.raises(error, match=message) as caught:
        forecaster(tmp_path / "runs", **changes).fit(plants(), name=name)
    assert str(tmp_path / "runs" / ".table") not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_pandas_index_without_a_name_is_told_of_before_training(tmp_path: Path) -> None:
    indexed = plants().rename_columns({"time": "__index_level_0__"}).replace_schema_metadata({b"pandas": b"{}"})
    with pytest.raises(SchemaError, match=r"the table: there is no column 'time'.*call reset_index\(\)"):
        forecaster(tmp_path).fit(indexed)


def test_settings_of_a_file_are_called_as_they_stand_there(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[model]\nhidden = 4\n[training]\nepochs = 0\n")
    with pytest.raises(ConfigError, match=r"my\.toml: `heads` 3 must divide model\.hidden 4"):
        Forecaster(heads=3, config=tmp_path / "my.toml")
    given = {name: value for name, value in SETTINGS.items() if name not in ("hidden", "epochs")}
    one = Forecaster(**ROLES, **given, config=tmp_path / "my.toml", runs_dir=tmp_path).fit(plants())
    config = RunFolder(one.run).load_config()
    assert (config.model.hidden, config.training.epochs, config.model.heads) == (4, 0, 2)


def test_a_run_that_asks_for_its_integer_file_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = []
    monkeypatch.setattr(recipe, "export_run", lambda run, *, int8: exported.append((run.name, int8)))
    forecaster(tmp_path, epochs=0, use_qat=True, qat_epochs=0, use_int8=True).fit(plants(), name="mine")
    assert exported == [("mine", True)]


def test_a_schema_is_given_whole_or_as_a_file_and_roles_go_over_it(tmp_path: Path) -> None:
    schema = Schema(time="time", target="wind", id=("plant",), known=Columns(real=("phase",)))
    (tmp_path / "roles.toml").write_text(schema.to_toml())
    found = []
    for given in (schema, tmp_path / "roles.toml"):
        one = Forecaster(given, target="load", runs_dir=tmp_path, **{**SETTINGS, "epochs": 0})
        found.append(one.fit(plants(), name=f"run{len(found)}").run / layout.SCHEMA)
    assert [Schema.read(path) for path in found] == [schema.model_copy(update={"target": "load"})] * 2


def test_a_forecaster_says_what_it_is_and_is_not_pickled(fitted: Forecaster) -> None:
    assert repr(fitted) == (
        "Forecaster(time='time', target='load', id='plant', static='plant', known='phase', observed='wind', "
        "history=12, horizon=4, hidden=8, heads=2, epochs=1, batch_size=16, batches_per_epoch=3, use_qat=True, "
        f"qat_epochs=1, run={str(fitted.run)!r})"
    )
    loaded = Forecaster.load("table", runs_dir=fitted.run.parent)
    assert repr(loaded) == f"Forecaster(time='time', target='load', id=('plant',), run={str(fitted.run)!r})"
    for keep in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"Forecaster.load"):
            keep(fitted)
    with pytest.raises(RunFolderError, match="no run yet"):
        Forecaster().results  # noqa: B018 - a property


def test_fitting_is_silent_unless_progress_is_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fitted: Forecaster
) -> None:
    settings = {**SETTINGS, "epochs": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Forecaster(**ROLES, **settings, runs_dir=tmp_path).fit(plants(), name="silent")
    assert capfd.readouterr() == ("", "")
    Forecaster(**ROLES, **settings, runs_dir=tmp_path, progress=True).fit(plants(), name="shown")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "Schema: the options" in printed.err
