"""Shows a training run on standard error: a live bar on a terminal, one plain line per epoch elsewhere."""

from rich.progress import TextColumn

from qat_tft.cli import console
from qat_tft.cli.display.live_bar import LiveBar
from qat_tft.cli.display.work_progress import LARGE
from qat_tft.durations import exactly
from qat_tft.training.progress import FLIPPED, EpochReport, PhaseStart, StepReport

_TITLES = {"fp32": "FP32", "qat": "QAT", "continued": "FP32 trained on"}
_WAITING = "loss -"


class TrainingDisplay(LiveBar):
    """Receives the reports of a run; a context manager, so that the bar is gone before anything else prints."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.fields[figures]}"))

    def note(self, text: str) -> None:
        """Print a sentence above the bar."""
        console.note(text)

    def reading(self, done: int, total: int) -> None:
        """Move a bar over the rows of a large file; without a terminal, and for a small one, that is silent."""
        if self._bar is None or total < LARGE:
            return
        if self._task is None:
            self._task = self._bar.add_task("Reading", total=total, figures="rows")
        self._bar.update(self._task, completed=done)
        if done == total:
            self._bar.remove_task(self._task)
            self._task = None

    def phase(self, start: PhaseStart) -> None:
        """Start a bar for the phase, or say how long it will be."""
        title = _TITLES.get(start.phase, start.phase)
        if self._bar is None:
            going_on = f", resuming after step {start.done:,}" if start.done else ""
            console.note(f"{title}: {_count(start.epochs, 'epoch')}, {_count(start.steps, 'step')}{going_on}")
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(
            title, total=start.steps, completed=start.done, begun=start.done, figures=_WAITING
        )

    def step(self, report: StepReport) -> None:
        """Move the bar; without a terminal a step is silent."""
        if self._bar is None or self._task is None:
            return
        figures = f"loss {report.loss:.4f}  {report.samples_per_second:,.0f} samples/s  peak {report.peak_mib:,.0f} MiB"
        self._bar.update(self._task, completed=report.step, figures=figures)

    def epoch(self, report: EpochReport) -> None:
        """Print one line with the figures of the epoch."""
        title = _TITLES.get(report.phase, report.phase)
        console.note(
            f"{title} epoch {report.epoch}: train {report.train_loss:.4f}, "
            f"validation {report.validation_loss:.4f}{' (best)' if report.best else ''}, "
            f"{report.samples_per_second:,.0f} samples/s, peak {report.peak_mib:,.0f} MiB, "
            f"{exactly(report.seconds)}{_flipped(report)}"
        )


def _flipped(report: EpochReport) -> str:
    share = report.more.get(FLIPPED)
    return "" if share is None else f", {share:.2%} of the codes changed"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
