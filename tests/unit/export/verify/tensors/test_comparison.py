"""Every number of a file is the run's: whatever one element of it becomes, the check sees it and says where."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from qat_tft.cli.app import main
from qat_tft.export.graph_reader import GraphReader
from qat_tft.export.metadata import ModelMetadata
from qat_tft.export.verify.check import check_model
from qat_tft.export.verify.tensors.against_run import tensors_against_run
from qat_tft.export.verify.tensors.comparison import TensorReport
from qat_tft.runs.folder import RunFolder

MANY, FEW = 80, 8

Damage = Callable[[np.ndarray], np.ndarray]


def compared(run: RunFolder, kind: str, model: onnx.ModelProto) -> TensorReport:
    return tensors_against_run(GraphReader(model), metadata_of(model), run)


def metadata_of(model: onnx.ModelProto) -> ModelMetadata:
    properties = {entry.key: entry.value for entry in model.metadata_props}
    return ModelMetadata.from_properties(properties, "the test")


def smallest_damage(value: np.ndarray) -> np.ndarray:
    """The same tensor with its middle element moved by the least that its type allows."""
    damaged = value.reshape(-1).copy()
    middle = len(damaged) // 2
    if value.dtype.kind == "f":
        finite = np.isfinite(damaged[middle])
        damaged[middle] = np.nextafter(damaged[middle], np.float32(np.inf)) if finite else 0.0
    else:
        damaged[middle] += 1 if damaged[middle] < np.iinfo(value.dtype).max else -1
    return damaged.reshape(value.shape)


def set_value(tensor: TensorProto, value: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def damaged_one_by_one(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Damage each tensor in turn, hand it out, and mend it."""
    for tensor in model.graph.initializer:
        sound = tensor.SerializeToString()
        set_value(tensor, smallest_damage(numpy_helper.to_array(tensor)))
        yield tensor
        tensor.ParseFromString(sound)


@pytest.mark.parametrize("target", ["x86", "portable", "tensorrt"])
def test_a_sound_file_holds_the_runs_numbers(run_for, target: str) -> None:
    run = run_for(target)
    report = compared(run, "int8", onnx.load(run.onnx_file("int8")))
    assert report.equal, report
    assert report.compared > MANY


def test_a_sound_fp32_file_holds_them_too(run_for) -> None:
    run = run_for("x86")
    report = compared(run, "fp32", onnx.load(run.onnx_file("fp32")))
    assert report.equal, report
    assert report.compared > MANY


@pytest.mark.parametrize(("target", "selection"), [("x86", "tabulated"), ("tensorrt", "exact")])
def test_the_smallest_damage_to_any_number_is_seen_and_named(run_for, target: str, selection: str) -> None:
    """Codes, scales, zero points, biases, norms, embeddings, statistics, limits of categories: one unit, or one ulp.

    Whole numbers that belong to no layer are shapes and axes; of these only the limits of categories are numbers of
    the run.
    """
    run = run_for(target, selection=selection)
    model = onnx.load(run.onnx_file("int8"))
    metadata = metadata_of(model)
    kinds: dict[str, int] = {}
    unseen = []
    for tensor in damaged_one_by_one(model):
        kind = TensorProto.DataType.Name(tensor.data_type)
        kinds[kind] = kinds.get(kind, 0) + 1
        if tensors_against_run(GraphReader(model), metadata, run).equal:
            unseen.append((tensor.name, kind))
    assert [(name, kind) for name, kind in unseen if kind != "INT64"] == []
    assert not any(name.startswith("model.") for name, _ in unseen)
    assert kinds["FLOAT"] > MANY
    assert kinds["INT8"] > FEW
    assert kinds["INT64"] - len(unseen) >= 2, "offsets of embeddings, limits of categories"


def test_scales_that_stand_in_a_division_and_the_ones_behind_them_are_seen_too(run_for) -> None:
    run = run_for("tensorrt", selection="exact")
    model = onnx.load(run.onnx_file("int8"))
    graph = GraphReader(model)
    roundings = [graph.rounding(product) for product in graph.products if product.layer.endswith("_selection.gate")]
    names = {name for rounding in roundings for name in (rounding.scale, rounding.zero_point, rounding.divisor)}
    assert len(names) >= FEW
    for tensor in damaged_one_by_one(model):
        if tensor.name in names:
            assert not compared(run, "int8", model).equal, tensor.name


def test_a_damaged_fp32_file_is_seen_beyond_the_rounding_of_merged_gates(run_for) -> None:
    run = run_for("x86")
    model = onnx.load(run.onnx_file("fp32"))
    unseen = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        sound = tensor.SerializeToString()
        value = numpy_helper.to_array(tensor).copy()
        finite = np.where(np.isfinite(value), value, 0)
        value.reshape(-1)[-1] += max(1e-5 * np.abs(finite).max(), 1e-6)
        set_value(tensor, value)
        if compared(run, "fp32", model).equal:
            unseen.append(tensor.name)
        tensor.ParseFromString(sound)
    assert unseen == []


def gain(value: np.ndarray) -> np.ndarray:
    return value * np.float32(1.005)


@pytest.mark.parametrize(
    ("ending", "damage", "said"),
    [
        pytest.param("attention_skip.norm.weight", gain, "attention_skip.norm", id="LayerNorm gains x 1.005"),
        pytest.param("head.bias", lambda value: value + np.float32(0.002), "head.bias", id="a bias + 0.002"),
        pytest.param("weighing.real.weight", smallest_damage, "weighing.real", id="a stored code + 1"),
        pytest.param("historical_selection.table.codes", smallest_damage, "table.codes", id="a table's code + 1"),
        pytest.param("category_embedding.table.weight", smallest_damage, "table", id="an embedding"),
        pytest.param("scaling.static_center", smallest_damage, "scaling.static_center", id="a statistic"),
    ],
)
def test_damage_that_hardly_moves_a_forecast_fails_the_check(
    run_for, damaged: Callable[[RunFolder], RunFolder], ending: str, damage: Damage, said: str
) -> None:
    run = damaged(run_for("x86"))
    model = onnx.load(run.onnx_file("int8"))
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name.endswith(ending))
    set_value(tensor, damage(numpy_helper.to_array(tensor)))
    onnx.save(model, run.onnx_file("int8"))
    report = check_model(run.onnx_file("int8"), seconds=0.0)
    assert not report.passed
    assert report.reasons[0] == "tensors that are not those of the run: 1"
    assert said in report.reasons[1]


def test_the_fingerprint_is_that_of_the_tensors_and_not_of_their_names(run_for) -> None:
    run = run_for("x86")
    model = onnx.load(run.onnx_file("int8"))
    sound = compared(run, "int8", model).fingerprint
    assert len(sound) == 64
    first = model.graph.initializer[0]
    for node in model.graph.node:
        node.input[:] = ["another" if name == first.name else name for name in node.input]
    first.name = "another"
    assert compared(run, "int8", model).fingerprint == sound
    set_value(first, smallest_damage(numpy_helper.to_array(first)))
    assert compared(run, "int8", model).fingerprint != sound


def test_a_scale_that_has_become_another_layers_is_seen(run_for) -> None:
    """It is a number of the run, at the wrong place."""
    run = run_for("x86")
    model = onnx.load(run.onnx_file("int8"))
    graph = GraphReader(model)
    layers = ("temporal_attention.attention.query", "temporal_attention.attention.output")
    scales = [graph.rounding(graph.of_layer(layer)[0]).scale for layer in layers]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    other = numpy_helper.to_array(constants[scales[0]])
    assert not np.array_equal(other, numpy_helper.to_array(constants[scales[1]]))
    set_value(constants[scales[1]], other)
    report = compared(run, "int8", model)
    assert any(layers[1] in sentence for sentence in report.differing)


def test_a_file_that_onnxruntime_cannot_run_is_one_message(run_for, damaged, tmp_path: Path, capsys) -> None:
    run = damaged(run_for("x86"))
    model = onnx.load(run.onnx_file("int8"))
    shape = next(
        tensor
        for node in model.graph.node
        if node.op_type == "Reshape"
        for tensor in model.graph.initializer
        if tensor.name == node.input[1]
    )
    set_value(shape, numpy_helper.to_array(shape) * 7 + 5)
    onnx.save(model, run.onnx_file("int8"))
    assert main(["check", str(run.onnx_file("int8"))]) == 2
    assert "onnxruntime cannot" in capsys.readouterr().err
