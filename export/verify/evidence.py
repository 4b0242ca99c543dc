"""What a check has found before it is judged: plain numbers about one file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from qat_tft.export.verify.layers import LayerReport
from qat_tft.export.verify.operators import Operators
from qat_tft.export.verify.runtimes.other import OtherRuntime
from qat_tft.export.verify.tensors.comparison import TensorReport
from qat_tft.export.verify.twin import TwinReport
from qat_tft.quantization.products import Products

GRAPH_BYTES = 256 * 1024
"""What the graph of a file may take: it does not shrink with the weights."""

Risks = Mapping[str, float | None]


@dataclass(frozen=True)
class FileFacts:
    """What limits depend on.

    Attributes:
        kind: ``fp32`` or ``int8``; target: its target profile, empty for ``fp32``.
        exact: whether the file rounds where the QAT model does, so that no row depends on the others of its batch.
        pairs_fit: whether the target promises that no two products leave 16 bits.
        products: ``integer``, or ``float`` where stored weights are multiplied in floating point.
        bits: fewest bits of a weight; 32 of a file in floating point.
        packed: whether they are stored in so few.
        needs_onnxruntime: the first onnxruntime that runs the file.
    """

    kind: str
    target: str = ""
    exact: bool = True
    pairs_fit: bool = False
    products: Products = "integer"
    bits: int = 8
    packed: bool = False
    needs_onnxruntime: str = ""


@dataclass(frozen=True)
class Evidence:
    """What was found of a file. A number that could not be measured is None.

    Attributes:
        tensors: the file's tensors against the run's.
        sqnr_db: of the network's output against the reference model's, by how onnxruntime ran the file.
        sqnr_by_batch: the same by batch size.
        max_error_steps: largest error against the reference model, in output steps.
        optimization_steps: largest change made by onnxruntime's optimizations, in output steps.
        batch_steps: largest change made by the size of the batch, in output steps.
        batch_mates_change: largest change of a row's raw forecast when its batch mates are replaced.
        explanations_db: SQNR of the weights that explain forecasts against the reference model's, by output; empty
            where the file has none.
        crossings: forecasts whose quantiles are out of order, of all rows x horizon.
        bytes: ``fp32_file``, ``int8_file``, ``int8_weights``, ``float_weights``, and ``unchanged``, which both files
            have alike: embeddings, statistics of each series, metadata.
        q_risk: ``fp32``, ``qat`` and ``int8``, each by quantile, on the compared windows.
        operators: products in onnxruntime's optimized graph.
        integer_share: share of the multiply-accumulates of a forecast that the file does in integers.
        saturating_products: integer products in which a CPU without VNNI could saturate.
        layers: every layer with integer weights, with the same input as in the QAT model, worst first.
        runtimes: what other runtimes make of the file.
        twin: how it differs from the same file with all codes in 8 bits; None where it stores them so itself.
    """

    tensors: TensorReport = field(default_factory=TensorReport)
    sqnr_db: Mapping[str, float | None] = field(default_factory=dict)
    sqnr_by_batch: Mapping[str, float | None] = field(default_factory=dict)
    max_error_steps: float | None = None
    optimization_steps: float | None = None
    batch_steps: float | None = None
    batch_mates_change: float | None = None
    explanations_db: Mapping[str, float | None] = field(default_factory=dict)
    crossings: int | None = None
    bytes: Mapping[str, int | None] = field(default_factory=dict)
    q_risk: Mapping[str, Risks | None] = field(default_factory=dict)
    operators: Operators = field(default_factory=Operators)
    integer_share: float | None = None
    saturating_products: int | None = None
    layers: tuple[LayerReport, ...] = ()
    runtimes: tuple[OtherRuntime, ...] = ()
    twin: TwinReport | None = None

    @property
    def exact_layers(self) -> list[LayerReport]:
        """The layers that mean to be exact; onnxruntime's own integer LSTM does not."""
        return [layer for layer in self.layers if layer.exact]

    @property
    def file_ratio(self) -> float | None:
        """Bytes of the INT8 file over those of the FP32 file; None where one of them is missing."""
        fp32, int8 = self.bytes.get("fp32_file"), self.bytes.get("int8_file")
        return int8 / fp32 if fp32 and int8 else None

    @property
    def weights_ratio(self) -> float | None:
        """The same for what quantizing shrinks: without what both have alike, and the bytes that a graph may take."""
        fp32, int8 = self.bytes.get("fp32_file"), self.bytes.get("int8_file")
        if not fp32 or not int8:
            return None
        same = self.bytes.get("unchanged") or 0
        return max(0, int8 - same - GRAPH_BYTES) / max(1, fp32 - same)

    def risk_over(self, model: str) -> float | None:
        """Share by which the INT8 file's mean q-risk lies above that of a model; None where one is unknown."""
        risks = (_mean(self.q_risk.get("int8")), _mean(self.q_risk.get(model)))
        return None if None in risks or not risks[1] else risks[0] / risks[1] - 1  # type: ignore[operator]


def _mean(risks: Risks | None) -> float | None:
    found = [risk for risk in (risks or {}).values() if risk is not None]
    mean = sum(found) / len(found) if found else math.nan
    return mean if math.isfinite(mean) else None
