"""Damage to what a run folder says in JSON and text: cut, of other types and versions, pointing elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.broken import byte_damage as damaged
from faults.broken.case import (
    BACKTEST,
    CHECK,
    DONE_OR_REFUSED,
    EXPORT,
    QUANTIZE,
    REFUSED,
    REPORT,
    REPORT_LATEST,
    RESUME,
    RUN,
    SENSITIVITY,
    UNFINISHED,
    Case,
    Cases,
    Command,
    Damage,
    edit,
    put,
)
from faults.broken.json_damage import one_value

_VALUES_EACH = {"preprocessing.json": 25, "results.json": 15, "check.json": 10}
_READERS: dict[str, tuple[Command, ...]] = {
    "preprocessing.json": (CHECK, BACKTEST, QUANTIZE, SENSITIVITY),
    "results.json": (REPORT,),
    "check.json": (REPORT,),
}
_DEEP = "[" * 100_000 + "]" * 100_000
_DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
_WHOLE_FILES = {
    "empty": "",
    "a list": "[]",
    "null": "null",
    "a number": "1e999",
    "an empty object": "{}",
    "deep lists": _DEEP,
    "deep objects": _DEEP_OBJECT,
    "a whole number without an end": "9" * 10_000,
    "no text": b"\xff\xfe\x00",
    "lone surrogates": '{"run": "\\ud800"}',
    "a pickle": b"cos\nsystem\n(S'touch executed'\ntR.",
    "NaN": '{"format": NaN}',
}


def cases(drawn: random.Random) -> Cases:
    """Return every broken JSON and text file of a run."""
    for file, readers in _READERS.items():
        for name, content in _WHOLE_FILES.items():
            command = drawn.choice((*readers, EXPORT)) if file == "preprocessing.json" else readers[0]
            yield Case(f"{file}: {name}", command, put(f"{RUN}/{file}", content), REFUSED)
        for number in range(4):
            name, change = damaged.any_of(drawn)
            yield _case(f"{file}, damage {number}: {name}", drawn.choice(readers), edit(f"{RUN}/{file}", change))
        for number in range(_VALUES_EACH[file]):
            seed = drawn.getrandbits(32)
            damage = edit(f"{RUN}/{file}", one_value(seed))
            yield _case(f"{file}, value {number} (seed {seed})", drawn.choice(readers), damage)
    yield from _of_other_versions(drawn)
    yield from _of_pointers()
    yield from _of_unfinished(drawn)


def _case(name: str, command: Command, damage: Damage) -> Case:
    return Case(name, command, damage, (0, 1, 2) if command is CHECK else DONE_OR_REFUSED)


def _json_edit(path: str, change: Callable[[Any], object]) -> Damage:
    """Change the value of a JSON file in place."""

    def on_text(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return edit(path, on_text)


def _of_other_versions(drawn: random.Random) -> Cases:
    changes: dict[str, Callable[[Any], object]] = {
        "a later format": lambda value: value.update(format=99),
        "a format of text": lambda value: value.update(format="1"),
        "a policy of a later version": lambda value: value["preparation"].update(gaps="bridge"),
        "a setting of a later version": lambda value: value["preparation"].update(lookahead=3),
        "an unknown step": lambda value: value["preparation"].update(step=["fortnight", 0]),
        "statistics of another length": lambda value: value["statistics"]["load"]["center"].append(1.0),
        "a scale of 0": lambda value: value["statistics"]["load"]["scale"].__setitem__(0, 0.0),
        "a center that is NaN": lambda value: value["statistics"]["load"]["center"].__setitem__(0, float("nan")),
        "one series fewer": lambda value: value["series"].pop(),
        "a series twice": lambda value: value["series"].__setitem__(0, value["series"][1]),
        "a series of two ids": lambda value: value["series"][0].append("x"),
        "a category more": lambda value: value["vocabularies"]["shift"].append("dusk"),
        "a vocabulary too many": lambda value: value["vocabularies"].update(other=["a"]),
        "a category twice": lambda value: value["vocabularies"]["shift"].append("day"),
        "another mode": lambda value: value.update(mode="global"),
        "another transform": lambda value: value.update(target_transform="log"),
        "another schema": lambda value: value["schema"].update(target="wind"),
    }
    for name, change in changes.items():
        damage = _json_edit(f"{RUN}/preprocessing.json", change)
        command = drawn.choice((SENSITIVITY, CHECK, BACKTEST))
        yield _case(f"preprocessing.json with {name}", command, damage)


def _of_pointers() -> Cases:
    for name, content in {
        "out of the folder": "../../../../etc",
        "to the root": "/",
        "to itself": "latest",
        "to nothing": "",
        "to no text": b"\xff\xfe",
        "to NUL": "a\x00b",
        "to a terminal's commands": "\x1b[31m\nerror: forged",
        "to a name without an end": "n" * 100_000,
        "to an unfinished run": "half.unfinished",
        "to the run of elsewhere": "../elsewhere",
    }.items():
        yield Case(f"latest points {name}", REPORT_LATEST, put("runs/latest", content), REFUSED)


def _of_unfinished(drawn: random.Random) -> Cases:
    for file in ("preprocessing.json", "metrics.jsonl"):
        for number in range(4):
            name, change = damaged.any_of(drawn)
            damage = edit(f"{UNFINISHED}/{file}", change)
            yield Case(f"{file} of the unfinished run, {number}: {name}", RESUME, damage)
    for name, content in {"empty": "", "no text": b"\xff\x00", "of other lines": "[]\n{}\n" * 1000}.items():
        yield Case(f"metrics.jsonl is {name}", RESUME, put(f"{UNFINISHED}/metrics.jsonl", content))

    def folder_instead(folder: Path) -> None:
        (folder / UNFINISHED / "metrics.jsonl").unlink(missing_ok=True)
        (folder / UNFINISHED / "metrics.jsonl").mkdir()

    yield Case("metrics.jsonl is a folder", RESUME, folder_instead, REFUSED)
