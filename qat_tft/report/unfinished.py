"""What there is of a run that is not finished: losses so far, data and configuration, and how the rest is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from qat_tft.report.answer import Fact
from qat_tft.report.card import ModelCard, card_of
from qat_tft.report.missing import Missing
from qat_tft.report.training_curves import PhaseCurve, read_curves
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.listing import State, state_of

_LEADS: dict[State, str] = {
    "training": "Another process is training this run: what stands here is what it has written so far.",
    "interrupted": "This run was interrupted, and goes on where it stopped.",
    "begun": "This run was interrupted before its first state was saved, and begins anew when it is resumed.",
}


@dataclass(frozen=True)
class UnfinishedContent:
    """What the page of an unfinished run shows.

    Attributes:
        name: of the run.
        state: "training", "interrupted" or "begun".
        target: what it will forecast.
        lead: in which state it is, in one sentence.
        facts: how far it has come.
        missing: what it lacks, and the command that makes it.
        curves: losses by phase, or why there are none.
        card: the model card without what only results tell.
        page: the page that was written, None without one.
    """

    name: str
    state: State
    target: str
    lead: str
    facts: tuple[Fact, ...]
    missing: tuple[Missing, ...]
    curves: tuple[PhaseCurve, ...] | Missing
    card: ModelCard
    page: Path | None = None

    def with_page(self, page: Path | None) -> UnfinishedContent:
        """Return the same with the page that was written."""
        return replace(self, page=page)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        curves = () if isinstance(self.curves, Missing) else self.curves
        return {
            "run": self.name,
            "finished": False,
            "state": self.state,
            "epochs": {one.phase: one.epochs[-1].number for one in curves},
            "validation_loss": {one.phase: one.kept.validation_loss for one in curves},
            "missing": [asdict(one) for one in self.missing],
            "page": str(self.page) if self.page else None,
        }

    def tables(self) -> Sequence[RenderableType]:
        """Return how far the run has come, what it lacks and how that is made."""
        lines = [self.lead, *(f"{one.title}: {one.value}. {one.sentence}" for one in self.facts)]
        lines += [f"{one.what}{f' `{one.command}` goes on.' if one.command else ''}" for one in self.missing]
        return [Text(line) for line in (*lines, *([f"Report: {self.page}"] if self.page else []))]


def collect_unfinished(run: RunFolder) -> UnfinishedContent:
    """Read what an unfinished run has written; nothing is computed, and no model is loaded.

    Raises:
        RunFolderError: config.toml, schema.toml or preprocessing.json is damaged.
    """
    config, schema, state, curves = run.load_config(), run.load_schema(), state_of(run.path), read_curves(run)
    return UnfinishedContent(
        name=run.name,
        state=state,
        target=schema.target,
        lead=_LEADS[state],
        facts=() if isinstance(curves, Missing) else tuple(_reached(one) for one in curves),
        missing=(_rest(run, state),),
        curves=curves,
        card=card_of(config, schema, run.load_preprocessing(), None, {}),
    )


def _rest(run: RunFolder, state: State) -> Missing:
    what = "There are no results, forecasts, explanations and files yet: they are made when the training is finished."
    if state == "training":
        return Missing(what)
    place = f" --runs-dir {run.path.parent}" if run.path.parent.name != "runs" else ""
    return Missing(what, f"qat-tft train --resume {run.name}{place}")


def _reached(curve: PhaseCurve) -> Fact:
    kept, last = curve.kept, curve.epochs[-1]
    best = f"the best is {kept.validation_loss:.4f}, of epoch {kept.number}"
    sentence = f"Validation loss {last.validation_loss:.4f}; {best}."
    return Fact(f"Epochs of {curve.phase.upper()} so far", f"{last.number:,}", sentence)
