"""Damage to safetensors files: headers that lie, tensors that do not fit, weights that are no numbers."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from faults.broken import byte_damage as damaged
from faults.broken.case import (
    CHECK,
    QUANTIZE,
    REPORT,
    RESUME,
    RUN,
    SENSITIVITY,
    UNFINISHED,
    Case,
    Cases,
    Command,
    Damage,
    edit,
)

_FILES: dict[str, tuple[Command, ...]] = {
    f"{RUN}/fp32.safetensors": (QUANTIZE, SENSITIVITY),
    f"{RUN}/qat.safetensors": (CHECK, SENSITIVITY),
    f"{RUN}/check_windows.safetensors": (CHECK, REPORT),
    f"{UNFINISHED}/state.safetensors": (RESUME,),
}
_BEGUN = ("runs/new.unfinished*",)
"""What quantizing leaves where the weights are numbers, and their forecasts are none."""
Tensors = dict[str, torch.Tensor]
Header = dict[str, Any]


class Executed:
    """What would run a program if a pickle were read."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch executed",)


def cases(drawn: random.Random) -> Cases:
    """Return every broken tensor file."""
    for path, readers in _FILES.items():
        name = Path(path).name
        for what, damage in (*_raw(path, drawn), *_headers(path), *_other_tensors(path, drawn)):
            command = drawn.choice(readers)
            allowed = (0, 1, 2) if command is CHECK else (0, 2)
            yield Case(f"{name}: {what}", command, damage, allowed, _BEGUN if command is QUANTIZE else ())
    for what, change in _STATES.items():
        damage = edit(f"{UNFINISHED}/state.safetensors", _with_header(_of_state(change)))
        yield Case(f"state.safetensors: {what}", RESUME, damage)


def _raw(path: str, drawn: random.Random) -> list[tuple[str, Damage]]:
    changes: list[tuple[str, damaged.Change]] = [
        ("empty", lambda content: b""),
        ("cut in the header's length", lambda content: content[:5]),
        ("cut in the header", lambda content: content[:100]),
        ("cut in the tensors", damaged.without_end(3)),
        ("longer than it says", lambda content: content + bytes(64)),
        ("a huge header", lambda content: (2**62).to_bytes(8, "little") + content[8:]),
        ("a header of 90 MB", lambda content: (9 * 10**7).to_bytes(8, "little") + content[8:]),
        ("a header of spaces", lambda content: (10**8).to_bytes(8, "little") + b"{" + b" " * (10**8 - 2) + b"}"),
        ("a deep header", lambda content: _packed(b"[" * 200_000 + b"]" * 200_000)),
        ("a pickle", lambda content: pickle.dumps(Executed())),
        ("one bit of the header", damaged.flipped(drawn, 0.0, 0.05)),
        ("some bits of the header", damaged.flipped(drawn, 0.0, 0.1, count=8)),
    ]
    return [(what, edit(path, change)) for what, change in changes]


def _headers(path: str) -> list[tuple[str, Damage]]:
    def overlapping(header: Header) -> None:
        first, second = sorted(set(header) - {"__metadata__"})[:2]
        header[second]["data_offsets"] = header[first]["data_offsets"]

    def shaped(shape: list[int]) -> Callable[[Header], object]:
        return lambda header: [one.update(shape=shape) for name, one in header.items() if name != "__metadata__"]

    changes: dict[str, Callable[[Header], object]] = {
        "offsets that overlap": overlapping,
        "shapes that are huge": shaped([2**62, 2**62]),
        "shapes that are negative": shaped([-1, 4]),
        "no metadata": lambda header: header.pop("__metadata__"),
        "metadata of another program": lambda header: header.update(__metadata__={"format": "pt"}),
        "metadata that are no text": lambda header: header.update(__metadata__={"format": ["qat-tft"]}),
        "another kind": lambda header: header["__metadata__"].update(kind="\x1b[31m\nerror: forged"),
        "an unknown type": lambda header: [one.update(dtype="F3") for one in header.values() if "dtype" in one],
        "another type": lambda header: [
            one.update(dtype="I32") for one in header.values() if one.get("dtype") == "F32"
        ],
        "bits of floats as whole numbers": lambda header: [
            one.update(dtype="I64") for one in header.values() if one.get("dtype") == "F64"
        ],
    }
    return [(what, edit(path, _with_header(change))) for what, change in changes.items()]


def _other_tensors(path: str, drawn: random.Random) -> list[tuple[str, Damage]]:
    place = drawn.random()

    def one(tensors: Tensors) -> str:
        return sorted(tensors)[int(place * len(tensors))]

    def all_like(value: float) -> Callable[[Tensors], object]:
        return lambda tensors: [tensor.fill_(value) for tensor in tensors.values() if tensor.is_floating_point()]

    def reshaped(tensors: Tensors) -> None:
        tensors[one(tensors)] = torch.zeros(3, 5, 7)

    def retyped(dtype: torch.dtype) -> Callable[[Tensors], object]:
        return lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    def one_nan(tensors: Tensors) -> None:
        floats = [tensor for tensor in tensors.values() if tensor.is_floating_point() and tensor.numel()]
        floats[int(place * len(floats))].view(-1)[0] = float("nan")

    changes: dict[str, Callable[[Tensors], object]] = {
        "NaN": all_like(float("nan")),
        "one NaN": one_nan,
        "infinity": all_like(float("inf")),
        "the largest float": all_like(3e38),
        "zero": all_like(0.0),
        "less than zero": all_like(-1.0),
        "a tensor less": lambda tensors: tensors.pop(one(tensors)),
        "a tensor more": lambda tensors: tensors.update({"\x1b[31m": torch.zeros(2)}),
        "no tensor": lambda tensors: tensors.clear(),
        "a tensor of another shape": reshaped,
        "a scalar for a tensor": lambda tensors: tensors.update({one(tensors): torch.tensor(1.0)}),
        "half precision": retyped(torch.float16),
        "whole numbers": retyped(torch.int64),
        "complex numbers": retyped(torch.complex64),
        "no rows": lambda tensors: tensors.update(
            {name: tensor[:0] for name, tensor in tensors.items() if tensor.ndim}
        ),
    }
    return [(what, _with_tensors(path, change)) for what, change in changes.items()]


def _packed(header: bytes, rest: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + rest


def _with_header(change: Callable[[Header], object]) -> damaged.Change:
    def on_bytes(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        return _packed(json.dumps(header).encode(), content[8 + length :])

    return on_bytes


def _with_tensors(path: str, change: Callable[[Tensors], object]) -> Damage:
    from safetensors import safe_open

    def damage(folder: Path) -> None:
        with safe_open(folder / path, framework="pt") as opened:
            metadata = opened.metadata()
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / path, metadata=metadata)

    return damage


def _of_state(change: Callable[[Any], object]) -> Callable[[Header], object]:
    """Change the JSON that a state holds beside its tensors."""

    def on_header(header: Header) -> None:
        rest = json.loads(header["__metadata__"]["rest"])
        header["__metadata__"]["rest"] = json.dumps(change(rest) or rest)

    return on_header


def _position(**values: Any) -> Callable[[Any], object]:
    return lambda rest: rest["position"].update(values)


_STATES: dict[str, Callable[[Any], object]] = {
    "the rest is a list": lambda rest: [1],
    "the rest is empty": lambda rest: {"x": 1},
    "a position that is a list": lambda rest: rest.update(position=[]),
    "a phase of a later version": _position(phase="\x1b[31m"),
    "an epoch of text": _position(epoch="two"),
    "an epoch below zero": _position(epoch=-3, step_in_epoch=-5),
    "an epoch beyond the last": _position(epoch=10**9, step=10**9),
    "a step beyond the epoch": _position(step_in_epoch=10**6),
    "sums that are NaN": _position(loss_sum=float("nan"), weight=float("nan")),
    "a best loss of text": _position(best_loss="low"),
    "metrics without an end": _position(metrics_bytes=2**62),
    "metrics below zero": _position(metrics_bytes=-1),
    "other data": _position(data_digest="0" * 64),
    "notes that are no list": _position(notes=3),
    "hostile notes": _position(notes=["\x1b[31m\nerror: forged"]),
    "results of another length": _position(q_risk={"fp32": [1.0]}),
    "savings of another kind": _position(savings=[]),
    "a level of another kind": _position(level={"x": 1}),
    "a setting of a later version": _position(lookahead=3),
    "an optimizer without groups": lambda rest: rest.update(optimizer_groups=[]),
    "an optimizer of text": lambda rest: rest.update(optimizer_groups="x"),
    "groups of other parameters": lambda rest: rest["optimizer_groups"][0].update(params=[10**6]),
    "a learning rate that is NaN": lambda rest: [one.update(lr=float("nan")) for one in rest["optimizer_groups"]],
    "a learning rate of text": lambda rest: [one.update(lr="fast") for one in rest["optimizer_groups"]],
    "a scaler of another kind": lambda rest: rest.update(scaler=[1]),
}
