"""The real trackers, where they are installed: figures arrive on this machine, without a network, and go on later."""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path

import pytest
from accelerate import PartialState

from qat_tft.tracking.trackers import missing_package
from qat_tft.tracking.tracking import Tracking

LINES = [
    {"event": "epoch", "phase": phase, "step": step, "train_loss": 0.5} for phase in ("fp32", "qat") for step in (4, 8)
]
SERVERS = ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_DIR", "TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment that names a server, and no connection but to this machine."""
    PartialState()
    for name in SERVERS:
        monkeypatch.delenv(name, raising=False)
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: object) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address  # type: ignore[index]
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", refuse)


def tracked_twice(name: str, root: Path) -> list[str]:
    """Track a run by one tracker, then go on with it; return what was told."""
    if missing_package(name) is not None:
        pytest.skip(f"{name} is not installed")
    folder, told, before = root / "runs" / "r", [], dict(os.environ)
    folder.mkdir(parents=True)
    for line in LINES[:2], LINES[2:]:
        with Tracking((name,), folder, "r", {"training": {"epochs": 1}}, told.append) as tracking:
            for one in line:
                tracking.line(one)
    changed = {key for key, value in os.environ.items() if before.get(key) != value}
    assert changed.isdisjoint(SERVERS), "the next run of this process would go there too"
    return told


def test_tensorboard_has_the_steps_of_every_phase(tmp_path):
    assert tracked_twice("tensorboard", tmp_path) == []
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "runs/r/tensorboard"))
    events.Reload()
    for phase in ("fp32", "qat"):
        assert [(one.step, one.value) for one in events.Scalars(f"{phase}/train_loss")] == [(4, 0.5), (8, 0.5)]


@pytest.mark.filterwarnings("default")  # those of the tracker are not ours
def test_mlflow_has_one_run_with_settings_and_steps(tmp_path):
    assert tracked_twice("mlflow", tmp_path) == []
    store = sqlite3.connect(tmp_path / "runs/trackers/mlflow.db")
    assert store.execute("select name, status from runs").fetchall() == [("r", "FINISHED")]
    assert store.execute("select key, value from params").fetchall() == [("training.epochs", "1")]
    steps = store.execute("select key, step from metrics where key like '%/train_loss' order by key, step").fetchall()
    assert steps == [("fp32/train_loss", 4), ("fp32/train_loss", 8), ("qat/train_loss", 4), ("qat/train_loss", 8)]
    store.close()


@pytest.mark.filterwarnings("default")
def test_wandb_keeps_both_parts_of_a_run_under_one_name(tmp_path):
    assert tracked_twice("wandb", tmp_path) == []
    parts = sorted((tmp_path / "runs/r/wandb").glob("offline-run-*/*.wandb"))
    assert len({part.name for part in parts}) == 1
    assert b"fp32/train_loss" in parts[0].read_bytes()
    assert b"qat/train_loss" in parts[-1].read_bytes()


@pytest.mark.filterwarnings("default")
def test_trackio_has_one_run_with_settings_and_steps(tmp_path):
    assert tracked_twice("trackio", tmp_path) == []
    store = sqlite3.connect(tmp_path / "runs/trackers/trackio/qat-tft.db")
    assert store.execute("select run_name, step from metrics order by id").fetchall() == [("r", 4), ("r", 8)] * 2
    ((settings,),) = store.execute("select config from configs").fetchall()
    assert b'"training.epochs":1' in settings
    store.close()
