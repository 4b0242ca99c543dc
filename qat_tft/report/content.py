"""Everything a report of a run says, as plain values: computed here, drawn and written elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from qat_tft.report.answer import Fact, absences, answer
from qat_tft.report.card import ModelCard, card_of
from qat_tft.report.cost import Cost, cost_of
from qat_tft.report.evidence import FileForecasts, gather_evidence
from qat_tft.report.explanations import Explanations, explain
from qat_tft.report.fans import Fans, choose_fans
from qat_tft.report.missing import Missing
from qat_tft.report.quality import RiskRow, StepErrors, errors_by_step, risk_rows
from qat_tft.report.training_curves import PhaseCurve, read_curves
from qat_tft.runs.folder import RunFolder
from qat_tft.runs.report import RunReport


@dataclass(frozen=True)
class ReportContent:
    """What a page of a run shows.

    Attributes:
        name: of the run.
        target: what is forecast.
        integers: what the quantization-aware model is called, such as INT8; empty where there is none.
        file: name of the file that forecast for it; empty where the model did in torch.
        levels: the quantiles.
        middle: place of the quantile nearest to the median.
        lead: the answer in one sentence.
        facts: the answer in figures.
        missing: what the run lacks.
        windows, kept: how many windows were looked at, of how many.
        fans: forecasts to look at.
        curves: losses by phase, or why there are none.
        risks: the q-risk table of the test part.
        steps: errors by horizon step, on the windows that were looked at.
        explanations: what the weights say.
        cost: bytes, time, memory and layers.
        card: the model card.
    """

    name: str
    target: str
    integers: str
    file: str
    levels: tuple[float, ...]
    middle: int
    lead: str
    facts: tuple[Fact, ...]
    missing: tuple[Missing, ...]
    windows: int
    kept: int
    fans: Fans
    curves: tuple[PhaseCurve, ...] | Missing
    risks: tuple[RiskRow, ...]
    steps: tuple[StepErrors, ...]
    explanations: Explanations
    cost: Cost
    card: ModelCard


def collect(run: RunFolder, file: FileForecasts | None = None) -> ReportContent:
    """Compute the report of a finished run.

    Args:
        run: finished; its data files are not needed.
        file: its integer file, which forecasts in the place of the quantization-aware model in torch.

    Raises:
        RunFolderError: the run folder is damaged.
        UserError: the file is.
    """
    report, config, schema = RunReport.of(run), run.load_config(), run.load_schema()
    results = report.results
    evidence = gather_evidence(run, results.season, file=file)
    effective = run.load_effective_schema()
    levels, middle = config.model.quantiles, results.middle
    return ReportContent(
        name=run.name,
        target=schema.target,
        integers=evidence.last.label if len(evidence.views) > 1 else "",
        file=file.name if file is not None and len(evidence.views) > 1 else "",
        levels=levels,
        middle=middle,
        lead=results.sentence(),
        facts=answer(report, run.weight_bits),
        missing=absences(report, run.name, run.weight_bits),
        windows=len(evidence.series),
        kept=evidence.kept,
        fans=choose_fans(evidence, effective, levels, middle),
        curves=read_curves(run),
        risks=risk_rows(results),
        steps=errors_by_step(evidence, levels),
        explanations=explain(evidence.views, evidence.variables, config.model.history),
        cost=cost_of(report, evidence.low_bits),
        card=card_of(config, schema, run.load_preprocessing(), results, {} if file is None else file.versions),
    )
