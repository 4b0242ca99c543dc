"""How each tracker is opened: on this machine, without a network, unless the user's environment says otherwise."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate.tracking import MLflowTracker, TensorBoardTracker, TrackioTracker, WandBTracker

from qat_tft.runs import layout

PROJECT = "qat-tft"
"""Project or experiment that runs belong to, unless the environment names another."""


@dataclass(frozen=True)
class Place:
    """Where a run's trackers write.

    Attributes:
        name: of the run.
        folder: of the run; what belongs to it alone goes there.
        store: beside the run folders; what holds many runs goes there.
    """

    name: str
    folder: Path
    store: Path


@dataclass(frozen=True)
class OpenTracker:
    """A tracker that takes figures.

    Attributes:
        tracker: one of accelerate's, started.
        run: what it calls the run, by which it finds it again.
        takes_steps: whether steps may go back, as they do where a phase begins.
        keeps_settings: whether those of a run that it finds again stay, and must not be given once more.
        closed: undoes what opening it did to the process.
    """

    tracker: Any
    run: str
    takes_steps: bool = True
    keeps_settings: bool = True
    closed: Callable[[], None] = lambda: None


def missing_package(tracker: str) -> str | None:
    """Return a package that a tracker needs and that is not installed; None where all are there."""
    return next((name for name in _needed(tracker) if not _is_installed(name)), None)


def open_tracker(tracker: str, place: Place, run: str | None) -> OpenTracker:
    """Start a tracker.

    Args:
        tracker: its name.
        place: where it writes.
        run: the run that goes on; None: a new one begins.

    Raises:
        Exception: whatever the tracker raises.
    """
    return _OPENERS[tracker](place, run)


def _tensorboard(place: Place, run: str | None) -> OpenTracker:
    tracker = TensorBoardTracker(layout.TENSORBOARD, logging_dir=place.folder)
    tracker.start()
    return OpenTracker(tracker, layout.TENSORBOARD)


def _mlflow(place: Place, run: str | None) -> OpenTracker:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    ours = not mlflow.is_tracking_uri_set()
    artifacts = None  # the server's choice
    if ours:
        place.store.mkdir(exist_ok=True)
        mlflow.set_tracking_uri(f"sqlite:///{place.store / layout.MLFLOW}")
        artifacts = (place.store / "mlflow-artifacts").as_uri()

    def closed() -> None:
        if ours:
            mlflow.set_tracking_uri(None)

    try:
        tracker = MLflowTracker(PROJECT, logging_dir=artifacts, run_id=run, run_name=place.name)
        tracker.start()
    except BaseException:
        closed()
        raise
    return OpenTracker(tracker, tracker.tracker.info.run_id, closed=closed)


def _wandb(place: Place, run: str | None) -> OpenTracker:
    mode = os.environ.get("WANDB_MODE") or "offline"
    if mode == "offline":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    name = run or secrets.token_hex(4)
    tracker = WandBTracker(
        os.environ.get("WANDB_PROJECT") or PROJECT,
        id=name,
        name=place.name,
        mode=mode,
        dir=os.environ.get("WANDB_DIR") or str(place.folder),
        resume=None if run is None or mode == "offline" else "allow",
        settings=wandb.Settings(
            console="off", silent=mode == "offline", disable_git=True, disable_code=True, x_disable_stats=True
        ),
    )
    tracker.start()
    for phase in ("fp32", "qat", "continued"):
        tracker.tracker.define_metric(f"{phase}/*", step_metric=f"{phase}/step")
    return OpenTracker(tracker, name, takes_steps=False, keeps_settings=False)


def _trackio(place: Place, run: str | None) -> OpenTracker:
    folder = os.environ.setdefault("TRACKIO_DIR", str(place.store / layout.TRACKIO))
    from trackio.utils import TRACKIO_DIR

    ours = folder == str(place.store / layout.TRACKIO)

    def closed() -> None:
        if ours:
            del os.environ["TRACKIO_DIR"]

    if str(TRACKIO_DIR) != folder:  # read once, when it is first imported
        closed()
        raise RuntimeError(f"trackio writes to {TRACKIO_DIR} as long as this process lives")
    tracker = TrackioTracker(
        PROJECT,
        name=place.name,
        resume="never" if run is None else "allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    try:
        tracker.start()
    except BaseException:
        closed()
        raise
    return OpenTracker(tracker, place.name, keeps_settings=False, closed=closed)


_OPENERS: Mapping[str, Callable[[Place, str | None], OpenTracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "trackio": _trackio,
}


def _needed(tracker: str) -> tuple[str, ...]:
    if tracker == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
        return "mlflow", "sqlalchemy", "alembic"  # its store of files is gone; these are for the one in SQLite
    return (tracker,)


def _is_installed(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None  # else a folder of that name, such as W&B leaves
