"""A run goes on whatever its trackers do; each of them gets everything once and is closed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError, RunFolderError
from qat_tft.tracking.trackers import OpenTracker, Place, missing_package
from qat_tft.tracking.tracking import Tracking
from qat_tft.training import job

LINE = {"event": "epoch", "phase": "fp32", "step": 4, "train_loss": 0.5}
CONFIG = {"training": {"epochs": 1}}


@dataclass
class Fake:
    """Notes what it gets; the call named `breaks` raises an error."""

    breaks: str = ""
    got: list[Any] = field(default_factory=list)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._call("config", values)

    def log(self, values: dict[str, Any], step: int | None) -> None:
        self._call("log", (values, step))

    def finish(self) -> None:
        self._call("finish", None)

    def _call(self, name: str, value: object) -> None:
        print("trackers like to print")
        self.got.append((name, value))
        if name == self.breaks:
            raise RuntimeError("the server is gone\nin detail: ...")

    def calls(self, name: str) -> list[Any]:
        return [value for call, value in self.got if call == name]


@dataclass
class Trackers:
    """Stands for the real ones: fakes by name, and which run each was asked to go on with."""

    fakes: dict[str, Fake]
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    lost: bool = False
    traits: dict[str, bool] = field(default_factory=dict)
    closed: int = 0

    def open(self, name: str, place: Place, run: str | None) -> OpenTracker:
        self.asked.append((name, run))
        if self.fakes[name].breaks == "open" or (self.lost and run is not None):
            raise OSError("no such run")
        return OpenTracker(self.fakes[name], run or f"{name}-of-{place.name}", closed=self._close, **self.traits)

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> Trackers:
    made = Trackers({"wandb": Fake(), "mlflow": Fake()})
    monkeypatch.setattr("qat_tft.tracking.tracking.open_tracker", made.open)
    return made


def tracked(folder: Path, told: list[str], *, lines: int = 1) -> None:
    """A run with two trackers that writes some lines and its results."""
    folder.mkdir(exist_ok=True)
    with Tracking(("wandb", "mlflow"), folder, "r", CONFIG, told.append) as tracking:
        for _ in range(lines):
            tracking.line(LINE)
        tracking.results({"q_risk": {"qat": {"0.5": 0.25}}, "run": "r"})


def test_every_tracker_gets_config_lines_and_results_and_is_closed(tmp_path, trackers, capsys):
    told: list[str] = []
    tracked(tmp_path / "r", told)
    for fake in trackers.fakes.values():
        assert fake.got == [
            ("config", {"training.epochs": 1}),
            ("log", ({"fp32/step": 4, "fp32/train_loss": 0.5}, 4)),
            ("log", ({"results/q_risk/qat/0.5": 0.25}, None)),
            ("finish", None),
        ]
    assert (told, trackers.closed) == ([], 2)
    assert capsys.readouterr().out == "", "standard output is for results"


@pytest.mark.parametrize("breaks", ["open", "config", "log", "finish"])
def test_a_tracker_that_fails_is_told_once_and_the_other_goes_on(tmp_path, trackers, breaks):
    trackers.fakes["wandb"].breaks = breaks
    told: list[str] = []
    tracked(tmp_path / "r", told, lines=3)
    reason = "OSError: no such run" if breaks == "open" else "RuntimeError: the server is gone"
    assert told == [f"wandb gets no more figures, metrics.jsonl has them all: {reason}"]
    assert len(trackers.fakes["mlflow"].calls("log")) == 4
    assert len(trackers.fakes["wandb"].calls("log")) == {"open": 0, "config": 0, "log": 1, "finish": 4}[breaks]
    assert len(trackers.fakes["wandb"].calls("finish")) == (breaks != "open"), "what was opened is closed"


def test_trackers_are_closed_and_undone_after_an_error_of_the_run(tmp_path, trackers):
    with pytest.raises(KeyError), Tracking(("wandb", "mlflow"), tmp_path, "r", CONFIG, lambda text: None):
        raise KeyError
    assert [fake.got[-1][0] for fake in trackers.fakes.values()] == ["finish", "finish"]
    assert trackers.closed == 2


def test_a_resumed_run_goes_on_with_the_runs_of_its_trackers(tmp_path, trackers):
    tracked(tmp_path / "r", [])
    tracked(tmp_path / "r", [])
    first = [("wandb", None), ("mlflow", None)]
    assert trackers.asked == [*first, ("wandb", "wandb-of-r"), ("mlflow", "mlflow-of-r")]
    assert len(trackers.fakes["mlflow"].calls("config")) == 1, "settings that are kept are given once"


def test_settings_that_a_tracker_does_not_keep_are_given_again(tmp_path, trackers):
    trackers.traits["keeps_settings"] = False
    tracked(tmp_path / "r", [])
    tracked(tmp_path / "r", [])
    assert len(trackers.fakes["mlflow"].calls("config")) == 2


def test_a_tracker_whose_steps_only_rise_gets_none(tmp_path, trackers):
    trackers.traits["takes_steps"] = False
    tracked(tmp_path / "r", [])
    assert [step for _, step in trackers.fakes["wandb"].calls("log")] == [None, None]


def test_a_run_that_a_tracker_has_lost_begins_anew_there_and_that_is_told(tmp_path, trackers):
    tracked(tmp_path / "r", [])
    trackers.lost, told = True, []
    tracked(tmp_path / "r", told)
    assert told[0] == "wandb cannot go on with the run wandb-of-r, a new one begins there: OSError: no such run"
    assert len(told) == 2
    assert len(trackers.fakes["wandb"].calls("config")) == 2, "the new one has the settings too"


def test_damaged_names_of_runs_are_one_message(tmp_path, trackers):
    (tmp_path / "tracking.json").write_text(json.dumps({"wandb": 7}))
    with (
        pytest.raises(RunFolderError, match=r"tracking\.json: not names of runs"),
        Tracking(("wandb",), tmp_path, "r", CONFIG, lambda text: None),
    ):
        pass


def test_without_trackers_nothing_is_left(tmp_path):
    with Tracking((), tmp_path, "r", CONFIG, lambda text: None) as tracking:
        tracking.line(LINE)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_there_is_told_before_anything_trains(tmp_path, monkeypatch):
    monkeypatch.setattr("qat_tft.tracking.trackers._is_installed", lambda package: package != "wandb")
    values = {"training": {"track": "tensorboard,wandb"}, "data": {"parquet_files": ["not there"]}}
    config = RunConfig.checked(values, where="here")
    with pytest.raises(ConfigError) as refused:
        job.train(config, runs_dir=tmp_path / "runs")
    assert "package wandb is not installed" in refused.value.what
    assert "pip install 'qat-tft[wandb]'" in refused.value.next_step
    assert not (tmp_path / "runs").exists()


def test_mlflow_needs_a_database_unless_a_server_is_named(monkeypatch):
    monkeypatch.setattr("qat_tft.tracking.trackers._is_installed", lambda package: package == "mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert missing_package("mlflow") == "sqlalchemy"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert missing_package("mlflow") is None


def test_a_folder_that_a_tracker_has_left_is_not_its_package(tmp_path, monkeypatch):
    (tmp_path / "trackerless").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_package("trackerless") == "trackerless"
    assert missing_package("json") is None
