"""What a run takes: bytes and time of its files, memory and time of training, and what rounding costs each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qat_tft.report.answer import latency
from qat_tft.runs import layout
from qat_tft.runs.report import RunReport


@dataclass(frozen=True)
class LayerCost:
    """One layer with integer weights.

    Attributes:
        name: of the layer.
        bits: of its weight.
        rounding_db: SQNR of the QAT layer against itself without rounding; None where it was not measured.
        file_db: SQNR of the file's layer against the QAT layer.
    """

    name: str
    bits: int
    rounding_db: float | None
    file_db: float | None


@dataclass(frozen=True)
class FileSize:
    """One file of the run and its bytes."""

    name: str
    title: str
    size: int


@dataclass(frozen=True)
class StepMemory:
    """The measured peak and time of a training step with checkpointing and without.

    Attributes:
        mode: what was recomputed.
        windows: of the step.
        without_bytes, with_bytes: the peaks.
        without_seconds, with_seconds: the times; None where an earlier version measured none.
    """

    mode: str
    windows: int
    without_bytes: int
    with_bytes: int
    without_seconds: float | None = None
    with_seconds: float | None = None


@dataclass(frozen=True)
class Cost:
    """What the files and the training of a run take.

    Attributes:
        files: those that exist.
        latency: batch size, and milliseconds of the FP32 and of the integer file.
        memory: of a training step; None where checkpointing was off.
        layers: worst first; empty where the file was not checked.
        integer_share: share of the multiply-accumulates on integers; None where it was not measured.
        checked_risks: "fp32", "qat" and "int8" to q-risk by quantile on the windows of the check.
        checked_windows: how many those are.
    """

    files: tuple[FileSize, ...]
    latency: tuple[tuple[str, float, float], ...]
    memory: StepMemory | None
    layers: tuple[LayerCost, ...]
    integer_share: float | None
    checked_risks: dict[str, dict[str, float | None]]
    checked_windows: int


def cost_of(report: RunReport, low_bits: Mapping[str, int]) -> Cost:
    """Collect the costs; `low_bits` holds the bits of the layers that have fewer than eight."""
    check = report.check or {}
    saved = report.results.checkpointing
    risks = {model: dict(one) for model, one in (check.get("q_risk") or {}).items() if one}
    return Cost(
        files=tuple(FileSize(name, layout.TITLES[name], size) for name, size in report.sizes.items()),
        latency=tuple((batch, *times) for batch, times in latency(check).items()),
        memory=None if saved is None else _step_memory(saved),
        layers=tuple(_layer(layer, low_bits) for layer in check.get("layers") or ()),
        integer_share=check.get("integer_share"),
        checked_risks=risks,
        checked_windows=int(check.get("rows") or 0),
    )


def _step_memory(saved: Mapping[str, Any]) -> StepMemory:
    return StepMemory(**{name: saved[name] for name in StepMemory.__annotations__ if name in saved})


def _layer(layer: Mapping[str, Any], low_bits: Mapping[str, int]) -> LayerCost:
    compared = [ratio for ratio in (layer.get("file_db") or {}).values() if ratio is not None]
    name = str(layer["name"])
    return LayerCost(name, low_bits.get(name, 8), layer.get("qat_db"), min(compared, default=None))
