"""How the ranks of a training begin as one: with the same options and rows, in one run folder, also after a restart."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qat_tft import ranks
from qat_tft.config.run import RunConfig
from qat_tft.errors import ConfigError, some_of
from qat_tft.launch import is_restartable, launched, launcher
from qat_tft.runs import files, layout, lifecycle
from qat_tft.runs.data import RunData
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Schema
from qat_tft.training.onlooker import OnlookersFolder


def refuse_idle_ranks(batch_size: int) -> None:
    """Check that each rank has a window of every full batch.

    Raises:
        ConfigError: there are more ranks than windows in a batch.
    """
    if batch_size < ranks.world():
        raise ConfigError(
            f"a batch of {batch_size} windows leaves {ranks.world() - batch_size} of {ranks.named()} without any",
            where="training.batch_size",
            allowed=f"at least {ranks.world()}, the windows of all ranks together",
            next_step="Choose a larger batch, or start fewer processes",
        )


def require_same_options(config: RunConfig, schema: Schema | None) -> None:
    """Check that all ranks were started to do the same.

    Raises:
        ConfigError: one of them has other options, another schema, or another version of this package.
    """
    own = {"the version of qat-tft": version("qat-tft"), "the schema": schema and schema.model_dump(mode="json")}
    _require_same({**own, **_by_name(config.model_dump(mode="json"))})


def require_same_rows(data: RunData) -> None:
    """Check that all ranks have read the same rows.

    Raises:
        ConfigError: one of them has read others.
    """
    _require_same({"rows": data.digest()})


def agreed(config: RunConfig) -> RunConfig:
    """Return the configuration as rank 0 has decided it: another processor may round, and so decide, otherwise."""
    return config if ranks.world() == 1 else RunConfig.from_run(ranks.told_by_first(config.to_toml()))


def begin(runs_dir: str | Path, name: str | None, write: Callable[[RunFolder], None]) -> RunFolder:
    """Make the folder of a new run on rank 0; the others look on.

    Raises:
        UserError: as `RunFolder.create`, on every rank.
    """

    def fill(new: RunFolder) -> None:
        write(new)
        if is_restartable():
            files.write_text(new.path / layout.LAUNCHER, f"{launcher()}\n")

    made = None
    with ranks.together():
        if ranks.is_first():
            made = RunFolder.create(runs_dir, name, fill)
    path = ranks.told_by_first(None if made is None else str(made.path))
    return made or OnlookersFolder(path)


def begun_by_this_launcher(runs_dir: str | Path) -> RunFolder | None:
    """Return the unfinished run that was begun before the launcher of this process started it again, if there is one.

    Such a launcher has nothing but the command that it was given, which would begin another run.
    """
    if not launched().restarts:
        return None
    own = f"{launcher()}\n"
    unfinished = sorted(Path(runs_dir).glob(f"*{layout.UNFINISHED}"), key=lifecycle.modified)
    begun = [path for path in unfinished if _begun_by(path) == own]
    path = ranks.told_by_first(os.fspath(begun[-1]) if begun else None)
    return None if path is None else RunFolder(path)


def _begun_by(path: Path) -> str:
    record = path / layout.LAUNCHER
    return files.read_text(record) if record.is_file() else ""


def _require_same(own: Mapping[str, Any]) -> None:
    everyone = ranks.told_by_all(own)
    for rank, theirs in enumerate(everyone):
        other = [name for name in everyone[0].keys() | theirs.keys() if everyone[0].get(name) != theirs.get(name)]
        if other:
            raise ConfigError(
                f"rank {rank} differs from rank 0 in {some_of(sorted(other))}",
                allowed="ranks that were started with the same files, options and version",
                next_step="Start all of them alike",
            )


def _by_name(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in (values if isinstance(values, Mapping) else {"": values}).items()
    }
