"""Layer by layer: a sound file is exact in every layer, and a fault shows in its layer and in no other."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from torch.nn import functional as F

from qat_tft.config.model import ModelConfig
from qat_tft.data.scaling import Affine, Scaling
from qat_tft.export.build.contract import RawForecaster
from qat_tft.export.build.graph import build_graph
from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.metadata import ModelMetadata
from qat_tft.export.verify.intermediate_outputs import find_values, names_of, with_outputs
from qat_tft.export.verify.layers import Inputs, LayerReport, compared_layers, layer_reports, most_windows
from qat_tft.quantization.calibrate import calibrate
from qat_tft.quantization.integer import integer_model
from qat_tft.quantization.prepare import QATTemporalFusionTransformer
from qat_tft.runs.build import build_qat_model, model_of_sizes
from qat_tft.schema import Columns, GroupSize, Schema

EXACT = 0.001  # steps: float32 sums of the same few products in another order
SHAPE = ModelConfig(history=6, horizon=3, hidden=16, heads=2, selection="exact", normalize="series", linear_path="off")
STORED = ("real_first", "real_embedding", "weighing.real")
SCHEMA = Schema(time="time", target="load", known=Columns(real=("hour",), category=("shift",)))
SIZES = GroupSize(0, ()), GroupSize(2, (3,)), GroupSize(1, (3,))


def columns(rows: int, steps: int, real: int, generator: torch.Generator) -> Tensor:
    codes = torch.randint(0, 3, (rows, steps, 1), generator=generator).float()
    return torch.cat([torch.randn(rows, steps, real, generator=generator), codes], -1)


@pytest.fixture(scope="module")
def windows() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.zeros(16, 0), columns(16, 6, 2, generator), columns(16, 3, 1, generator)


@pytest.fixture(scope="module")
def calibrated(windows: tuple[Tensor, Tensor, Tensor]) -> QATTemporalFusionTransformer:
    """A calibrated model with random weights; it holds every kind of layer and two chunks per selection."""
    torch.manual_seed(0)
    model = build_qat_model(model_of_sizes(SHAPE, SIZES), "x86").eval()
    calibrate(model, [windows])
    model.set_phase("frozen")
    return model


@pytest.fixture(scope="module")
def exported(calibrated: QATTemporalFusionTransformer) -> onnx.ModelProto:
    metadata = ModelMetadata(
        kind="int8",
        schema=SCHEMA,
        vocabularies={"shift": ("day", "night")},
        series=None,
        quantiles=SHAPE.quantiles,
        history=SHAPE.history,
        horizon=SHAPE.horizon,
        target="x86",
        quantized_layers=tuple(calibrated.quantized_layers()),
    )
    scaling = Scaling(*(Affine(torch.zeros(1, size.total), torch.ones(1, size.total)) for size in SIZES))
    return build_graph(RawForecaster(integer_model(calibrated), scaling, metadata).eval(), metadata)


@pytest.fixture
def graph(exported: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that a test may damage."""
    copy = onnx.ModelProto()
    copy.CopyFrom(exported)
    return copy


@pytest.fixture
def qat(calibrated: QATTemporalFusionTransformer) -> QATTemporalFusionTransformer:
    return calibrated


@pytest.fixture(scope="module")
def inputs(windows: tuple[Tensor, Tensor, Tensor]) -> Inputs:
    made = {}
    for name, values in zip(("historical", "future"), windows[1:], strict=True):
        made[f"{name}_real"] = np.ascontiguousarray(values[:5, :, :-1].numpy())
        made[f"{name}_category"] = values[:5, :, -1:].long().numpy()
    return made


@pytest.fixture
def report(qat: QATTemporalFusionTransformer, inputs: Inputs) -> Callable[[onnx.ModelProto], dict[str, LayerReport]]:
    return lambda graph: {layer.name: layer for layer in layer_reports(graph, qat, inputs, threads=1)}


def change(graph: onnx.ModelProto, ending: str, edit: Callable[[np.ndarray], np.ndarray]) -> None:
    (tensor,) = (tensor for tensor in graph.graph.initializer if tensor.name.endswith(ending))
    tensor.CopyFrom(numpy_helper.from_array(edit(numpy_helper.to_array(tensor).copy()), tensor.name))


def test_every_quantized_layer_is_found_and_exact(graph, qat, report):
    layers = report(graph)
    assert set(layers) == set(compared_layers(qat))
    stored = {f"{group}_selection.{layer}" for group in ("historical", "future") for layer in STORED}
    assert set(layers) == set(qat.quantized_layers()) | stored
    for layer in layers.values():
        assert layer.values > 0
        assert max(layer.file_steps.values()) < EXACT
        assert layer.file_off == {"optimized": 0.0, "unoptimized": 0.0}
        assert layer.file_off_beyond == layer.file_off
        single = layer.name == "future_selection.weighing.real"  # one weight a row, which its scale holds exactly
        assert 20 < layer.qat_db < (200 if single else 80), "rounding costs something, and not everything"


def test_the_worst_layer_comes_first(graph, qat, inputs):
    ratios = [layer.lowest_db for layer in layer_reports(graph, qat, inputs, threads=1)]
    assert ratios == sorted(ratios)


@pytest.mark.parametrize(
    ("layer", "weight"),
    [
        pytest.param("temporal_attention.attention.query", "attention.query.weight", id="linear"),
        pytest.param("temporal_attention.enrichment.gate", "enrichment.gate.weight.half1", id="half of a gate"),
        pytest.param(
            "historical_selection.gate", "historical_selection.gate.chunk1_0.half0", id="chunk of a selection"
        ),
        pytest.param("lstm_decoder.cell", "lstm_decoder.cell.weight_hh.gates.codes", id="LSTM"),
        pytest.param("historical_selection.weighing.real", "historical_selection.weighing.real.weight", id="stored"),
        pytest.param("future_selection.real_first", "future_selection.real_first.chunk0_0", id="stored, per variable"),
    ],
)
def test_a_wrong_weight_shows_in_its_layer_and_in_no_other(layer, weight, graph, report):
    change(graph, weight, lambda codes: np.clip(codes.astype(int) + 8, -64, 63).astype(np.int8))
    layers = report(graph)
    assert [name for name, found in layers.items() if max(found.file_steps.values()) > EXACT] == [layer]
    assert layers[layer].file_off["unoptimized"] > 0.1
    assert next(iter(layers)) == layer, "and it comes first"


def test_one_code_of_a_stored_weight_shows_in_every_row_of_its_layer(graph, report):
    def move(codes: np.ndarray) -> np.ndarray:
        codes.reshape(-1)[3] += 1
        return codes

    change(graph, "historical_selection.real_embedding.chunk0_0", move)
    found = report(graph)["historical_selection.real_embedding"]
    assert found.file_off_beyond["unoptimized"] > 0.01
    assert 0 < found.file_steps["unoptimized"] <= 1 + EXACT


def test_one_row_that_differs_is_told_and_set_aside(graph, qat, inputs, monkeypatch):
    """As where a single input lies on a boundary and is rounded the other way."""
    from qat_tft.export.verify import layers

    found = layers._output

    def with_one_row_off(places, values):
        output = found(places, values).clone()
        output[(0,) * (output.dim() - 2) + (1,)] += 1
        return output

    monkeypatch.setattr(layers, "_output", with_one_row_off)
    for report in layer_reports(graph, qat, inputs, threads=1):
        assert report.file_off["optimized"] > 0
        assert report.file_off_beyond == {"optimized": 0.0, "unoptimized": 0.0}


@torch.no_grad()
def test_a_step_is_what_one_code_of_one_input_changes_at_most(graph, qat, report):
    """A bias that is off by half of that is off by half a step, in one output of three."""
    head = qat.model.head
    base, most = torch.zeros(1, 16), 0.0
    for place in range(16):
        moved = base.clone()
        moved[0, place] = head.input.scale
        most = max(most, float((head(moved) - head(base))[0, 1].abs()))
    change(graph, "head.bias", lambda bias: bias + np.array([0, most / 2, 0], np.float32))
    found = report(graph)["head"]
    assert found.file_steps["unoptimized"] == pytest.approx(0.5, rel=0.01)
    assert found.file_off["unoptimized"] == pytest.approx(1 / 3)


@torch.no_grad()
def test_the_cost_of_rounding_is_that_of_the_layer_written_out(graph, qat, inputs, report):
    head = qat.model.head
    places = find_values(GraphReader(graph), {"head": 1})
    extended = with_outputs(graph, names_of(places))
    session = ReferenceEvaluator(extended)
    values = dict(zip([output.name for output in extended.graph.output], session.run(None, dict(inputs)), strict=True))
    x = torch.from_numpy(values[places["head"][0].input])
    code = torch.clamp((x / head.input.scale).round() + head.input.zero_point, 0, 255)
    scale = head.weight.abs().amax(1, keepdim=True) / 63
    rounded = F.linear(
        (code - head.input.zero_point) * head.input.scale, (head.weight / scale).round() * scale, head.bias
    )
    exact = F.linear(x, head.weight, head.bias)
    expected = 10 * torch.log10(exact.square().sum() / (rounded - exact).square().sum())
    assert report(graph)["head"].qat_db == pytest.approx(expected.item(), abs=0.05)
    assert np.allclose(values[places["head"][0].output], rounded.numpy(), atol=1e-5)


def test_the_model_is_left_as_it_was(graph, qat, report):
    report(graph)
    assert {quantizer.phase for quantizer in qat.quantizers().values()} == {"frozen"}


def test_a_layer_that_the_graph_does_not_hold_has_no_report(graph, qat, report):
    for tensor in graph.graph.initializer:
        if tensor.name.endswith("head.weight"):
            renamed = tensor.name + "s"
            for node in graph.graph.node:
                node.input[:] = [renamed if name == tensor.name else name for name in node.input]
            tensor.name = renamed.replace("head", "tail")
            for node in graph.graph.node:
                node.input[:] = [tensor.name if name == renamed else name for name in node.input]
    assert set(compared_layers(qat)) - set(report(graph)) == {"head"}


def test_a_value_that_is_not_finite_is_off_and_has_no_ratio(graph, report):
    change(graph, "head.bias", lambda bias: bias * np.float32("nan"))
    found = report(graph)["head"]
    assert (found.file_db["unoptimized"], found.file_steps["unoptimized"]) == (None, None)
    assert found.file_off["unoptimized"] == 1.0
    assert found.lowest_db == -np.inf


def test_a_wide_model_is_compared_on_fewer_windows(qat):
    assert most_windows(qat) == 16
    wide = build_qat_model(model_of_sizes(SHAPE.model_copy(update={"history": 2**16}), SIZES), "x86")
    assert most_windows(wide) == 2**22 // (2**16 * 3 * 16)
