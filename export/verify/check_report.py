"""What a check found: plain numbers that render as JSON and as tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from qat_tft.errors import CheckFailed
from qat_tft.export.build.export_report import float_table
from qat_tft.export.verify.layers import LayerReport
from qat_tft.export.verify.runtimes import OtherRuntime

_DYNAMIC = (
    "The LSTMs of this file round within ranges that they take from each batch (--lstm dynamic): a forecast depends "
    "on the other rows of its batch, and the file is close to the QAT model instead of equal to it."
)


@dataclass(frozen=True)
class Thresholds:
    """What a file must reach to pass.

    Attributes:
        sqnr_db: least signal to quantization noise ratio against the reference model, optimized or not.
        dynamic_sqnr_db: the same where the LSTMs round within ranges of their own (``--lstm dynamic``).
        steps: most that optimizations, or the size of the batch, may change a quantile, in head steps.
        file_share: most that the INT8 file may hold of the FP32 file's bytes ...
        graph_bytes: ... beyond these, which stand for the graph itself: it does not shrink with the weights. Nor do
            embeddings, statistics of each series and metadata, which are left out of both files.
        risk_over_qat: most that the mean q-risk may lie above that of the QAT model, as a share.
        risk_over_fp32: most that it may lie above that of the FP32 model, as a share.
        layer_steps: most that a value may differ where a layer gets the QAT layer's input, in the layer's steps.
        layer_off: share of those values, of all layers together, that may differ at all.
    """

    sqnr_db: float = 40.0
    dynamic_sqnr_db: float = 25.0
    steps: float = 2.0
    file_share: float = 0.35
    graph_bytes: int = 256 * 1024
    risk_over_qat: float = 0.01
    risk_over_fp32: float = 0.05
    layer_steps: float = 1.0
    layer_off: float = 1e-4


@dataclass(frozen=True)
class CheckReport:
    """The result of ``check_model``. A number that could not be measured is None.

    Attributes:
        model: the file; kind: ``fp32`` or ``int8``; target: its target profile.
        reasons: why the check failed; empty when it passed.
        lstm: ``weights``, or ``dynamic`` where rows of a batch influence each other and the file is no exact image.
        rows: windows compared; seconds: wall time; threads: of onnxruntime in all measurements.
        sqnr_db: ``optimized`` and ``unoptimized``, of the network's output against the reference model's.
        sqnr_by_batch: the optimized file alone, by batch size.
        max_error_steps: largest error against the reference model, in head steps (see ``output_step``).
        optimization_steps: largest change made by onnxruntime's optimizations, in head steps.
        batch_steps: largest change made by the size of the batch, in head steps.
        batch_mates_change: largest change of a row's raw forecast when its batch mates are replaced.
        q_risk: ``fp32``, ``qat`` and ``int8``, each by quantile, on the compared windows.
        quantile_crossings: forecasts whose quantiles are out of order, of all rows x horizon.
        bytes: ``fp32_file``, ``int8_file``, ``int8_weights``, ``float_weights``, and ``unchanged``, which both files
            have alike.
        integer_ops: integer products in onnxruntime's optimized graph; float_products: those left float.
        float_layers: names of the layers and operations that stay in floating point, by the reason.
        saturating_products: integer products in which a CPU without VNNI could saturate (see ``saturation``).
        layers: every quantized layer with the same input as in the QAT model, worst first.
        missing_layers: those of which the graph holds no product.
        quantized_constants: constants that the graph rounds at every call instead of storing them as int8.
        runtimes: what other runtimes make of the file.
        latency_ms: ``fp32`` and ``int8``, median milliseconds by batch size.
        weights_match: whether the file was made from the weights that the run folder holds now.
    """

    model: Path
    kind: str
    target: str
    reasons: tuple[str, ...]
    lstm: str = "weights"
    rows: int = 0
    seconds: float = 0.0
    threads: int = 1
    sqnr_db: Mapping[str, float | None] = field(default_factory=dict)
    sqnr_by_batch: Mapping[str, float | None] = field(default_factory=dict)
    max_error_steps: float | None = None
    optimization_steps: float | None = None
    batch_steps: float | None = None
    batch_mates_change: float | None = None
    q_risk: Mapping[str, Mapping[str, float | None] | None] = field(default_factory=dict)
    quantile_crossings: int | None = None
    bytes: Mapping[str, int | None] = field(default_factory=dict)
    integer_ops: Mapping[str, int] = field(default_factory=dict)
    float_products: Mapping[str, int] = field(default_factory=dict)
    float_layers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    saturating_products: int | None = None
    layers: tuple[LayerReport, ...] = ()
    missing_layers: tuple[str, ...] = ()
    quantized_constants: tuple[str, ...] = ()
    runtimes: tuple[OtherRuntime, ...] = ()
    latency_ms: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def layer_max_steps(self) -> float | None:
        """Largest difference of a layer that means to be exact, optimized or not, in its steps; None without any."""
        steps = [steps for layer in self.layers if layer.exact for steps in layer.file_steps.values()]
        return max(math.inf if step is None else step for step in steps) if steps else None

    @property
    def layer_off(self) -> float | None:
        """Share of the values of those layers that differ at all, in the worse of both; None without any."""
        layers = [layer for layer in self.layers if layer.exact]
        values = sum(layer.values for layer in layers)
        modes = layers[0].file_off if layers else ()
        off = (sum(layer.values * layer.file_off[mode] for layer in layers) / values for mode in modes)
        return max(off, default=None)

    @property
    def exact(self) -> bool:
        """Whether the file rounds as the QAT model does, so that no row depends on the others of its batch."""
        return self.lstm != "dynamic"

    @property
    def least_sqnr_db(self) -> float:
        """The ratio that the file must reach."""
        return self.thresholds.sqnr_db if self.exact else self.thresholds.dynamic_sqnr_db

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the file."""
        return not self.reasons

    def require_passed(self) -> None:
        """Raise CheckFailed with every reason unless the check passed."""
        if self.reasons:
            raise CheckFailed(f"{self.model} failed the check: " + "; ".join(self.reasons))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values only; ``passed`` comes first."""
        value = {"passed": self.passed} | asdict(self) | {"model": str(self.model), "reasons": [*self.reasons]}
        steps = self.layer_max_steps
        finite = steps if steps is None or math.isfinite(steps) else None
        return value | {"layer_max_steps": finite, "layer_off": self.layer_off}

    def tables(self) -> list[RenderableType]:
        """The verdict, the accuracy, the q-risk, and size and speed."""
        parts = [self._accuracy(), self._runtimes(), self._risk(), self._size_and_speed(), self._products()]
        parts.append(float_table(self.float_layers))
        notes = [] if self.exact else [Text(_DYNAMIC, style="yellow")]
        return [*(part for part in parts if part.row_count), *notes, self._verdict()]

    def _verdict(self) -> Text:
        where = f"{self.model} ({self.rows} windows, {self.seconds:.0f} s, {self.threads} thread)"
        if self.passed:
            return Text(f"PASSED  {where}", style="bold green")
        return Text(f"FAILED  {where}\n" + "\n".join(f"  - {reason}" for reason in self.reasons), style="bold red")

    def _accuracy(self) -> Table:
        reference = "QAT model" if self.kind == "int8" else "FP32 model"
        table = Table("onnxruntime against the " + reference, "measured", "required")
        if not self.rows:
            return table
        ratio, steps = f">= {self.least_sqnr_db:g} dB", f"<= {self.thresholds.steps:g} steps"
        for name, value in self.sqnr_db.items():
            table.add_row(f"SQNR {name}", _number(value, "dB"), ratio)
        for batch, value in self.sqnr_by_batch.items():
            table.add_row(f"SQNR at batch {batch}", _number(value, "dB"), ratio)
        self._layers(table)
        if self.max_error_steps is None:  # the head is float
            return self._crossings(table)
        table.caption = "One step: every input of the quantile head moved by one of its 8-bit codes."
        table.add_row("largest error", _number(self.max_error_steps, "steps"), "")
        table.add_row("changed by optimizations", _number(self.optimization_steps, "steps"), steps)
        table.add_row("changed by the batch size", _number(self.batch_steps, "steps"), steps if self.exact else "")
        return self._crossings(table)

    def _crossings(self, table: Table) -> Table:
        mates = _number(self.batch_mates_change, "" if self.exact else "in units of the target")
        table.add_row("changed by batch mates", mates, "0" if self.exact else "")
        table.add_row("forecasts with crossing quantiles", str(self.quantile_crossings), "")
        return table

    def layer_table(self) -> Table:
        """Every quantized layer, worst first."""
        table = Table(Column("layer, worst first", overflow="fold"), "rounding", "file", "error", "differ")
        table.title = "Each quantized layer with the same input on both sides"
        table.caption = (
            "rounding: SQNR of the QAT layer against itself in floating point. file: SQNR of the file's layer against "
            "the QAT layer; error: their largest difference, in steps of that layer; differ: share of the values."
        )
        for layer in self.layers:
            ratio = min(_or_lowest(ratio) for ratio in layer.file_db.values())
            steps = max(math.inf if step is None else step for step in layer.file_steps.values())
            off = max(layer.file_off.values())
            table.add_row(layer.name, _number(layer.qat_db, "dB", 1), f"{ratio:.1f} dB", f"{steps:.2f}", f"{off:.2%}")
        return table

    def _layers(self, table: Table) -> None:
        if not self.layers:
            return
        limit, worst = self.thresholds, min(self.layers, key=lambda layer: _or_lowest(layer.qat_db))
        table.add_row(f"coarsest layer, {worst.name}", _number(worst.qat_db, "dB"), "")
        table.add_row(
            "layer by layer, largest", _number(self.layer_max_steps, "steps"), f"<= {limit.layer_steps:g} steps"
        )
        off = "-" if self.layer_off is None else f"{self.layer_off:.4%}"
        table.add_row("layer by layer, values that differ", off, f"< {limit.layer_off:.2%}")

    def _runtimes(self) -> Table:
        table = Table("other runtimes", "SQNR", "")
        for runtime in self.runtimes:
            ratio = "skipped" if runtime.skipped else _number(runtime.sqnr_db, "dB")
            table.add_row(runtime.name, ratio, runtime.skipped or runtime.how)
        return table

    def _risk(self) -> Table:
        measured = {model: risks for model, risks in self.q_risk.items() if risks}
        table = Table("q-risk", *measured)
        first: Mapping[str, float | None] = next(iter(measured.values()), {})
        for quantile in first:
            table.add_row(f"P{float(quantile) * 100:g}", *(_number(r[quantile], "", 5) for r in measured.values()))
        return table

    def _size_and_speed(self) -> Table:
        table = Table("size and speed", "FP32", "INT8", "INT8 / FP32")
        files = self.bytes.get("fp32_file"), self.bytes.get("int8_file")
        if any(files):
            table.add_row("file, KB", *_pair(*(size and size / 1000 for size in files)))
        batches = next((latency for latency in self.latency_ms.values() if latency), {})
        for batch in batches:
            pair = ((self.latency_ms.get(kind) or {}).get(batch) for kind in ("fp32", "int8"))
            table.add_row(f"ms at batch {batch}", *_pair(*pair))
        return table

    def _products(self) -> Table:
        table = Table("products in onnxruntime's optimized graph", "computed on", "nodes")
        for kind, counts in (("integers", self.integer_ops), ("floats", self.float_products)):
            for operator, count in counts.items():
                table.add_row(operator, kind, str(count))
        if self.saturating_products is not None:
            table.add_row("products that could saturate without VNNI", "", str(self.saturating_products))
        if self.saturating_products:
            table.caption = "On x86 this file needs a CPU with VNNI: without it, sums of two products saturate."
        return table


@dataclass(frozen=True)
class Detailed:
    """A report that also shows its layers one by one."""

    report: CheckReport

    def to_json(self) -> dict[str, Any]:
        """The same as of the report, which holds its layers in any case."""
        return self.report.to_json()

    def tables(self) -> list[RenderableType]:
        """The layers, then the report's own tables."""
        return [self.report.layer_table(), *self.report.tables()]


def _or_lowest(ratio: float | None) -> float:
    return -math.inf if ratio is None else ratio


def _number(value: float | None, unit: str, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f} {unit}".strip()


def _pair(fp32: float | None, int8: float | None) -> tuple[str, str, str]:
    share = f"{int8 / fp32:.2f}" if fp32 and int8 else ""
    digits = 1 if max(fp32 or 0, int8 or 0) >= 100 else 2
    return _number(fp32, "", digits), _number(int8, "", digits), share
