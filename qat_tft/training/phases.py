"""The phases of a run: FP32 training, calibration, quantization-aware training, its control, evaluation."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from qat_tft import ranks
from qat_tft.checkpointing.segments import run_directly
from qat_tft.config.run import RunConfig
from qat_tft.data.scaling import Scaling
from qat_tft.device import cpu_runs_bf16_lstm
from qat_tft.errors import NonFiniteLossError
from qat_tft.evaluation.names import TITLES
from qat_tft.model.frame import FramedTemporalFusionTransformer
from qat_tft.model.loss import loss_of
from qat_tft.model.tft import TemporalFusionTransformer
from qat_tft.quantization.calibrate import CalibrationReport, Calibrator
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.quantization.products import INTEGER_STORAGE, NO_FASTER
from qat_tft.quantization.ranges import Phase as QuantizationPhase
from qat_tft.runs import layout
from qat_tft.runs.bit_choice import choose_bits
from qat_tft.runs.build import accelerator_for, build_model, configured_qat_model
from qat_tft.runs.calibration import calibrate_on, calibrator_losses
from qat_tft.runs.data import RunData
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.layout import WeightsKind
from qat_tft.runs.optimizer import make_optimizer
from qat_tft.runs.results import RunResults
from qat_tft.tracking.tracking import Tracking
from qat_tft.training import outcome
from qat_tft.training.agreement import agreed
from qat_tft.training.frame_choice import FittedFrame
from qat_tft.training.interrupt import InterruptRequest
from qat_tft.training.loop import Phase, batches_in_all, copy_weights
from qat_tft.training.measured_notes import notes_on_forms, savings_of
from qat_tft.training.metrics import MetricsLog, NoMetrics
from qat_tft.training.plan import PhasePlan, RunContext
from qat_tft.training.progress import Progress
from qat_tft.training.quantile_offsets import shift_quantiles
from qat_tft.training.quantized_phase import CodeChanges, RangeSchedule, Teacher, drawn_windows
from qat_tft.training.state import Position, SavedState
from qat_tft.training.steps.step import TrainingStep

FP32: WeightsKind = "fp32"
QAT: WeightsKind = "qat"
PTQ = "ptq"
CONTINUED = "continued"
NO_GAIN = (
    "No FP32 epoch lowered the validation loss below that of the linear path alone: the network adds nothing to it."
)
NOT_BETTER = "No QAT epoch lowered the validation loss below that of the calibrated weights: those are kept."


class RunPhases:
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

    def finish(self) -> RunResults:
        """Train what is left to train, evaluate, and give the folder its final name."""
        for note in self._notes():
            self.progress.note(note)
        keep = self.position.metrics_bytes
        with self._tracking() as tracking, InterruptRequest() as interrupt, self._metrics(keep, tracking) as metrics:
            model = self._float_model(interrupt, metrics)
            if self.config.quantization.use_qat:
                self._quantized_model(model, interrupt, metrics)
            outcome.write_check_windows(self.folder, self.data.test)
            results = outcome.results_of(
                self.folder.name, self.config, self.data, self.frame, self.position, model, tuple(self.position.notes)
            )
            self.folder.write_results(results)
            tracking.results(results.to_json())
        self.folder.finish()  # the trackers have closed what they have open in it
        return results

    def _tracking(self) -> Tracking:
        values = self.config.model_dump(mode="json", exclude_none=True)
        trackers = self.config.training.track if ranks.is_first() else ()
        return Tracking(trackers, self.folder.path, self.folder.name, values, self._tell)

    def _metrics(self, keep: int, tracking: Tracking) -> MetricsLog:
        return MetricsLog(self.folder.path, keep_bytes=keep, tracking=tracking) if ranks.is_first() else NoMetrics()

    def _tell(self, text: str) -> None:
        self.progress.note(text)
        self.position.notes.append(text)

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
        begun_quantized = self.saved is None and self.folder.weights_file(FP32).exists()
        if self.position.phase != FP32 or begun_quantized:
            model.load_state_dict(self.folder.load_fp32_model().state_dict())
            if FP32 not in self.position.q_risk:
                self._record(FP32, model)
            return model
        self.frame.put(model)
        for note in self.frame.notes():
            self.progress.note(note)
        if self.position.savings is None and self.config.training.recomputed_segments:
            one = self.config.with_batch_size(self._batch_size())
            note, self.position.savings = savings_of(model, one, self.data, self.scaling, self.device)
            self.progress.note(note)
        training = self.config.training
        path = self.frame.path  # what the model starts as
        plan = PhasePlan(
            FP32,
            training.epochs,
            0,
            training.learning_rate,
            training.patience,
            start_loss=ranks.told_by_first(None if path is None else path.validation_loss),
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
        if self.config.quantization.weight_bits == "auto":
            self.config, note = choose_bits(model, self.config, self.data, self.scaling, self.device)
            self.config = agreed(self.config)
            if note not in self.position.notes:  # the state may hold it where config.toml does not hold the bits yet
                self.position.notes.append(note)
            self.progress.note(note)
        settings = self.config.quantization
        quantized = configured_qat_model(model, self.config.model, settings).to(self.device)
        if quantized.products == "float":
            why = NO_FASTER if settings.products == "auto" else ""
            self.progress.note(f"The INT8 model has {INTEGER_STORAGE}{why}")
        if self.config.quantization.calibrator == "auto":
            self._choose_calibrator(quantized)
        if self.position.phase == FP32:
            for note in notes_on_forms(model, quantized, self.config, self.data, self.scaling, self.device):
                self.progress.note(note)
            self.position = self.position.next_phase(QAT)
            self._calibrate(quantized)
        if self.position.phase != CONTINUED:
            if settings.qat_epochs:
                self._train_quantized(model, quantized, interrupt, metrics)
            self.folder.write_config(self.config)
            self._shift_quantiles(QAT, quantized, quantized.model)
            self._record(QAT if settings.qat_epochs else PTQ, quantized)
            self.folder.write_weights(QAT, copy_weights(quantized))
        if settings.qat_epochs and settings.has_control:
            del quantized
            self._train_on(model, interrupt, metrics)

    def _train_on(self, model: TemporalFusionTransformer, interrupt: InterruptRequest, metrics: MetricsLog) -> None:
        """Train the floating-point model as long as the quantized one: what QAT gains must not be extra training."""
        if self.position.phase != CONTINUED:
            self.position = self.position.next_phase(CONTINUED)
        epochs, first = self.config.quantization.qat_epochs, self.config.training.epochs
        plan = PhasePlan(CONTINUED, epochs, first, self.config.qat_learning_rate, patience=None, score_start=True)
        self._phase(plan, model, interrupt, metrics)
        self._shift_quantiles(FP32, model, model)
        self._record(CONTINUED, model)

    def _train_quantized(
        self,
        model: TemporalFusionTransformer,
        quantized: QATTemporalFusionTransformer,
        interrupt: InterruptRequest,
        metrics: MetricsLog,
    ) -> None:
        settings = self.config.quantization
        observed = settings.qat_ranges == "observed"
        plan = PhasePlan(
            QAT,
            settings.qat_epochs,
            self.config.training.epochs,
            self.config.qat_learning_rate,
            patience=None,
            started=lambda: self.folder.write_config(self.config),
            before_step=RangeSchedule(
                quantized, settings.frozen, partial(self._set_ranges, quantized) if observed else _as_they_are
            ),
            score_start=True,
            distill=settings.distill,
            teach=self._teacher(model) if settings.distill else None,
            figures=CodeChanges(quantized),
        )
        self._phase(plan, quantized, interrupt, metrics)
        if self.position.best_epoch:
            kept = f"Kept are the QAT weights of epoch {self.position.best_epoch} of {settings.qat_epochs}."
            self.position.notes.append(kept)
        else:
            self.position.notes.append(NOT_BETTER)
        quantized.set_phase(QuantizationPhase.FROZEN)

    def _teacher(self, model: TemporalFusionTransformer) -> Teacher:
        training, first = self.config.training, self.config.training.epochs
        per_epoch = training.batches_per_epoch or batches_in_all(self.data.training, training)
        epochs = range(first, first + self.config.quantization.qat_epochs)
        return Teacher.of(
            model,
            self.scaling,
            self.data.training,
            drawn_windows(self.data.training, training, epochs, per_epoch),
            batch_size=self._batch_size(),
            device=self.device,
            scratch=self.folder.scratch(),
        )

    def _set_ranges(self, quantized: QATTemporalFusionTransformer) -> CalibrationReport:
        return calibrate_on(quantized, self.config, self.data.training, self.scaling, self.device)

    def _calibrate(self, quantized: QATTemporalFusionTransformer) -> None:
        report = self._set_ranges(quantized)
        if report.batches:
            self.progress.note(f"Calibrated on {report.batches} training batches")
        if report.refused:
            self.progress.note(f"Skipped {len(report.refused)} calibration batches with non-finite values")
        quantized.set_phase(QuantizationPhase.FROZEN)
        self._record(PTQ, quantized)

    def _choose_calibrator(self, quantized: QATTemporalFusionTransformer) -> None:
        data, smaller = self.data, self.config.with_batch_size(self._batch_size())
        losses = calibrator_losses(quantized, smaller, data.training, data.validation, self.scaling, self.device)
        best = min(losses, key=losses.__getitem__, default=Calibrator.MOVING_AVERAGE)
        if losses:
            figures = ", ".join(f"{name} {loss:.4g}" for name, loss in losses.items())
            self.progress.note(f"Calibrator: {best}, with the lowest validation loss ({figures})")
        self.config = self.config.with_calibrator(best)

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
            distill=plan.distill,
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

    def _record(self, name: str, model: nn.Module) -> None:
        config = self.config.with_batch_size(self._batch_size())
        scores = outcome.test_scores(model, self.scaling, self.data.test, config, self.device)
        if any(one is not None and not math.isfinite(one) for one in (*scores.q_risk, *scores.coverage)):
            raise NonFiniteLossError(
                f"the {TITLES[name]} model forecasts NaN or infinity on the test part",
                where=str(self.folder.path),
                next_step="Its weights are damaged, or the data far from those of its training: train it again",
            )
        self.position.q_risk[name], self.position.coverage[name] = list(scores.q_risk), list(scores.coverage)

    def _batch_size(self) -> int:
        level = self.position.level
        return ranks.largest_share(self.config.training.batch_size) if level is None else int(level["micro_batch"])


def _as_they_are() -> None:
    """Leave ranges alone that are trained."""
