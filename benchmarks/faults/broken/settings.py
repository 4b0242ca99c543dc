"""Broken TOML: schemas and settings of the wrong shape, size and type, and files that are no text."""

from __future__ import annotations

import os
import random
from pathlib import Path

from faults.broken import byte_damage as damaged
from faults.broken.case import (
    BACKTEST,
    CHECK,
    DONE_OR_REFUSED,
    EXPORT,
    QUANTIZE,
    REFUSED,
    REPORT,
    RESUME,
    RUN,
    SCHEMA,
    SENSITIVITY,
    SETTINGS,
    TRAIN,
    UNFINISHED,
    Case,
    Cases,
    Damage,
    edit,
    put,
)
from faults.broken.tiny import SCHEMA_TOML, SETTINGS_TOML

_OF_SCHEMAS = {
    "empty": "",
    "no TOML": "time = time",
    "half a key": "time",
    "a key twice": 'time = "a"\ntime = "b"\n',
    "a table twice": SCHEMA_TOML + "[known]\nreal = []\n",
    "numbers for names": SCHEMA_TOML.replace('"load"', "3"),
    "a date for a name": SCHEMA_TOML.replace('"load"', "2024-01-01"),
    "a table for a name": SCHEMA_TOML.replace('"load"', '{a = "b"}'),
    "a list for a table": SCHEMA_TOML.replace("[known]", "[[known]]"),
    "a number in a list": SCHEMA_TOML.replace('["wind"]', '["wind", 3]'),
    "NaN in a list": SCHEMA_TOML.replace('["wind"]', "[nan]"),
    "text for a list": SCHEMA_TOML.replace('["wind"]', '"wind"'),
    "an unknown key": SCHEMA_TOML + '[future]\nreal = ["x"]\n',
    "a hostile key": SCHEMA_TOML + '["\\u001b[31m\\n"]\n"\\u0007" = 1\n',
    "a hostile name": SCHEMA_TOML.replace("wind", "\\u001b[31m\\nerror: forged"),
    "two roles": SCHEMA_TOML.replace('"wind"', '"hour"'),
    "the same id twice": SCHEMA_TOML.replace('["plant"]', '["plant", "plant"]', 1),
    "the time as target": SCHEMA_TOML.replace('"load"', '"time"'),
    "the target as id": SCHEMA_TOML.replace('id = ["plant"]', 'id = ["load"]'),
    "arrays in arrays": "time = " + "[" * 50_000 + "]" * 50_000,
    "tables in tables": "time = " + "{a = " * 20_000 + "1" + "}" * 20_000,
    "dotted keys": "a" + ".a" * 20_000 + " = 1",
    "a whole number without an end": "time = " + "9" * 10_000,
    "a name without an end": 'time = "' + "n" * 3_000_000 + '"',
    "a hundred thousand columns": SCHEMA_TOML.replace('["wind"]', "[" + '"wind",' * 100_000 + "]"),
    "a hundred thousand names": SCHEMA_TOML.replace(
        '["wind"]', "[" + ",".join(f'"w{n}"' for n in range(100_000)) + "]"
    ),
    "carriage returns": SCHEMA_TOML.replace("\n", "\r"),
    "control characters": SCHEMA_TOML + "# \x1b[31m\x00\n",
}
_OF_SETTINGS = {
    "no TOML": "[training",
    "a hostile key": '["\\u001b[31m\\nerror: x"]\n"\\u0007" = 1\n',
    "a section that is a number": "model = 3\n",
    "a section that is a list": "[[model]]\nhidden = 8\n",
    "arrays in arrays": "[data]\nmissing = " + "[" * 50_000 + "]" * 50_000,
    "a section in a section": "[model.model]\nhidden = 3\n",
    "a whole number without an end": "[model]\nhidden = " + "9" * 10_000,
}
_VALUES = {
    "data.parquet_files": ["3", "[]", '[""]', '["/dev/zero"]', '["/etc/passwd"]', '["\\u001b[31m"]', '["a\\u0000b"]'],
    "data.validation": ["nan", "inf", "-1", "1e400", '"\\u001b[1m"', "0.999999"],
    "data.validation_from": ['"never"', "99999999999999999999999", "0001-01-01", "[1]"],
    "data.season": ["0", "-3", "9223372036854775808", "1000000000000"],
    "data.cache_dir": ['"/proc/nowhere"', '"data.parquet"', '"a\\u0000b"', "3"],
    "data.missing": ['["load=guess"]', '["\\u001b[31m=mean"]', "[[1]]"],
    "data.min_history": ["5000000000", "-1", "2.5"],
    "data.calendar": ['["\\u001b[31m"]', '["hour", "hour"]', "[{}]"],
    "data.unknown_rate": ["nan", "-0.1", "1.0"],
    "model.history": ["1000000000", "9223372036854775807", "10000000000000000000000", "-1", "nan", "true", "1e3"],
    "model.horizon": ["1000000000", "9223372036854775807", "0", "inf"],
    "model.hidden": ["1000000", "1000000000000", "9223372036854775807", "0", '"8"', "nan"],
    "model.heads": ["1000000000", "0", "-2"],
    "model.dropout": ["nan", "1.0", "inf", "-0.1"],
    "model.quantiles": ["[]", "[nan]", "[0.5, 0.5]", "[1e-300]", '["\\u001b[31m"]', "[0.1, inf]"],
    "model.encoder_layers": ["1000000", "-1"],
    "model.knots": ["100000000000", "2", "nan"],
    "model.selection_chunk": ["0", "9223372036854775808"],
    "model.linear_path": ['"\\u001b[31m"', "3"],
    "training.batch_size": ["9223372036854775807", "100000000000000000000", "0", "nan"],
    "training.learning_rate": ["nan", "inf", "1e38", "-1", "0"],
    "training.weight_decay": ["inf", "nan", "1e300"],
    "training.gradient_clip": ["nan", "inf", "1e-320"],
    "training.seed": ["-1", "4294967296", "nan"],
    "training.averaging": ["nan", "1"],
    "training.warmup": ["nan"],
    "training.accumulation": ["9223372036854775808"],
    "training.memory_budget": ['"lots"', '"1e400GB"', '"-3GB"', '"nanGB"'],
    "training.checkpoint_segments": ['["\\u001b[31m"]', "[]"],
    "training.device": ['"\\u001b[31m"'],
    "quantization.layer_bits": ['["head=3"]', '["\\u001b[31m=8"]', '["head=8", "head=4"]'],
    "quantization.float_layers": ['["\\u001b[31m"]', '["../x"]'],
    "quantization.qat_learning_rate": ["nan", "inf", "1e38"],
    "quantization.distill": ["nan", "2"],
    "quantization.frozen": ["nan", "1.0"],
    "quantization.weight_bits": ["3", "nan", '"\\u001b[31m"'],
    "quantization.max_drop": ["nan", '"%"', '"1e999%"'],
    "quantization.calibration_batches": ["9223372036854775808", "0"],
}
_MAY_BREAK_OFF = ("runs/new.unfinished*",)
"""What training leaves that begins as asked and then meets a loss that is not finite: a run that can be looked at."""


def cases(drawn: random.Random) -> Cases:
    """Return every broken schema and configuration."""
    for name, text in _OF_SCHEMAS.items():
        yield Case(f"schema: {name}", TRAIN, put(SCHEMA, text))
    for name, text in _OF_SETTINGS.items():
        yield Case(f"settings: {name}", TRAIN, put(SETTINGS, text), REFUSED)
    for path, values in _VALUES.items():
        for value in drawn.sample(values, min(2, len(values))):
            leaves = _MAY_BREAK_OFF if path.startswith(("training", "quantization")) else ()
            yield Case(f"settings: {path} = {value[:40]}", TRAIN, put(SETTINGS, _set(path, value)), leaves=leaves)
    for path, command in ((SCHEMA, TRAIN), (SETTINGS, TRAIN), (f"{UNFINISHED}/config.toml", RESUME)):
        for name, damage in _no_files(path).items():
            yield Case(f"{Path(path).name}: {name}", command, damage, REFUSED)
    for file in ("config.toml", "schema.toml"):
        for command in (CHECK, BACKTEST, QUANTIZE, SENSITIVITY, REPORT):
            name, change = damaged.any_of(drawn)
            allowed = (0, 1, 2) if command is CHECK else DONE_OR_REFUSED
            yield Case(f"{file} of the run: {name}", command, edit(f"{RUN}/{file}", change), allowed)
        name, change = damaged.any_of(drawn)
        yield Case(f"{file} of the unfinished run: {name}", RESUME, edit(f"{UNFINISHED}/{file}", change))
    for path in ("model.hidden", "model.knots", "model.history"):
        for command in (EXPORT, QUANTIZE):
            damage = edit(f"{RUN}/config.toml", _replaced(path, "1000000"))
            yield Case(f"config.toml of the run: {path} = 1000000", command, damage, REFUSED)
    elsewhere = edit(f"{RUN}/config.toml", _replaced("data.parquet_files", '["/etc/passwd"]'))
    yield Case("config.toml of the run: rows elsewhere", BACKTEST, elsewhere, REFUSED)


def _set(path: str, value: str) -> str:
    return _replaced(path, value)(SETTINGS_TOML.encode()).decode()


def _replaced(path: str, value: str) -> damaged.Change:
    """Set one key of a TOML text, which may have it."""
    section, _, key = path.partition(".")

    def change(content: bytes) -> bytes:
        kept, inside, skipping = [], False, False
        for line in content.decode().splitlines():
            if line.startswith("["):
                inside, skipping = line == f"[{section}]", False
                kept += [line, f"{key} = {value}"] if inside else [line]
                continue
            starts = inside and line.startswith(f"{key} = ")
            skipping = (starts and line.endswith("[")) or (skipping and line != "]")
            if not starts and not skipping and not (inside and line == "]" and kept[-1].startswith(f"{key} = ")):
                kept.append(line)
        return "\n".join(kept).encode()

    return change


def _no_files(path: str) -> dict[str, Damage]:
    def instead(make: str) -> Damage:
        def damage(folder: Path) -> None:
            file = folder / path
            file.unlink()
            if make == "folder":
                file.mkdir()
            elif make == "pipe":
                os.mkfifo(file)
            elif make:
                file.symlink_to(make)

        return damage

    return {
        "missing": instead(""),
        "a folder": instead("folder"),
        "a pipe": instead("pipe"),
        "a device without an end": instead("/dev/zero"),
        "a link to nowhere": instead("nowhere"),
        "a link to a file of the system": instead("/etc/passwd"),
        "no text": put(path, b"\xff\xfe\x00"),
        "a pickle": put(path, b"cos\nsystem\n(S'touch executed'\ntR."),
        "100 MB of nothing": put(path, b"\n" * 10**8),
    }
