"""What the peers' forecasts were worth: each peer is trained once in its environment, its score is kept as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sides.forecast_rows import read_rows
from sides.forecast_scores import Score, score
from sides.forecast_sets import BATCH, QUANTILES, STEPS, ForecastSet
from sides.process import BENCHMARKS

PEERS = {
    "pytorch-forecasting": "sides.forecast_pytorch_forecasting",
    "darts": "sides.forecast_darts",
    "neuralforecast": "sides.forecast_neuralforecast",
}
"""A peer's environment, which has its name, and the module that runs there."""


@dataclass(frozen=True)
class Wanted:
    """One training of a peer on a set.

    Attributes:
        peer: its name.
        of: the set.
        data: folder of the set's file.
        seed: of the training.
        steps: of the training.
    """

    peer: str
    of: ForecastSet
    data: Path
    seed: int = 0
    steps: int = STEPS

    def key(self, version: str) -> dict[str, Any]:
        """Return all that a result depends on, with the version of the library."""
        return {
            "peer": self.peer,
            "version": version,
            "set": self.of.to_json(),
            "data": hashlib.sha256((self.data / f"{self.of.name}.parquet").read_bytes()).hexdigest(),
            "seed": self.seed,
            "steps": self.steps,
            "batch": BATCH,
            "quantiles": list(QUANTILES),
        }


@dataclass(frozen=True)
class Kept:
    """A peer's score on a set, the version of its library and the CPU seconds that training and forecasting took."""

    score: Score
    version: str
    seconds: float
    forecast_seconds: float


class Keeper:
    """Results of peers in a folder; those that are not there are made if there are environments to make them in.

    Args:
        folder: of the results.
        environments: folder with an environment for each peer; None takes what is kept, of any version.
    """

    def __init__(self, folder: Path, environments: Path | None) -> None:
        self.folder = folder
        self._pythons = {} if environments is None else {peer: _python(environments, peer) for peer in PEERS}
        self._versions = {peer: _version(python, peer) for peer, python in self._pythons.items()}

    def result(self, wanted: Wanted) -> Kept | None:
        """Return a result, from the folder if it is kept there; None where it is not and cannot be made."""
        version = self._versions.get(wanted.peer)
        found = self._find(wanted, version)
        if found is not None or version is None:
            return found
        kept = trained(wanted, self._pythons[wanted.peer])
        self.folder.mkdir(parents=True, exist_ok=True)
        value = {**asdict(kept), "key": wanted.key(kept.version)}
        _file(self.folder, wanted, value["key"]).write_text(json.dumps(value, indent=1) + "\n")
        return kept

    def _find(self, wanted: Wanted, version: str | None) -> Kept | None:
        """Return the kept result of a version, or of the newest that is kept."""
        found = []
        for file in self.folder.glob(f"{wanted.peer}-{wanted.of.name}-*.json"):
            value = json.loads(file.read_text())
            if value["key"] == _plain(wanted.key(version or value["version"])):
                found.append(value)
        if not found:
            return None
        newest = max(found, key=lambda value: [int(number) for number in re.findall(r"\d+", value["version"])])
        score_of = Score.from_json(newest.pop("score"))
        return Kept(score_of, newest["version"], newest["seconds"], newest["forecast_seconds"])


def trained(wanted: Wanted, python: Path) -> Kept:
    """Train a peer in its environment, forecast the test windows and score them.

    Raises:
        RuntimeError: its process failed; it has said why on standard error.
    """
    print(f"Training {wanted.peer} on {wanted.of.name}, seed {wanted.seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "set": wanted.of.name,
            "data": str(wanted.data.absolute()),
            "steps": wanted.steps,
            "seed": wanted.seed,
            "folder": folder,
        }
        command = [str(python), "-m", PEERS[wanted.peer], json.dumps(asked)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=BENCHMARKS, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{wanted.peer} on {wanted.of.name} ended with exit code {done.returncode}")
        with np.load(Path(folder) / "forecasts.npz") as forecasts:
            reached = score(read_rows(wanted.of, wanted.data), forecasts["quantiles"])
    return Kept(reached, **json.loads(done.stdout))


def _file(folder: Path, wanted: Wanted, key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{wanted.peer}-{wanted.of.name}-{digest[:12]}.json"


def _plain(value: Any) -> Any:
    """Return a value as it comes back from a file: tuples are lists there."""
    return json.loads(json.dumps(value))


def _python(environments: Path, peer: str) -> Path:
    python = environments.absolute() / peer / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{environments} holds no environment of {peer}: {python} is missing")
    return python


def _version(python: Path, peer: str) -> str:
    program = f"from importlib.metadata import version; print(version({peer!r}))"
    return subprocess.run([python, "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
