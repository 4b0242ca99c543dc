"""A whole run: data, FP32 training, calibration, quantization-aware training, evaluation, run folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from qat_tft.checkpointing.segments import run_directly
from qat_tft.config.run import RunConfig
from qat_tft.data.loader import batches
from qat_tft.data.scaling import Scaling
from qat_tft.device import cpu_runs_bf16_lstm, forget_peak, is_out_of_memory
from qat_tft.errors import ConfigError, RunFolderError
from qat_tft.evaluation.names import TITLES
from qat_tft.model.frame import FramedTemporalFusionTransformer
from qat_tft.model.loss import loss_of
from qat_tft.model.selection_form import selection_sqnr
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.profiling.savings import measure_savings
from qat_tft.profiling.step_simulator import decide_mode
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.products import INTEGER_STORAGE
from qat_tft.quantization.ranges import Phase as QuantizationPhase
from qat_tft.runs import layout
from qat_tft.runs.build import accelerator_for, build_model, configured_qat_model, refuse_unknown_layers
from qat_tft.runs.calibration import calibrate_on
from qat_tft.runs.data import RunData, load_data, load_data_of
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import WeightsKind
from qat_tft.runs.optimizer import make_optimizer
from qat_tft.runs.results import RunResults
from qat_tft.schema import Schema
from qat_tft.training import outcome
from qat_tft.training.constant_columns import refuse_constant_columns
from qat_tft.training.frame_choice import FittedFrame, fit_frame, several_series
from qat_tft.training.interrupt import InterruptRequest
from qat_tft.training.loop import Phase, PhasePlan, RunContext, batches_in_all, copy_weights
from qat_tft.training.metrics import MetricsLog
from qat_tft.training.out_of_memory import release_memory
from qat_tft.training.progress import Progress, Silent
from qat_tft.training.quantile_offsets import shift_quantiles
from qat_tft.training.schedule import ranges_are_frozen
from qat_tft.training.state import Position, SavedState, load_state
from qat_tft.training.step import TrainingStep

LEAST_SQNR = 50.0
"""Of selected vectors in another form, dB: rounding to 8 bits costs more than what is above."""
FP32: WeightsKind = "fp32"
QAT: WeightsKind = "qat"
PTQ = "ptq"
NO_GAIN = (
    "No FP32 epoch lowered the validation loss below that of the linear path alone: the network adds nothing to it."
)
NOT_BETTER = "No QAT epoch lowered the validation loss below that of the calibrated weights: those are kept."


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder and its results."""

    folder: RunFolder
    results: RunResults


def train(
    config: RunConfig,
    schema: Schema | None = None,
    *,
    runs_dir: str | Path = "runs",
    name: str | None = None,
    progress: Progress | None = None,
) -> FinishedRun:
    """Train as configured and leave a finished run folder.

    Args:
        config: every setting; without Parquet files the embedded bike rentals are used.
        schema: roles of the columns; None only for the embedded bike rentals.
        runs_dir: where run folders stand.
        name: of the run; by default the time.
        progress: receives the reports; by default nobody.

    Raises:
        UserError: data, schema, configuration or run folder cannot be used; the loss became non-finite.
        Interrupted: Ctrl-C; `resume` goes on.
    """
    accelerator_for(config.training)  # refuses a device that is not there before anything is written
    progress = progress or Silent()
    data = load_data(config.data, config.model, schema, reading=progress.reading)
    refuse_constant_columns(data)
    if config.model.seasonal_difference:
        raise ConfigError(
            f"model.seasonal_difference {config.model.seasonal_difference} is how earlier versions carried a season "
            "past the network",
            where="the configuration",
            allowed="0",
            next_step="Leave it out; model.linear_path seasonal-naive forecasts from the value one season before",
        )
    fitted = fit_frame(data, config)
    config = config.with_frame(linear_path=fitted.choice(config.model), scale_input=several_series(data))
    config = config.with_products(config.quantization.products_at(config.model.hidden))
    if config.data.validation_from is None:
        config = config.with_split(*map(data.panel.time_text, (data.split.validation_from, data.split.test_from)))
    if config.quantization.use_qat:
        refuse_unknown_layers(config, data.preprocessing.group_sizes(data.schema))
    if config.training.checkpoint_mode == "auto":
        config, reason = decide_mode(config, data.preprocessing.group_sizes(data.schema))
        progress.note(reason)
    folder = RunFolder.create(runs_dir, name)
    folder.write_setup(config, data.declared, data.preprocessing)
    return _Run(config, data, fitted, folder, progress, None).finish()


def resume(runs_dir: str | Path = "runs", name: str | None = None, *, progress: Progress | None = None) -> FinishedRun:
    """Resume an unfinished run exactly: it ends with the weights it would have had without the interruption.

    Args:
        runs_dir: where run folders stand.
        name: of the run; by default the unfinished run that was written to last.
        progress: receives the reports; by default nobody.

    Raises:
        UserError: there is no such run, its files are damaged, or its data have changed since.
        Interrupted: Ctrl-C again.
    """
    folder = RunFolder.unfinished(runs_dir, name)
    config = folder.load_config()
    progress = progress or Silent()
    data = load_data_of(folder, reading=progress.reading)
    state = folder.path / layout.STATE
    saved = load_state(state) if state.exists() else None
    if saved is not None and saved.position.data_digest != data.digest():
        raise RunFolderError(
            "the data have changed since this run was interrupted",
            where=str(folder.path),
            next_step="Restore the Parquet files, or start a new run",
        )
    return _Run(config, data, fit_frame(data, config), folder, progress, saved).finish()


class _Run:
    """One pass through the phases, from the start or from a saved state."""

    def __init__(
        self,
        config: RunConfig,
        data: RunData,
        frame: FittedFrame,
        folder: RunFolder,
        progress: Progress,
        saved: SavedState | None,
    ) -> None:
        self.config, self.data, self.folder, self.progress, self.saved = config, data, folder, progress, saved
        self.frame = frame
        self.position = saved.position if saved else Position(data_digest=data.digest())
        self.device: torch.device = accelerator_for(config.training).device
        self.scaling: Scaling = data.preprocessing.scaling().to(self.device)

    def finish(self) -> FinishedRun:
        """Train what is left to train, evaluate, and give the folder its final name."""
        for note in self._notes():
            self.progress.note(note)
        keep = self.position.metrics_bytes
        with InterruptRequest() as interrupt, MetricsLog(self.folder.path, keep_bytes=keep) as metrics:
            model = self._float_model(interrupt, metrics)
            if self.config.quantization.use_qat:
                self._quantized_model(model, interrupt, metrics)
        outcome.write_check_windows(self.folder, self.data.test)
        results = outcome.results_of(
            self.folder.name, self.config, self.data, self.frame, self.position, model, tuple(self.position.notes)
        )
        self.folder.write_results(results)
        (self.folder.path / layout.STATE).unlink(missing_ok=True)
        self.folder.finish()
        return FinishedRun(self.folder, results)

    def _notes(self) -> list[str]:
        notes = [*self.data.panel.notes, *self.data.training.notes]
        training = self.config.training
        drawn, in_all = training.batches_per_epoch, batches_in_all(self.data.training, training)
        if drawn is not None and drawn < in_all:
            notes.append(f"An epoch draws {drawn} of {in_all} training batches (training.batches_per_epoch)")
        if training.precision == "bf16" and self.device.type == "cpu" and not cpu_runs_bf16_lstm():
            notes.append("This CPU has no bf16 LSTM, which needs AVX-512: the LSTMs compute in single precision")
        return notes

    def _float_model(self, interrupt: InterruptRequest, metrics: MetricsLog) -> TemporalFusionTransformer:
        torch.manual_seed(self.config.training.seed)
        data, shape = self.data, self.config.model
        model = build_model(shape, data.preprocessing, data.schema).to(self.device)
        if self.position.phase != FP32:
            model.load_state_dict(self.folder.load_fp32_model().state_dict())
            return model
        self.frame.put(model)
        for note in self.frame.notes():
            self.progress.note(note)
        self._report_savings(model)
        training = self.config.training
        path = self.frame.path  # what the model starts as
        plan = PhasePlan(
            FP32,
            training.epochs,
            0,
            training.learning_rate,
            training.patience,
            start_loss=None if path is None else path.validation_loss,
        )
        self._phase(plan, model, interrupt, metrics)
        if path is not None and self.position.stale_epochs >= self.position.epoch:
            self.position.notes.append(NO_GAIN)
        self._shift_quantiles(FP32, model, model)
        self.folder.write_weights(FP32, copy_weights(model))
        self._record(FP32, model)
        return model

    def _quantized_model(
        self, model: TemporalFusionTransformer, interrupt: InterruptRequest, metrics: MetricsLog
    ) -> None:
        settings = self.config.quantization
        quantized = configured_qat_model(model, self.config.model, settings).to(self.device)
        if quantized.products == "float":
            self.progress.note(f"The INT8 model has {INTEGER_STORAGE}")
        if self.position.phase == FP32:
            self._compare_forms(model, quantized)
            self.position = self.position.next_phase(QAT)
            self._calibrate(quantized)
        if settings.qat_epochs:
            self._train_quantized(quantized, interrupt, metrics)
        self._shift_quantiles(QAT, quantized, quantized.model)
        self._record(QAT if settings.qat_epochs else PTQ, quantized)
        self.folder.write_weights(QAT, copy_weights(quantized))

    def _compare_forms(self, model: TemporalFusionTransformer, quantized: QATTemporalFusionTransformer) -> None:
        """Say how close the selected vectors of another form are to those that were trained, on training windows."""
        if self.config.qat_selection == self.config.model.selection:
            return
        raw = next(iter(batches(self.data.training, self.config.training.batch_size))).to(self.device)
        inputs = self.scaling.scale_inputs(raw.static, raw.historical, raw.future, raw.series)
        found = selection_sqnr(model, quantized.model, inputs)
        self.progress.note(
            f"The selection networks, trained {self.config.model.selection}, are {self.config.qat_selection} from here "
            f"on, with {self.config.model.knots} knots: their outputs agree to {found:.1f} dB"
        )
        if found < LEAST_SQNR:
            self.progress.note(f"Below {LEAST_SQNR:g} dB that costs more than rounding to 8 bits: raise --knots")

    def _train_quantized(
        self, quantized: QATTemporalFusionTransformer, interrupt: InterruptRequest, metrics: MetricsLog
    ) -> None:
        settings = self.config.quantization
        plan = PhasePlan(
            QAT,
            settings.qat_epochs,
            self.config.training.epochs,
            settings.qat_learning_rate,
            patience=None,
            before_step=partial(_set_quantization_phase, quantized, frozen=settings.frozen),
            score_start=True,
        )
        self._phase(plan, quantized, interrupt, metrics)
        if self.position.stale_epochs >= settings.qat_epochs:
            self.position.notes.append(NOT_BETTER)
        quantized.set_phase(QuantizationPhase.FROZEN)

    def _calibrate(self, quantized: QATTemporalFusionTransformer) -> None:
        report = calibrate_on(quantized, self.config, self.data.training, self.scaling, self.device)
        if report.batches:
            self.progress.note(f"Calibrated on {report.batches} training batches")
        if report.refused:
            self.progress.note(f"Skipped {len(report.refused)} calibration batches with non-finite values")
        quantized.set_phase(QuantizationPhase.FROZEN)
        self._record(PTQ, quantized)

    def _phase(self, plan: PhasePlan, model: nn.Module, interrupt: InterruptRequest, metrics: MetricsLog) -> None:
        training = self.config.training
        accelerator = accelerator_for(training)
        optimizer = make_optimizer(
            model, learning_rate=plan.peak, weight_decay=training.weight_decay, averaging=training.averaging
        )
        step = TrainingStep(
            accelerator=accelerator,
            model=model,
            scaling=self.scaling,
            schema=self.data.schema,
            optimizer=accelerator.prepare_optimizer(optimizer),
            run_segment=run_directly,  # the fallback of memory puts in the runner of its level
            loss=loss_of(self.config.model.quantiles),
            gradient_clip=training.gradient_clip,
        )
        context = RunContext(
            config=training,
            accelerator=accelerator,
            scaling=self.scaling,
            training=self.data.training,
            validation=self.data.validation,
            state_path=self.folder.path / layout.STATE,
            run_name=self.folder.name,
            progress=self.progress,
            metrics=metrics,
            interrupt=interrupt,
        )
        saved, self.saved = self.saved, None
        Phase(context, plan, step, self.position).run(saved)
        if self.position.best_loss is not None:
            self.position.validation_loss[plan.name] = self.position.best_loss

    def _shift_quantiles(self, kind: WeightsKind, model: nn.Module, inner: TemporalFusionTransformer) -> None:
        if not self.config.model.calibrate_quantiles:
            return
        assert isinstance(inner, FramedTemporalFusionTransformer)
        shift = shift_quantiles(
            model,
            inner,
            inner.frame.offsets,
            self.scaling,
            self.data.validation,
            batch_size=self._batch_size(),
            device=self.device,
        )
        self.position.notes.append(shift.sentence(TITLES[kind]))

    def _report_savings(self, model: TemporalFusionTransformer) -> None:
        segments = self.config.training.recomputed_segments
        if not segments or self.position.savings is not None:
            return
        batch = next(iter(batches(self.data.training, self.config.training.batch_size)))
        quantiles = self.config.model.quantiles
        try:
            savings = measure_savings(
                model, self.scaling, batch, segments=segments, quantiles=quantiles, device=self.device
            )
        except (MemoryError, RuntimeError) as failure:
            if not is_out_of_memory(failure):
                raise
            self.progress.note(
                "Not enough memory to measure what checkpointing saves: one step on a full batch is too large"
            )
            return
        finally:
            release_memory()
        forget_peak()  # the step without checkpointing was only a measurement
        self.progress.note(savings.sentence())
        self.position.savings = savings.to_json()

    def _record(self, name: str, model: nn.Module) -> None:
        smaller = self.config.training.model_copy(update={"batch_size": self._batch_size()})
        config = self.config.model_copy(update={"training": smaller})
        scores = outcome.test_scores(model, self.scaling, self.data.test, config, self.device)
        self.position.q_risk[name], self.position.coverage[name] = list(scores.q_risk), list(scores.coverage)

    def _batch_size(self) -> int:
        level = self.position.level
        return self.config.training.batch_size if level is None else int(level["micro_batch"])


def _set_quantization_phase(model: QATTemporalFusionTransformer, step: int, steps: int, *, frozen: float) -> None:
    wanted = QuantizationPhase.FROZEN if ranges_are_frozen(step, steps, frozen=frozen) else QuantizationPhase.QAT
    if model.phase is not wanted:
        model.set_phase(wanted)
