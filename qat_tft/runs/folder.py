"""The run folder `runs/NAME/`: where a run keeps its files, how it is found, and how its models come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from qat_tft.config.run import RunConfig
from qat_tft.data.preprocessing import Preprocessing
from qat_tft.data.windows import Batch
from qat_tft.errors import RunFolderError, UserError
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.prepare import QATTemporalFusionTransformer, ranges_of, state_for
from qat_tft.quantization.ranges import Phase
from qat_tft.runs import files, layout, lifecycle
from qat_tft.runs.build import build_model, configured_qat_model
from qat_tft.runs.check_record import require_record
from qat_tft.runs.check_windows import windows_of
from qat_tft.runs.layout import LATEST, UNFINISHED, FileKind, WeightsKind
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema

Parsed = TypeVar("Parsed")


class RunFolder:
    """The files of one run.

    A run trains in `NAME.unfinished`, where it can be resumed; the finished folder is renamed to `NAME`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The name of the run, the same before and after it finished."""
        return self.path.name.removesuffix(UNFINISHED)

    @classmethod
    def create(
        cls, root: str | Path, name: str | None = None, write: Callable[[RunFolder], None] = lambda new: None
    ) -> RunFolder:
        """Make the folder of a new, unfinished run; without a name, the time names it.

        Args:
            root: where run folders stand.
            name: of the run.
            write: writes what the folder holds from the start.

        Raises:
            RunFolderError: the name is not usable or taken, or the folder cannot be written.
        """
        return cls(lifecycle.begin(Path(root), name, lambda path: write(cls(path))))

    def held(self) -> AbstractContextManager[None]:
        """Keep every other process from writing to this run; errors are those of `lifecycle.held`."""
        return lifecycle.held(self.path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return a finished run's folder.

        Raises:
            RunFolderError: there is none at `path`, or it is unfinished.
        """
        path = Path(path)
        if path.name.endswith(UNFINISHED) or not path.exists():
            unfinished = path.with_name(path.name.removesuffix(UNFINISHED) + UNFINISHED)
            if unfinished.is_dir():
                name = unfinished.name.removesuffix(UNFINISHED)
                raise RunFolderError(
                    "this run is not finished",
                    where=str(path),
                    next_step=f"Finish it with `qat-tft train --resume {name}`",
                )
        if not path.is_dir():
            raise RunFolderError("no run folder", where=str(path), next_step="`qat-tft runs` lists those there are")
        if not (path / layout.CONFIG).is_file():
            raise RunFolderError(
                "not a run folder: it has no config.toml",
                where=str(path),
                next_step="Name a folder that `qat-tft train` wrote",
            )
        lifecycle.tidy(path)
        return cls(path)

    @classmethod
    def latest(cls, root: str | Path) -> RunFolder:
        """Return the newest finished run under `root`.

        Raises:
            RunFolderError: there is no finished run.
        """
        lifecycle.tidy_all(Path(root))
        pointer = Path(root) / LATEST
        if not pointer.is_file():
            raise RunFolderError(
                "no finished run", where=str(root), next_step="Train one with `qat-tft train`, or name a run"
            )
        name = files.read_text(pointer).strip()
        if not lifecycle.is_name(name):
            raise RunFolderError(
                "does not name a run", where=str(pointer), next_step="Name the run, or write its name there"
            )
        return cls.open(Path(root) / name)

    @classmethod
    def find(cls, run: str | None, root: str | Path) -> RunFolder:
        """Return the run a user means: a path, a name under `root`, or the newest one for None.

        Raises:
            RunFolderError: there is no such finished run.
        """
        if run is None or run == LATEST:
            return cls.latest(root)
        here = Path(root) / run
        return cls.open(here if here.is_dir() or not Path(run).is_dir() else run)

    @classmethod
    def begun(cls, run: str, root: str | Path) -> RunFolder | None:
        """Return the unfinished run that a user means by a name or a path; None where there is none of that name."""
        for path in (Path(root) / run, Path(run)):
            unfinished = path.with_name(path.name.removesuffix(UNFINISHED) + UNFINISHED)
            if path.is_dir() and path != unfinished:
                return None
            if unfinished.is_dir():
                return cls(unfinished)
        return None

    @classmethod
    def unfinished(cls, root: str | Path, name: str | None = None) -> RunFolder:
        """Return an unfinished run: the one called `name`, or the one written to last.

        Raises:
            RunFolderError: there is no such unfinished run.
        """
        root = Path(root)
        waiting = sorted(root.glob(f"*{UNFINISHED}"), key=lifecycle.modified)
        if name is None and waiting:
            return cls(waiting[-1])
        wanted = root / f"{lifecycle.usable(name)}{UNFINISHED}" if name else root
        if name and wanted.is_dir():
            return cls(wanted)
        if name and (root / name).is_dir():
            raise RunFolderError("this run is finished: nothing to resume", where=str(root / name))
        names = ", ".join(path.name.removesuffix(UNFINISHED) for path in waiting)
        raise RunFolderError(
            f"no unfinished run called {name!r}" if name else "no unfinished run",
            where=str(root),
            allowed=names,
            next_step="Start one with `qat-tft train`",
        )

    def finish(self) -> None:
        """Rename the folder to its final name and make it the latest run.

        Raises:
            RunFolderError: the file system refuses.
        """
        self.path = lifecycle.finish(self.path)

    @property
    def table(self) -> Path | None:
        """The data where they stand in this folder; None where the run reads files from elsewhere."""
        path = self.path / layout.TABLE
        return path if path.is_file() else None

    def write_setup(
        self, config: RunConfig, schema: Schema, preprocessing: Preprocessing, table: Path | None = None
    ) -> None:
        """Write what is known before the first step: config.toml, schema.toml, preprocessing.json and own data."""
        if table is not None:
            files.take_file(table, self.path / layout.TABLE)
        self.write_config(config)
        files.write_text(self.path / layout.SCHEMA, schema.to_toml())
        files.write_json(self.path / layout.PREPROCESSING, preprocessing.to_json())

    def write_weights(self, kind: WeightsKind, weights: dict[str, torch.Tensor]) -> None:
        """Write fp32.safetensors or qat.safetensors."""
        files.write_tensors(self.weights_file(kind), weights, kind=kind)

    def write_check_windows(self, windows: Batch) -> None:
        """Write check_windows.safetensors: raw windows of the test part."""
        tensors = {name: tensor for name, tensor in windows._asdict().items() if tensor is not None}
        files.write_tensors(self.path / layout.CHECK_WINDOWS, tensors, kind="windows")

    def write_results(self, results: RunResults) -> None:
        """Write results.json."""
        files.write_json(self.path / layout.RESULTS, results.to_json())

    def write_check(self, report: Mapping[str, Any]) -> None:
        """Write check.json."""
        files.write_json(self.path / layout.CHECK, report)

    def load_config(self) -> RunConfig:
        """Return the run's configuration, with the path of its data where they stand in its folder.

        Raises:
            RunFolderError: config.toml is missing or not a configuration of this version.
        """
        return _parsed(self.path / layout.CONFIG, RunConfig.from_run).located(self.path)

    def load_schema(self) -> Schema:
        """Return the run's schema.

        Raises:
            RunFolderError: schema.toml is missing or not a schema.
        """
        return _parsed(self.path / layout.SCHEMA, Schema.from_toml)

    def load_effective_schema(self) -> Schema:
        """Return the run's schema with the columns that its preparation derives: what model and files see.

        Raises:
            RunFolderError: as `load_schema` and `load_preprocessing`.
        """
        return self.load_preprocessing().preparation.effective_schema(self.load_schema())

    def load_preprocessing(self) -> Preprocessing:
        """Return the vocabularies and scaling statistics that the run fitted.

        Raises:
            RunFolderError: preprocessing.json is missing, cut short or not ours.
        """
        path = self.path / layout.PREPROCESSING
        value = files.read_json(path)
        try:
            return Preprocessing.from_json(value)
        except ValueError as problem:
            raise RunFolderError(f"not the preprocessing of a run: {problem}", where=str(path)) from None

    def load_fp32_model(self) -> TemporalFusionTransformer:
        """Return the floating-point model in evaluation mode.

        Raises:
            RunFolderError: a file is missing, cut short, not ours, or does not fit the configuration.
        """
        model = build_model(self.load_config().model, self.load_preprocessing(), self.load_effective_schema())
        self._put_weights("fp32", model, self.read_weights("fp32"))
        return model.eval()

    def scratch(self) -> Path:
        """Where a run that trains may keep what the teacher says, if it is too much for memory."""
        return self.path / layout.TEACHER

    def weights_file(self, kind: WeightsKind) -> Path:
        """Where the weights of the floating-point or of the quantization-aware model stand."""
        return self.path / layout.WEIGHTS[kind]

    def onnx_file(self, kind: FileKind) -> Path:
        """Where the FP32 file, or that of weights with so many bits, stands once it was exported."""
        return self.path / layout.ONNX[kind]

    @property
    def weight_bits(self) -> int:
        """Fewest bits of a weight in the quantization-aware model; errors are those of `load_config`."""
        return self.load_config().quantization.layout.fewest

    @property
    def integer_file(self) -> Path:
        """Where the file of the quantization-aware model stands: that with 8-bit storage where there is no other."""
        own, wider = self.onnx_file(layout.INTEGER[self.weight_bits]), self.onnx_file("int8")
        return wider if wider.is_file() and not own.is_file() else own

    @property
    def has_qat_weights(self) -> bool:
        """Whether the run was quantization-aware."""
        return (self.weights_file("qat")).exists()

    def write_config(self, config: RunConfig) -> None:
        """Write config.toml anew; it names no folder of the run's own, which is renamed and may be moved."""
        if config.data.parquet_files == (str(self.path / layout.TABLE),):
            config = config.with_own_table()
        files.write_text(self.path / layout.CONFIG, config.to_toml())

    def load_qat_model(self, *, every_layer: bool = False) -> QATTemporalFusionTransformer:
        """Return the quantization-aware model in evaluation mode, its ranges frozen.

        Layers that the configuration leaves in floating point are not quantized, although the weights may hold ranges
        for them; with `every_layer` those are, and tables, which need no range. Integer storage has no ranges that
        tell: its layers stay as configured.

        Raises:
            RunFolderError: as `load_fp32_model`, or the run was not quantization-aware.
        """
        if not self.has_qat_weights and (self.weights_file("fp32")).exists():
            raise RunFolderError(
                "this run was trained without quantization",
                where=str(self.path),
                next_step="Train with `qat-tft train --use-qat`",
            )
        config, tensors = self.load_config(), self.read_weights("qat")
        if every_layer:
            left_out = config.quantization.float_layers
            untrained = (one for one in left_out if not ranges_of(one, tensors) and not one.endswith(".table"))
            config = config.with_float_layers(tuple(untrained))
        model = configured_qat_model(self.load_fp32_model(), config.model, config.quantization)
        self._put_weights("qat", model, state_for(model, tensors))
        model.set_phase(Phase.FROZEN)
        return model.eval()

    def load_check_windows(self) -> Batch:
        """Return raw windows of the test part: static, historical, future, target and series.

        Raises:
            RunFolderError: check_windows.safetensors is missing, cut short or not ours.
        """
        path = self.path / layout.CHECK_WINDOWS
        tensors, _ = files.read_tensors(path, kind="windows")
        try:
            return windows_of(tensors, self.load_config().model, self.load_preprocessing())
        except ValueError as problem:
            raise RunFolderError(str(problem), where=str(path), next_step=files.RESTORE) from None

    def load_results(self) -> RunResults:
        """Return the results of the run.

        Raises:
            RunFolderError: results.json is missing, cut short or not ours.
        """
        path = self.path / layout.RESULTS
        value = files.read_json(path)
        try:
            return RunResults.from_json(value)
        except ValueError as problem:
            raise RunFolderError(str(problem), where=str(path)) from None

    def load_check(self) -> dict[str, Any] | None:
        """Return what `qat-tft check` found, None where the run was not checked.

        Raises:
            RunFolderError: check.json is cut short or not ours.
        """
        path = self.path / layout.CHECK
        if not path.is_file():
            return None
        report = files.read_json(path)
        try:
            require_record(report)
        except ValueError:
            raise RunFolderError(
                "not the report of a check", where=str(path), next_step="Run `qat-tft check` again"
            ) from None
        return report

    def read_weights(self, kind: WeightsKind) -> dict[str, torch.Tensor]:
        """Return the tensors of a weights file as they stand there.

        Raises:
            RunFolderError: the file is missing, cut short, not ours, of another kind, or holds NaN or infinity.
        """
        path = self.weights_file(kind)
        tensors, _ = files.read_tensors(path, kind=kind)
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise RunFolderError(f"{name!r} holds NaN or infinity", where=str(path), next_step=files.RESTORE)
        return tensors

    def _put_weights(self, kind: WeightsKind, model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        path = self.weights_file(kind)
        types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
        unlike = [name for name, tensor in tensors.items() if tensor.dtype != types.get(name, tensor.dtype)]
        if unlike:
            raise RunFolderError(
                f"{unlike[0]!r} is of type {tensors[unlike[0]].dtype}",
                where=str(path),
                allowed=str(types[unlike[0]]),
                next_step=files.RESTORE,
            )
        try:
            model.load_state_dict(tensors)
        except RuntimeError as mismatch:
            raise RunFolderError(
                f"the weights do not fit config.toml: {str(mismatch).splitlines()[-1].strip()}",
                where=str(path),
                next_step=files.RESTORE,
            ) from None


def _parsed(path: Path, parse: Callable[..., Parsed]) -> Parsed:
    """Return what a TOML file of a run holds; what is wrong with it is a fault of the folder."""
    text = files.read_text(path)
    try:
        return parse(text, where=str(path))
    except UserError as problem:
        raise RunFolderError(problem.what, where=str(path), allowed=problem.allowed) from None
