"""The resumable state of a run in one file: tensors in safetensors, everything else as JSON in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from qat_tft.device import random_state
from qat_tft.errors import RunFolderError
from qat_tft.runs import files
from qat_tft.texts import parse_json
from qat_tft.training.steps.out_of_memory import FallbackLevel

KIND = "state"
VERSION = 3
PHASES = ("fp32", "qat", "continued")


@dataclass
class Position:
    """Where a run stands, between two optimizer steps.

    Attributes:
        phase: "fp32", "qat" or "continued".
        epoch: epoch in progress, from 0 within the phase.
        step_in_epoch: steps already made in it.
        step: steps already made in the phase.
        loss_sum, weight, windows: sums over those steps of this epoch, as `StepOutcome` has them.
        best_loss: least validation loss of the phase so far; None before the first.
        best_epoch: the epoch, counted from 1, after which it was reached; 0: at the start of the phase.
        stale_epochs: epochs since then.
        tail: epoch with which the learning rate begins to fall to its floor; None: as the schedule has it.
        seconds: training time so far, in all phases.
        metrics_bytes: length of metrics.jsonl at this point; lines after it are dropped on resuming.
        data_digest: fingerprint of the rows trained on.
        q_risk: results so far: forecast to its q-risk per quantile on the test part, None where that is undefined.
        coverage: forecast to the share of test targets up to each quantile.
        validation_loss: best validation loss of each finished phase.
        notes: what the results say beside figures.
        savings: what checkpointing saves, measured once.
        ranks: how many processes trained when it was saved.
        level: what running out of memory has led to (`FallbackLevel.to_json`); None: as configured.
    """

    phase: str = "fp32"
    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    weight: float = 0.0
    windows: int = 0
    best_loss: float | None = None
    best_epoch: int = 0
    stale_epochs: int = 0
    tail: int | None = None
    seconds: float = 0.0
    metrics_bytes: int = 0
    data_digest: str = ""
    q_risk: dict[str, list[float | None]] = field(default_factory=dict)
    coverage: dict[str, list[float | None]] = field(default_factory=dict)
    validation_loss: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    savings: dict[str, Any] | None = None
    ranks: int = 1
    level: dict[str, Any] | None = None

    def next_phase(self, name: str) -> Position:
        """Return the position at the start of the next phase; what the run has found so far goes with it."""
        return Position(
            phase=name,
            seconds=self.seconds,
            metrics_bytes=self.metrics_bytes,
            data_digest=self.data_digest,
            q_risk=self.q_risk,
            coverage=self.coverage,
            validation_loss=self.validation_loss,
            notes=self.notes,
            savings=self.savings,
            level=self.level,
        )


@dataclass(frozen=True)
class SavedState:
    """A state read back; the tensors are grouped by what they belong to."""

    position: Position
    model: dict[str, Tensor]
    best: dict[str, Tensor]
    random: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    optimizer_groups: list[dict[str, Any]]
    scaler: dict[str, Any]
    figures: dict[str, Tensor]

    def require_like(self, model: nn.Module) -> None:
        """Raise a ValueError where weights are not those of a model; loading would convert types without a word."""
        own = {name: (tensor.dtype, tensor.shape) for name, tensor in model.state_dict().items()}
        for weights in (self.model, self.best):
            unlike = [name for name in own.keys() | weights.keys() if own.get(name) != _form(weights.get(name))]
            if unlike:
                raise ValueError(f"{min(unlike)!r} is missing, unknown, or of another type or shape")


def save_state(
    path: Path,
    position: Position,
    *,
    model: nn.Module,
    best: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: Mapping[str, Any],
    figures: Mapping[str, Tensor],
) -> None:
    """Write everything that the next step depends on; the file replaces the one before in one move.

    Raises:
        RunFolderError: the file system refuses.
    """
    states, groups = _flat(optimizer.state_dict())
    tensors = {
        **_prefixed("model", model.state_dict()),
        **_prefixed("best", best),
        **_prefixed("optimizer", states),
        **_prefixed("random", random_state()),
        **_prefixed("figures", figures),
    }
    rest = {"position": asdict(position), "optimizer_groups": groups, "scaler": dict(scaler)}
    files.write_tensors(path, tensors, kind=KIND, version=str(VERSION), rest=json.dumps(rest))


def load_state(path: Path) -> SavedState:
    """Read a state.

    Raises:
        RunFolderError: the file is missing, cut short, not ours, damaged, or of another version.
    """
    tensors, header = files.read_tensors(path, kind=KIND)
    if header.get("version") != str(VERSION):
        raise RunFolderError(
            f"a state of version {header.get('version')!r}",
            where=str(path),
            allowed=str(VERSION),
            next_step="Resume it with the qat-tft that wrote it, or train again",
        )
    try:
        rest = parse_json(header["rest"])
        position = _position(rest["position"])
        groups = TypeAdapter(list[dict[str, Any]]).validate_python(rest["optimizer_groups"])
        scaler = TypeAdapter(dict[str, Any]).validate_python(rest["scaler"])
    except (KeyError, TypeError, AttributeError, ValueError) as damage:
        reason = (str(damage).splitlines() or [""])[0]
        raise RunFolderError(
            f"the state is damaged ({type(damage).__name__}: {reason})", where=str(path), next_step=files.RESTORE
        ) from None
    return SavedState(
        position=position,
        model=_under("model", tensors),
        best=_under("best", tensors),
        random=_under("random", tensors),
        optimizer=_under("optimizer", tensors),
        optimizer_groups=groups,
        scaler=scaler,
        figures=_under("figures", tensors),
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: SavedState) -> None:
    """Give a new optimizer over the same parameters the saved one's memory.

    Raises:
        ValueError: it is the memory of other parameters, or settings are of another type.
    """
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in saved.optimizer.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    fresh = optimizer.state_dict()["param_groups"]
    for own, group in zip(fresh, saved.optimizer_groups, strict=True):
        unlike = [key for key, value in own.items() if _is_number(value) and not _is_number(group.get(key))]
        if unlike:
            raise ValueError(f"the optimizer's {unlike[0]} is {group.get(unlike[0])!r}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, memory in state.items():
        for key, tensor in memory.items():
            if tensor.is_complex() or (tensor.ndim and tensor.shape != parameters[place].shape):
                raise ValueError(f"the optimizer's {key} of parameter {place} is of another type or shape")
    optimizer.load_state_dict({"state": state, "param_groups": saved.optimizer_groups})


def _position(values: dict[str, Any]) -> Position:
    """Return a position; fields that this version does not know are left out."""
    known = {one.name for one in fields(Position)}
    position = TypeAdapter(Position).validate_python({name: values[name] for name in values if name in known})
    counts = (position.epoch, position.step_in_epoch, position.step, position.windows, position.metrics_bytes)
    if position.phase not in PHASES or min(counts) < 0:
        raise ValueError(f"a position in phase {position.phase!r}, with {min(counts)} of something")
    if position.level is not None:
        FallbackLevel.from_json(position.level)
    return position


def _form(tensor: Tensor | None) -> tuple[torch.dtype, torch.Size] | None:
    return None if tensor is None else (tensor.dtype, tensor.shape)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flat(state: dict[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    tensors = {
        f"{index}.{key}": torch.as_tensor(value)
        for index, values in state["state"].items()
        for key, value in values.items()
    }
    return tensors, state["param_groups"]


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
