"""What runs there are under a folder, and how good each is: read from their files without loading a model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qat_tft.durations import ago
from qat_tft.evaluation.names import TITLES, risk_text
from qat_tft.lock import Held, Hold
from qat_tft.runs import layout
from qat_tft.runs.check_record import require_record
from qat_tft.runs.results import RunResults
from qat_tft.texts import parse_json, parse_toml, read_text

State = Literal["finished", "training", "interrupted", "begun", "damaged"]
Checked = Literal["passed", "failed", "not checked"]
_EMBEDDED = "embedded bike rentals"


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        name: of the run.
        folder: where its files stand.
        state: finished; training in another process; interrupted, so that it can be resumed; begun, where nothing is
            saved yet; damaged.
        latest: whether it is the one that commands take by default.
        data: its Parquet files.
        q_risk: of "fp32", of "qat" (or calibrated alone) and of "simple", at the quantile nearest to the median.
        strongest_simple: which forecast without a network that is.
        validation_loss: least one of each phase so far.
        integer_file: what the check said of the file of integers; None where there is no file.
        bytes: of all its files.
        changed: when it was finished or last written to, in seconds since 1970.
        problem: what is damaged.
    """

    name: str
    folder: str
    state: State
    latest: bool
    data: tuple[str, ...]
    q_risk: dict[str, float | None] = field(default_factory=dict)
    strongest_simple: str | None = None
    validation_loss: dict[str, float] = field(default_factory=dict)
    integer_file: Checked | None = None
    bytes: int = 0
    changed: float = 0.0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moment = datetime.fromtimestamp(self.changed, UTC).isoformat(timespec="seconds")
        return {**asdict(self), "data": list(self.data), "changed": moment}


@dataclass(frozen=True)
class RunListing:
    """The runs under a folder, the newest first."""

    root: Path
    runs: tuple[RunSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"runs_dir": str(self.root), "runs": [run.to_json() for run in self.runs]}

    def tables(self) -> Sequence[RenderableType]:
        """Return one row for each run."""
        if not self.runs:
            return [Text(f"No runs in {self.root}.")]
        table = Table(title="q-risk at the quantile nearest to the median; loss on the validation part so far")
        for name in ("run", "state", "data"):
            table.add_column(name)
        for name in ("FP32", "QAT", "strongest simple"):
            table.add_column(name, justify="right")
        table.add_column("integer file")
        table.add_column("MB", justify="right")
        table.add_column("changed")
        now = time.time()
        for run in self.runs:
            table.add_row(*_cells(run, now))
        damaged = [Text(f"{run.name}: {run.problem}") for run in self.runs if run.problem]
        return [table, *damaged]


def list_runs(root: Path) -> RunListing:
    """Return the runs under a folder; none where it is not there.

    Raises:
        OSError: it is no folder, or may not be read.
    """
    if not root.exists():
        return RunListing(root, ())
    latest = _latest(root)
    found = [_summary(path, latest) for path in root.iterdir() if _is_run(path)]
    return RunListing(root, tuple(sorted(found, key=lambda run: run.changed, reverse=True)))


def _is_run(path: Path) -> bool:
    own = path.is_dir() and not path.name.startswith(".")
    return own and (path.name.endswith(layout.UNFINISHED) or (path / layout.CONFIG).is_file())


def _summary(path: Path, latest: str) -> RunSummary:
    finished = not path.name.endswith(layout.UNFINISHED)
    name = path.name.removesuffix(layout.UNFINISHED)
    sizes, changed = _files(path)
    known: dict[str, Any] = {"name": name, "folder": str(path), "bytes": sizes, "changed": changed}
    known["latest"] = finished and name == latest
    try:
        known["data"] = _data(path)
        if not finished:
            return RunSummary(**known, state=state_of(path), validation_loss=dict(_losses(path)))
        return RunSummary(**known, state="finished", **_results(path), integer_file=_checked(path))
    except (OSError, ValueError) as damage:
        reason = str(damage).splitlines()[0] if str(damage) else type(damage).__name__
        return RunSummary(**{"data": (), **known}, state="damaged", problem=reason)


def _data(path: Path) -> tuple[str, ...]:
    data = parse_toml(read_text(path / layout.CONFIG)).get("data")
    files = data.get("parquet_files") if isinstance(data, dict) else None
    return tuple(map(str, files)) if isinstance(files, list) and files else (_EMBEDDED,)


def _results(path: Path) -> dict[str, Any]:
    results = RunResults.from_json(parse_json(read_text(path / layout.RESULTS)))
    simple, middle = results.strongest_simple, results.middle
    quantized = next((name for name in ("qat", "ptq") if name in results.q_risk), None)
    named = {"fp32": "fp32", "qat": quantized, "simple": simple}
    risks = {key: results.q_risk[name][middle] for key, name in named.items() if name is not None}
    return {"q_risk": risks, "strongest_simple": simple, "validation_loss": results.validation_loss}


def _checked(path: Path) -> Checked | None:
    """Return what the last check says of the newest file of integers, if it is about that one."""
    written = [_modified(path / layout.ONNX[kind]) for kind in layout.INTEGER.values()]
    if not any(written):
        return None
    record = path / layout.CHECK
    if _modified(record) < max(written):
        return "not checked"
    value = parse_json(read_text(record))
    require_record(value)
    if value.get("kind") == "fp32":
        return "not checked"
    return "passed" if value["passed"] else "failed"


def state_of(path: Path) -> State:
    """Return how far the unfinished run at `path` is: training, interrupted or begun."""
    with suppress(OSError), Hold(path) as hold:
        if hold.held is Held.ANOTHERS:
            return "training"
    return "interrupted" if (path / layout.STATE).is_file() else "begun"


def _losses(path: Path) -> dict[str, float]:
    least: dict[str, float] = {}
    for line in _lines(path / layout.METRICS):
        phase, loss = line.get("phase"), line.get("validation_loss")
        if isinstance(phase, str) and isinstance(loss, float):
            least[phase] = min(loss, least.get(phase, loss))
    return least


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for text in read_text(path).splitlines():
        with suppress(ValueError):  # the last line may be cut off
            value = parse_json(text)
            if isinstance(value, dict):
                yield value


def _files(path: Path) -> tuple[int, float]:
    """Return the bytes of all files, and when the run was finished or last written to."""
    total, newest = 0, _modified(path)
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # renamed meanwhile
                total += os.lstat(os.path.join(folder, name)).st_size
    return total, _modified(path / layout.RESULTS) or max(newest, _modified(path / layout.METRICS))


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _latest(root: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return read_text(root / layout.LATEST).strip()
    return ""


def _cells(run: RunSummary, now: float) -> tuple[str, ...]:
    fp32, qat = (_figure(run, name) for name in ("fp32", "qat"))
    simple = run.q_risk.get("simple")
    named = "" if run.strongest_simple is None else f"{risk_text(simple)} ({TITLES[run.strongest_simple]})"
    first, *others = [Path(one).name for one in run.data] or [""]
    return (
        f"{run.name} (latest)" if run.latest else run.name,
        run.state,
        f"{first} and {len(others)} more" if others else first,
        fp32,
        qat,
        named,
        run.integer_file or "",
        f"{run.bytes / 1e6:,.1f}",
        ago(now - run.changed),
    )


def _figure(run: RunSummary, name: str) -> str:
    if name in run.q_risk:
        return risk_text(run.q_risk[name])
    loss = run.validation_loss.get(name)
    return "" if loss is None else f"loss {loss:.4f}"
