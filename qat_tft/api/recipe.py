"""What a forecaster trains, whatever the rows: roles of the columns, settings, and where runs stand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from qat_tft.api.tables import require_columns
from qat_tft.api.wording import code_of
from qat_tft.config.names import Given, configuration
from qat_tft.config.run import RunConfig
from qat_tft.data.roles.choice import Roles, choose_schema, schema_beside
from qat_tft.export.build.run_export import export_run
from qat_tft.runs.folder import RunFolder
from qat_tft.schema import Schema
from qat_tft.training import job
from qat_tft.training.progress import Progress, Silent


@dataclass(frozen=True)
class Recipe:
    """What is trained, but for the rows.

    Attributes:
        schema: roles of the columns, or the file that holds them, if one was given.
        roles: roles that were named one by one.
        given: settings that were given, by path.
        base: nested values of the other settings, out of a file or a run; empty without one.
        config_file: the file.
        runs_dir: where run folders stand.
    """

    schema: Schema | Path | None = None
    roles: Roles = field(default_factory=Roles)
    given: Given = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=dict)
    config_file: Path | None = None
    runs_dir: Path = Path("runs")

    @classmethod
    def of_run(cls, folder: RunFolder, runs_dir: Path) -> Self:
        """Return the recipe of a run; errors are those of reading its folder."""
        base = folder.load_config().model_dump(mode="python", exclude_none=True)
        return cls(folder.load_schema(), base=base, runs_dir=runs_dir)

    def config(self, files: tuple[str, ...] = ()) -> RunConfig:
        """Return the configuration for these files.

        Raises:
            ConfigError: an unknown key or an impossible value.
        """
        given = {**self.given, "data.parquet_files": files} if files else self.given
        return configuration(given, self.base, where=str(self.config_file or "the settings"), called=code_of)

    def train(
        self, files: tuple[str, ...], *, name: str | None, table: Path | None, progress: bool | Progress
    ) -> RunFolder:
        """Train on these files and return the run, exported if the settings say so.

        Args:
            files: paths and URLs of the data.
            name: of the run; by default the time.
            table: the one file, if the run folder is to hold it.
            progress: as of `Forecaster`.

        Raises:
            UserError: as `job.train`.
            Interrupted: as `job.train`.
        """
        config = self.config(files)
        with shown(progress) as display:
            schema = self._schema(files, display)
            if table is not None and schema is not None:
                require_columns(files[0], (schema.time, *schema.id))
            run = job.train(config, schema, runs_dir=self.runs_dir, name=name, progress=display, table=table).folder
        export_if_asked(run)
        return run

    def described(self) -> dict[str, object]:
        """Return what was given, by the name of its argument."""
        named: dict[str, object] = {} if self.schema is None else {"schema": str(self.schema)}
        if isinstance(self.schema, Schema):
            named = {"time": self.schema.time, "target": self.schema.target, "id": self.schema.id}
        roles = {role: columns for role, columns in vars(self.roles).items() if columns is not None}
        settings = {code_of(path).strip("`"): value for path, value in self.given.items()}
        file = {} if self.config_file is None else {"config": str(self.config_file)}
        return {**named, **roles, **file, **settings}

    def _schema(self, files: tuple[str, ...], progress: Progress) -> Schema | None:
        chosen = choose_schema(files, self.roles, self.schema or schema_beside(files, self.config_file))
        if chosen is None:
            return None
        progress.note(chosen.note)
        return chosen.schema


@contextmanager
def shown(progress: bool | Progress) -> Iterator[Progress]:
    """Give who receives the reports of training: nobody, the display of the command line, or whoever was named."""
    if progress is True:
        from qat_tft.cli.display.training_progress import TrainingDisplay

        with TrainingDisplay() as display:
            yield display
    else:
        yield progress or Silent()


def export_if_asked(run: RunFolder) -> None:
    """Export a run whose settings ask for its INT8 file; errors are those of `export_run`."""
    if run.load_config().quantization.use_int8:
        export_run(run, int8=True)
