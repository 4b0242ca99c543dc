"""The whole way from rows to checked forecasts as one object: each method does what the command of its name does."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import pyarrow as pa
import pyarrow.parquet as pq

from qat_tft.api.arguments import Time, at_least_one, one_of, settings_of, time_text
from qat_tft.api.recipe import Recipe, export_if_asked, shown
from qat_tft.api.tables import Data, as_files, as_own_file, is_table, name_of_table, paths_of, require_columns
from qat_tft.api.wording import TRAINING, in_python, with_arguments
from qat_tft.cli.display.forecast_picture import exported, forecasts_of
from qat_tft.config.run import read_config_file
from qat_tft.data.roles.choice import Named, Roles
from qat_tft.errors import RunFolderError
from qat_tft.export.build.export_report import ExportResult
from qat_tft.export.build.run_export import export_run
from qat_tft.export.inference.predict import forecast_parquet
from qat_tft.export.inference.run_backtest import Span, backtest_run
from qat_tft.export.inference.session import ForecastSession
from qat_tft.export.metadata import LstmForm, Store
from qat_tft.export.verify.check import check_model, find_export
from qat_tft.export.verify.check_report import CheckReport
from qat_tft.report.content import collect
from qat_tft.report.explain_run import explain_run
from qat_tft.report.explain_windows import MOST_WINDOWS, Detail
from qat_tft.report.page import run_page, write_page
from qat_tft.runs import layout
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import WeightsKind
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema
from qat_tft.temporary import temporary_folder
from qat_tft.training import job
from qat_tft.training.progress import Progress

FileChoice = Literal["fp32", "int8"]


class Forecaster:
    """A model to be trained, and the run that training left.

    Every method does what the command line's command of that name does (`fit`: `train`), in this process and with the
    same bits. Data are paths or URLs of Parquet files, or a table in memory with Arrow's PyCapsule interface: a
    DataFrame of pandas or polars, a pyarrow Table or RecordBatchReader, a relation of DuckDB.

    Args:
        schema: roles of the columns, or the file that holds them; without one, a schema file beside the data or beside
            `config`, or the field metadata of the data.
        time: the time column.
        target: the column to forecast.
        id: the columns that together name a series.
        static: columns that never change within a series; `name:category` or `name:real` sets a kind.
        known: columns that are known for future steps too.
        observed: columns that are known up to the present.
        config: a file of settings in TOML, such as a run's config.toml; settings given here go over it.
        runs_dir: where run folders stand.
        progress: whether to show on standard error what the command shows; or who receives the reports of training.
        settings: every setting of a run by its name, such as `epochs`, `batch_size`, `hidden` or `use_qat`: the options
            of `qat-tft train` with underscores, and the settings of `config.toml` that have no option.

    Raises:
        UserError: a setting that there is not, or an impossible value. So do all methods, whose messages are those of
            the command line with arguments in place of options; what went wrong is told by the class of the error.
    """

    def __init__(
        self,
        schema: Schema | str | os.PathLike[str] | None = None,
        *,
        time: str | None = None,
        target: str | None = None,
        id: Named | None = None,
        static: Named | None = None,
        known: Named | None = None,
        observed: Named | None = None,
        config: str | os.PathLike[str] | None = None,
        runs_dir: str | os.PathLike[str] = "runs",
        progress: bool | Progress = False,
        **settings: Any,
    ) -> None:
        roles = Roles(time=time, target=target, id=id, static=static, known=known, observed=observed)
        with in_python(ways=TRAINING):
            self._recipe = Recipe(
                schema if isinstance(schema, Schema | None) else Path(schema),
                roles,
                settings_of(settings),
                {} if config is None else read_config_file(Path(config)),
                None if config is None else Path(config),
                Path(runs_dir),
            )
        with self._for_training():
            self._recipe.config()
        self._progress = progress
        self._folder: RunFolder | None = None

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str] | None = None,
        *,
        runs_dir: str | os.PathLike[str] = "runs",
        progress: bool | Progress = False,
    ) -> Self:
        """Return the forecaster of a finished run, whoever trained it; `fit` would train a new one with its settings.

        Args:
            run: its name, or the path of its folder; by default the latest one.
            runs_dir: where run folders stand.
            progress: as of `Forecaster`.

        Raises:
            UserError: there is no such run, or its folder is damaged.
        """
        with in_python():
            folder = RunFolder.find(None if run is None else os.fspath(run), os.fspath(runs_dir))
            return cls._of(folder, Path(runs_dir), progress)

    @classmethod
    def resume(
        cls,
        name: str | None = None,
        *,
        runs_dir: str | os.PathLike[str] = "runs",
        progress: bool | Progress = False,
    ) -> Self:
        """Finish an interrupted run, with the weights it would have had without that, and return its forecaster.

        Args:
            name: of the run; by default the unfinished one that was written to last.
            runs_dir: where run folders stand.
            progress: as of `Forecaster`.

        Raises:
            UserError: there is no such run, or its files or data cannot be used.
            Interrupted: Ctrl-C again; a KeyboardInterrupt.
        """
        with in_python(), shown(progress) as display:
            finished = job.resume(os.fspath(runs_dir), name, progress=display)
            export_if_asked(finished.folder)
            return cls._of(finished.folder, Path(runs_dir), progress)

    def fit(self, data: Data, *, name: str | None = None) -> Self:
        """Train as `qat-tft train` does, and leave a run folder.

        A table in memory is written once, as Parquet, and stays in the run folder: the run needs it as any other run
        needs its files, and it goes when the folder is removed.

        Args:
            data: the rows, in any order.
            name: of the run; by default the time.

        Raises:
            UserError: data, schema, settings or run folder cannot be used; the loss became non-finite.
            Interrupted: Ctrl-C; a KeyboardInterrupt. `resume` goes on.
        """
        if not is_table(data):
            with self._for_training():
                self._folder = self._recipe.train(paths_of(data), name=name, table=None, progress=self._progress)
            return self
        with self._for_training(), as_own_file(data, self._recipe.runs_dir) as file:
            self._folder = self._recipe.train((str(file),), name=name, table=file, progress=self._progress)
        return self

    def predict(
        self,
        data: Data,
        future: Data | None = None,
        *,
        origin: Time | None = None,
        model: FileChoice | None = None,
        threads: int | None = None,
    ) -> pa.Table:
        """Forecast the next steps of every series, in onnxruntime, as `qat-tft predict` does.

        A run without exported files is exported first. What the command prints as notes are warnings here.

        Args:
            data: rows with the columns of training; the last ones of a series may lack target and observed columns.
            future: rows to forecast, with time, ids and known columns; by default the last rows of `data`.
            origin: time of the last row used as history; by default the latest possible one, per series.
            model: which file of the run; by default the INT8 file where there is one.
            threads: of onnxruntime; by default it decides.

        Returns:
            The table that the command writes: ids, `forecast_origin`, the time, `forecast_step` and a column per
            quantile, `q0.1` and so on; a row for each series and step.

        Raises:
            UserError: the run or the rows cannot be used, or no series is long enough.
        """
        with as_files(data=data, future=future) as files:
            at_least_one(threads=threads)
            file = ForecastSession(self._exported(one_of("model", model, FileChoice)), threads=threads)
            keys = (file.metadata.schema.time, *file.metadata.schema.id)
            for name, given in (("data", data), ("future", future)):
                if is_table(given):
                    require_columns(files[name][0], keys)
            found = forecast_parquet(file, files["data"], origin=time_text(origin), future=files.get("future"))
        for note in found.notes:
            warnings.warn(with_arguments(note), stacklevel=2)
        return found.table

    def backtest(
        self,
        data: Data | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        stride: int | None = None,
        max_windows: int | None = None,
        out: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Forecast from rolling origins and score, as `qat-tft backtest` does.

        Args:
            data: rows with the columns of training; by default those of the run.
            since: time of the first target; by default the start of the test part.
            until: time that the targets lie before; by default the end of the test part.
            stride: rows from one origin of a series to the next; by default the horizon.
            max_windows: most origins over all series, evenly spaced; by default all.
            out: Parquet file to write every forecast to.
            threads: of onnxruntime; by default it decides.

        Returns:
            The object that the command prints with `--json`: scores by model, overall, by step and by series.

        Raises:
            UserError: the run, the rows or the span cannot be used, or `out` cannot be written.
        """
        with as_files(data=data) as files:
            at_least_one(stride=stride, max_windows=max_windows, threads=threads)
            span = Span(time_text(since), time_text(until), stride, max_windows)
            place = None if out is None else Path(out)
            found = backtest_run(self._run(), span, files=files.get("data", ()), out=place, threads=threads)
        return {**found.to_json(), **({"source": name_of_table("data")} if is_table(data) else {})}

    def explain(
        self,
        data: Data | None = None,
        *,
        model: WeightsKind | None = None,
        detail: Detail = "all",
        max_windows: int = MOST_WINDOWS,
    ) -> pa.Table:
        """Return what variables and past steps weigh in forecasts: the table that `qat-tft explain --out` writes.

        Args:
            data: rows with the columns of training; by default the test part of the run's.
            model: "fp32" or "qat"; by default the one that was trained last.
            detail: over what weights are aggregated: "all" windows, those of each of the "series", or none, "windows".
            max_windows: most windows, evenly spaced.

        Raises:
            UserError: the run or the rows cannot be used, or the run has no such model.
        """
        with as_files(data=data) as files, temporary_folder() as folder:
            out = folder / "explanations.parquet"
            at_least_one(max_windows=max_windows)
            explain_run(
                self._run(),
                files=files.get("data", ()),
                model=one_of("model", model, WeightsKind),
                detail=one_of("detail", detail, Detail),
                most=max_windows,
                out=out,
            )
            return pq.read_table(out)

    def export(
        self,
        int8: bool | None = None,
        *,
        target: str | None = None,
        lstm: LstmForm = "weights",
        store: Store = "packed",
        with_explanations: bool = False,
    ) -> ExportResult:
        """Write the ONNX files of the run, as `qat-tft export` does.

        Args:
            int8: whether to write the file of integers too; by default where the run was quantization-aware.
            target: target machine of that file; by default the one that the model was trained for.
            lstm: "weights", or "dynamic" for onnxruntime's integer LSTM.
            store: "packed", or "int8" for weights of fewer bits in eight.
            with_explanations: whether the files put out selection weights and attention too.

        Raises:
            UserError: the run cannot be exported so, or another process is writing to it.
        """
        with in_python():
            run = self._run()
            return export_run(
                run,
                int8=run.has_qat_weights if int8 is None else int8,
                target=target,
                lstm=one_of("lstm", lstm, LstmForm),
                store=one_of("store", store, Store),
                with_explanations=with_explanations,
            )

    def check(self, *, model: FileChoice | None = None, seconds: float = 10.0) -> CheckReport:
        """Compare a file of the run with the model that was validated, as `qat-tft check` does.

        A run without exported files is exported first. The report is written to check.json.

        Args:
            model: which file; by default the INT8 file where there is one.
            seconds: after about this time no further block of 64 windows is compared.

        Returns:
            What was found: `passed`, the `reasons` against the file, `to_json()` as in check.json. `require_passed()`
            raises CheckFailed where the command exits with 1.

        Raises:
            UserError: the run or its file cannot be used.
        """
        with in_python():
            return check_model(self._exported(one_of("model", model, FileChoice)), self._run(), seconds=seconds)

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write the page of the run, as `qat-tft report` does, and return its path.

        Args:
            out: the HTML file; by default report.html of the run.

        Raises:
            UserError: the run folder is damaged, matplotlib cannot be loaded, or the page cannot be written.
        """
        with in_python():
            run = self._run()
            page = run.path / layout.PAGE if out is None else Path(out)
            write_page(page, run_page(collect(run, forecasts_of(exported(run)))))
            return page

    @property
    def run(self) -> Path:
        """The run folder.

        Raises:
            RunFolderError: nothing was trained yet.
        """
        return self._run().path

    @property
    def results(self) -> RunResults:
        """The results of the run: q-risk of its models and of the simple forecasts on the test part, and more.

        Raises:
            RunFolderError: nothing was trained yet, or results.json is missing or damaged.
        """
        return self._run().load_results()

    def __repr__(self) -> str:
        run = {} if self._folder is None else {"run": str(self._folder.path)}
        parts = {**self._recipe.described(), **run}
        return f"Forecaster({', '.join(f'{name}={value!r}' for name, value in parts.items())})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Forecaster is not pickled: Forecaster.load(forecaster.run) opens its run again")

    @classmethod
    def _of(cls, folder: RunFolder, runs_dir: Path, progress: bool | Progress) -> Self:
        forecaster = cls(progress=progress)
        forecaster._recipe, forecaster._folder = Recipe.of_run(folder, runs_dir), folder
        return forecaster

    def _for_training(self) -> AbstractContextManager[None]:
        """Let errors call settings that were given by their argument, and those of a file by their key."""
        return in_python(ways=TRAINING, given=[*self._recipe.given] if self._recipe.config_file else None)

    def _run(self) -> RunFolder:
        if self._folder is None:
            raise RunFolderError(
                "this forecaster has no run yet", next_step="Train one with fit, or open one with Forecaster.load"
            )
        return self._folder

    def _exported(self, choice: FileChoice | None) -> Path:
        """Return a file of the run, exported first where it has none such."""
        run = self._run()
        wanted = [run.onnx_file("fp32")] if choice == "fp32" else [run.integer_file]
        wanted += [run.onnx_file("fp32")] if choice is None else []
        found = next((file for file in wanted if file.is_file()), None)
        if found is not None:
            return found
        self.export({"fp32": False, "int8": True, None: None}[choice])
        return find_export(run) if choice is None else wanted[0]
