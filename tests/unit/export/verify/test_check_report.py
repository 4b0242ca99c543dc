"""What a report says of layers and other runtimes, and what of it fails a check."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qat_tft.export.verify.check import breaches
from qat_tft.export.verify.check_report import CheckReport, Detailed
from qat_tft.export.verify.layers import LayerReport
from qat_tft.export.verify.runtimes import OtherRuntime


def layer(name: str, steps: float | None = 0.0, off: float = 0.0, **changes: object) -> LayerReport:
    sound = LayerReport(
        name=name,
        operator="MatMul",
        values=1000,
        qat_db=40.0,
        file_db={"optimized": 140.0, "unoptimized": 200.0},
        file_steps={"optimized": steps, "unoptimized": 0.0},
        file_off={"optimized": off, "unoptimized": 0.0},
    )
    return replace(sound, **changes)


SOUND = CheckReport(
    model=Path("model.int8.onnx"),
    kind="int8",
    target="x86",
    reasons=(),
    rows=64,
    batch_mates_change=0.0,
    q_risk={"fp32": {"0.5": 0.1}, "qat": {"0.5": 0.1}, "int8": {"0.5": 0.1}},
    bytes={"fp32_file": 40_000_000, "int8_file": 11_000_000, "unchanged": 0},
    integer_ops={"MatMulIntegerToFloat": 40},
    layers=(layer("gate"), layer("head")),
    runtimes=(OtherRuntime("reference", 150.0, "onnx 1"), OtherRuntime("OpenVINO", skipped="not installed")),
)


def test_exact_layers_and_agreeing_runtimes_are_no_breach():
    assert list(breaches(SOUND)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"layers": (layer("gate"), layer("head", 1.5))}, "the layer head is off by 1.5 of its steps", id="steps"
        ),
        pytest.param({"layers": (layer("gate", None),)}, "the layer gate is not finite", id="not finite"),
        pytest.param(
            {"layers": (layer("gate"), layer("head", off=0.002))}, "0.100% of the layers' values differ", id="share"
        ),
        pytest.param({"missing_layers": ("head",)}, "no integer product of the layer head", id="missing"),
        pytest.param({"quantized_constants": ("w",)}, "the constant w is stored as float", id="constant"),
        pytest.param(
            {"runtimes": (OtherRuntime("OpenVINO", 30.0),)}, "SQNR in OpenVINO is 30.0 dB, below 40 dB", id="runtime"
        ),
        pytest.param(
            {"runtimes": (OtherRuntime("OpenVINO"),)}, "SQNR in OpenVINO is not finite, below 40 dB", id="runtime NaN"
        ),
    ],
)
def test_each_fault_is_one_reason_with_its_number(change: dict[str, object], reason: str):
    (found,) = breaches(replace(SOUND, **change))
    assert reason in found


def test_an_lstm_that_rounds_by_itself_is_shown_and_not_held_to_the_qat_model():
    dynamic = layer("cell", 50.0, 1.0, operator="DynamicQuantizeLSTM")
    report = replace(SOUND, layers=(dynamic, layer("head", 0.25)))
    assert list(breaches(report)) == []
    assert (report.layer_max_steps, report.layer_off) == (0.25, 0.0)


def test_the_largest_step_and_the_share_are_those_of_all_layers_together():
    report = replace(SOUND, layers=(layer("gate", 0.5, 0.01), layer("head", 0.25, 0.0, values=3000)))
    assert report.layer_max_steps == 0.5
    assert report.layer_off == pytest.approx(0.0025)
    assert replace(SOUND, layers=()).layer_max_steps is None


def test_json_holds_every_layer_and_no_infinity():
    report = replace(SOUND, layers=(layer("gate", None, qat_db=None),))
    assert report.layer_max_steps == math.inf
    value = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert value["layer_max_steps"] is None
    assert value["layer_off"] == report.layer_off
    assert value["layers"][0]["name"] == "gate"
    assert value["runtimes"][1]["skipped"] == "not installed"
    assert Detailed(report).to_json() == report.to_json()


def test_layers_are_listed_on_demand_and_summed_up_otherwise():
    coarse = layer("attention.query", qat_db=31.5)
    report = replace(SOUND, layers=(coarse, layer("head")))

    def shown(tables: list[object]) -> str:
        console = Console(width=120, record=True, file=StringIO())
        for table in tables:
            console.print(table)
        return console.export_text()

    short, long = shown(report.tables()), shown(Detailed(report).tables())
    assert "coarsest layer, attention.query" in short
    assert "31.50 dB" in short
    assert "not installed" in short
    assert "head" not in short
    assert long.index("attention.query") < long.index("head")
    assert "140.0 dB" in long
