"""What a report says of what was found, and what of it fails a check."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qat_tft.errors import CheckFailed
from qat_tft.export.verify.check_report import CheckReport, Detailed
from qat_tft.export.verify.evidence import Evidence, FileFacts
from qat_tft.export.verify.layers import LayerReport
from qat_tft.export.verify.metrics import METRICS, Limit
from qat_tft.export.verify.operators import Operators
from qat_tft.export.verify.runtimes.other import OtherRuntime
from qat_tft.export.verify.tensors.comparison import TensorReport


def layer(name: str, steps: float | None = 0.0, off: float = 0.0, **changes: object) -> LayerReport:
    sound = LayerReport(
        name=name,
        operator="MatMul",
        values=1000,
        qat_db=40.0,
        file_db={"optimized": 140.0, "unoptimized": 200.0},
        file_steps={"optimized": steps, "unoptimized": 0.0},
        file_off={"optimized": off, "unoptimized": 0.0},
        file_off_beyond={"optimized": off, "unoptimized": 0.0},
    )
    return replace(sound, **changes)


FOUND = Evidence(
    tensors=TensorReport(200, fingerprint="ab" * 32),
    sqnr_db={"optimized": 70.0, "unoptimized": 71.0},
    sqnr_by_batch={"1": 70.0, "3": 70.0, "64": 70.0},
    max_error_steps=3.0,
    optimization_steps=1.0,
    batch_steps=1.0,
    batch_mates_change=0.0,
    crossings=4,
    q_risk={"fp32": {"0.5": 0.1}, "qat": {"0.5": 0.1}, "int8": {"0.5": 0.1}},
    bytes={
        "fp32_file": 40_000_000,
        "int8_file": 11_000_000,
        "int8_weights": 10_000_000,
        "float_weights": 500_000,
        "unchanged": 0,
    },
    operators=Operators({"MatMulIntegerToFloat": 40}, {"LSTM": 2}),
    integer_share=0.951,
    saturating_products=0,
    layers=(layer("attention.query", qat_db=31.5), layer("head")),
    runtimes=(
        OtherRuntime("reference", 150.0, "onnx 1", by_definition=True),
        OtherRuntime("OpenVINO", skipped="not installed"),
    ),
)
SOUND = CheckReport(
    model=Path("runs/a/model.int8.onnx"),
    facts=FileFacts("int8", "x86", pairs_fit=True),
    found=FOUND,
    rows=128,
    float_layers={"elementwise": ("norm", "second.norm"), "no weight": ("attention scores",)},
    latency_ms={"fp32": {"1": 4.0, "32": 40.0}, "int8": {"1": 2.0, "32": 25.0}},
)


def with_found(**changes: object) -> CheckReport:
    return replace(SOUND, found=replace(FOUND, **changes))


def shown(tables: Sequence[object], width: int = 100) -> str:
    console = Console(width=width, record=True, file=StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_a_sound_report_has_no_breach_and_reads_well() -> None:
    assert SOUND.reasons == ()
    assert SOUND.passed
    SOUND.require_passed()
    text = shown(SOUND.tables())
    for part in (
        "QAT model",
        "70.00 dB",
        ">= 55 dB",
        "coarsest layer, attention.query",
        "31.50 dB",
        "P50",
        "0.28",
        "MatMulIntegerToFloat",
        "95%",
        "norm and 1 more",
        "no weight",
        "not installed",
        "PASSED",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"sqnr_db": {"optimized": 21.6, "unoptimized": 81.0}},
            "SQNR optimized is 21.60 dB, below 55 dB",
            id="saturated",
        ),
        pytest.param({"sqnr_by_batch": {"1": 54.0}}, "SQNR at batch 1 is 54.00 dB", id="one batch size"),
        pytest.param({"sqnr_db": {"unoptimized": None}}, "forecasts unoptimized are not finite", id="NaN"),
        pytest.param({"optimization_steps": 2.5}, "changes by 2.50 steps with optimizations", id="optimizations"),
        pytest.param({"batch_steps": 2.5}, "changes by 2.50 steps with the batch size", id="batch size"),
        pytest.param({"batch_mates_change": 0.01}, "changes by 0.01 with its batch mates", id="batch mates"),
        pytest.param({"operators": Operators()}, "no product of the file on integers", id="all float"),
        pytest.param({"saturating_products": 2}, "2 products could saturate on a CPU without VNNI", id="saturating"),
        pytest.param({"bytes": FOUND.bytes | {"int8_file": 15_000_000}}, "have 37% of the bytes", id="too large"),
        pytest.param({"bytes": FOUND.bytes | {"fp32_file": None}}, "no model.fp32.onnx beside", id="nothing beside"),
        pytest.param(
            {"q_risk": FOUND.q_risk | {"int8": {"0.5": 0.102}}}, "2.00% above that of the QAT model", id="q-risk"
        ),
        pytest.param(
            {"q_risk": {"fp32": {"0.5": 0.09}, "qat": {"0.5": 0.1}, "int8": {"0.5": 0.1}}},
            "11.11% above that of the FP32 model",
            id="bad QAT",
        ),
        pytest.param({"layers": (layer("gate"), layer("head", 1.5))}, "a layer is off by 1.50 steps", id="steps"),
        pytest.param({"layers": (layer("gate", None),)}, "a layer is not finite", id="layer not finite"),
        pytest.param(
            {"layers": (layer("gate"), layer("head", off=0.002))},
            "0.2000% of the values of the layer head differ",
            id="one layer among many",
        ),
        pytest.param(
            {"runtimes": (OtherRuntime("OpenVINO", 30.0),)}, "SQNR in OpenVINO is 30.00 dB, below 40 dB", id="runtime"
        ),
        pytest.param(
            {"runtimes": (OtherRuntime("reference", 50.0, by_definition=True),)},
            "SQNR in reference is 50.00 dB, below 55 dB",
            id="the specification",
        ),
        pytest.param({"runtimes": (OtherRuntime("OpenVINO"),)}, "SQNR in OpenVINO is not finite", id="runtime NaN"),
    ],
)
def test_every_breach_is_named_with_its_number(change: dict[str, object], reason: str) -> None:
    report = with_found(**change)
    (found,) = report.reasons
    assert reason in found
    with pytest.raises(CheckFailed, match=r"model\.int8\.onnx failed the check: "):
        report.require_passed()


def test_every_metric_with_a_limit_can_fail() -> None:
    """By the limit's own sign: a value beyond it is a breach, one at a comfortable distance is none."""
    for metric in METRICS:
        limit = metric.limit(SOUND.facts)
        if limit is not None:
            beyond, within = (
                (limit.bound - 1, limit.bound + 1) if limit.sign == ">=" else (limit.bound + 1, limit.bound - 1)
            )
            assert len(list(metric.breaches({"x": beyond}, SOUND.facts))) == 1, metric.name
            assert list(metric.breaches({"x": within}, SOUND.facts)) == [], metric.name


def test_a_limit_holds_at_its_bound_unless_it_says_less() -> None:
    assert Limit(">=", 2).holds(2)
    assert Limit("<=", 2).holds(2)
    assert not Limit("<", 2).holds(2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"missing_layers": ("head",)}, "no product of the layer head with integer weights", id="missing layer"
        ),
        pytest.param({"quantized_constants": ("w",)}, "the constant w is stored as float", id="constant"),
        pytest.param({"contract": ("the inputs are called x",)}, "the inputs are called x", id="contract"),
    ],
)
def test_faults_of_the_file_as_a_whole_are_reasons_too(change: dict[str, object], reason: str) -> None:
    (found,) = replace(SOUND, **change).reasons
    assert reason in found


def test_tensors_that_differ_are_counted_and_the_first_of_them_named() -> None:
    tensors = TensorReport(200, tuple(f"tensor {place} differs" for place in range(7)), ("head.bias",))
    reasons = with_found(tensors=tensors).reasons
    assert reasons[0] == "tensors that are not those of the run: 8"
    assert reasons[1:6] == tensors.differing[:5]
    assert reasons[6] == "the file does not hold head.bias of the run"
    assert len(reasons) == 7


def test_a_file_for_a_cpu_with_vnni_may_saturate_without_it_and_says_so() -> None:
    report = replace(with_found(saturating_products=2), facts=FileFacts("int8", "x86-vnni"))
    assert report.reasons == ()
    assert "needs a CPU with VNNI" in shown(report.tables())


def test_what_a_machine_cannot_show_is_said() -> None:
    assert "Note: this CPU cannot." in shown(replace(SOUND, caveat="this CPU cannot").tables())


def test_rows_may_influence_each_other_in_dynamic_lstms_alone_and_the_report_says_so() -> None:
    change = {"batch_mates_change": 0.5, "batch_steps": 9.0, "sqnr_db": {"optimized": 30.0, "unoptimized": 30.0}}
    assert len(with_found(**change).reasons) == 4
    facts = FileFacts("int8", "x86", exact=False, pairs_fit=True)
    dynamic = replace(with_found(**change), facts=facts, lstm="dynamic")
    assert dynamic.reasons == ()
    low = replace(dynamic, found=replace(dynamic.found, sqnr_db={"optimized": 20.0}))
    assert low.reasons == ("SQNR optimized is 20.00 dB, below 25 dB",)
    assert "depends on the other rows of its batch" in shown(dynamic.tables(), 200)


def test_an_lstm_that_rounds_by_itself_is_shown_and_not_held_to_the_qat_model() -> None:
    report = with_found(layers=(layer("cell", 50.0, 1.0, operator="DynamicQuantizeLSTM"), layer("head", 0.25)))
    assert report.reasons == ()
    assert report.values["layer_max_steps"] == 0.25


def test_integer_storage_promises_no_integer_products_and_says_so() -> None:
    change = {
        "operators": Operators({}, {"MatMul with a float weight": 40}),
        "bytes": FOUND.bytes | {"fp32_file": 300_000, "int8_file": 303_000},
        "integer_share": 0.0,
    }
    assert with_found(**change).reasons == ("onnxruntime computes no product of the file on integers",)
    stored = replace(with_found(**change), facts=FileFacts("int8", "x86", pairs_fit=True, products="float"))
    assert stored.reasons == ()
    text = " ".join(shown(stored.tables(), 200).split())
    assert "integer storage: products in floating point, weights stored as integers" in text
    assert "the INT8 file has 101% of the FP32 file's bytes" in text
    assert stored.to_json()["products"] == "float"
    assert "integer storage" not in shown(SOUND.tables(), 200)


def test_a_small_int8_file_is_allowed_its_graph_and_a_note_tells_where_it_is_no_smaller() -> None:
    small = FOUND.bytes | {"fp32_file": 300_000, "int8_file": 250_000}
    assert with_found(bytes=small).reasons == ()
    large = small | {"fp32_file": 60_300_000, "int8_file": 60_250_000, "unchanged": 60_000_000}
    assert with_found(bytes=large).reasons == ()
    as_large = with_found(bytes=small | {"int8_file": 300_000})
    assert as_large.reasons == ()
    told = "the INT8 file has 100% of the FP32 file's bytes"
    assert [told in " ".join(shown(one.tables(), 200).split()) for one in (SOUND, as_large)] == [False, True]


def test_json_holds_every_metric_and_no_infinity() -> None:
    report = with_found(layers=(layer("gate", None, qat_db=None),))
    assert report.values["layer_max_steps"] == math.inf
    value = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert {metric.name for metric in METRICS} <= value.keys()
    assert value["layer_max_steps"] is None
    assert value["layers"][0]["name"] == "gate"
    assert value["runtimes"][1]["skipped"] == "not installed"
    assert value["integer_share"] == 0.951
    assert Detailed(report).to_json() == report.to_json()


def test_layers_are_listed_on_demand() -> None:
    short, long = shown(SOUND.tables(), 120), shown(Detailed(SOUND).tables(), 120)
    assert "140.0 dB" not in short
    assert long.index("attention.query") < long.index("head")
    assert "140.0 dB" in long
