"""Damage to ONNX files: bytes, graphs, shapes, data outside of the folder, and metadata that lie."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from faults.broken import byte_damage as damaged
from faults.broken.case import (
    BACKTEST,
    CHECK,
    CHECK_FP32,
    INT8,
    PREDICT,
    REFUSED,
    Case,
    Cases,
    Command,
    Damage,
    edit,
    put,
)
from faults.broken.json_damage import one_value

Change = Callable[[ModelProto], object]
_KEY = "qat_tft"
_READERS = (PREDICT, CHECK, BACKTEST)


def cases(drawn: random.Random) -> Cases:
    """Return every broken ONNX file."""
    for number in range(25):
        name, change = damaged.any_of(drawn)
        yield _case(f"damage {number}: {name}", drawn.choice(_READERS), edit(INT8, change))
    for name, content in _whole_files().items():
        yield _case(name, drawn.choice(_READERS), put(INT8, content), REFUSED)
    for name, change in _graphs(drawn).items():
        yield _case(name, drawn.choice(_READERS), _changed(change))
    for number in range(20):
        seed = drawn.getrandbits(32)
        damage = _changed(_with_metadata(lambda text, seed=seed: one_value(seed)(text.encode()).decode()))
        yield _case(f"value {number} of the metadata (seed {seed})", drawn.choice(_READERS), damage)
    for name, change in _texts().items():
        yield _case(f"metadata: {name}", drawn.choice(_READERS), _changed(_with_metadata(change)))
    for name, change in _fields().items():
        yield _case(f"metadata: {name}", drawn.choice(_READERS), _changed(_with_metadata(_on_fields(change))))
    yield _case("weights of the run changed after the export", CHECK_FP32, _other_weights, (1, 2))


def _case(name: str, command: Command, damage: Damage, allowed: Sequence[int] = (0, 2)) -> Case:
    codes = {*allowed, 1} if command in (CHECK, CHECK_FP32) else {*allowed}
    return Case(f"ONNX: {name}", command, damage, tuple(sorted(codes)))


def _whole_files() -> dict[str, bytes]:
    return {
        "empty": b"",
        "text": b"not an ONNX file",
        "a pickle": b"cos\nsystem\n(S'touch executed'\ntR.",
        "zero bytes": bytes(10_000),
        "endless varints": b"\xff" * 10_000,
        "a field without an end": b"\x3a\xff\xff\xff\xff\x7f" + bytes(100),
        "valid and of another program": _of_another_program().SerializeToString(),
    }


def _of_another_program() -> ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", [value], [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _changed(change: Change) -> Damage:
    def damage(folder: Path) -> None:
        model = onnx.load(folder / INT8)
        change(model)
        (folder / INT8).write_bytes(model.SerializeToString())

    return damage


def _graphs(drawn: random.Random) -> dict[str, Change]:
    share = drawn.random()

    def weights(model: ModelProto) -> list[TensorProto]:
        return [one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT and one.dims]

    def fill(value: float) -> Change:
        def change(model: ModelProto) -> None:
            for one in weights(model):
                array = np.full(tuple(one.dims), value, np.float32)
                one.CopyFrom(numpy_helper.from_array(array, one.name))

        return change

    def with_dims(dims: list[int]) -> Change:
        def change(model: ModelProto) -> None:
            del (one := weights(model)[int(share * len(weights(model)))]).dims[:]
            one.dims.extend(dims)

        return change

    def outside(location: str, length: int = 64) -> Change:
        def change(model: ModelProto) -> None:
            one = weights(model)[int(share * len(weights(model)))]
            one.ClearField("raw_data")
            one.ClearField("float_data")
            one.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
                one.external_data.add(key=key, value=value)

        return change

    def renamed_node(operator: str, domain: str = "") -> Change:
        def change(model: ModelProto) -> None:
            node = model.graph.node[int(share * len(model.graph.node))]
            node.op_type, node.domain = operator, domain

        return change

    def renamed_input(model: ModelProto) -> None:
        old = model.graph.input[0].name
        model.graph.input[0].name = "\x1b[31mx"
        for node in model.graph.node:
            node.input[:] = ["\x1b[31mx" if name == old else name for name in node.input]

    def shaped(of: Callable[[ModelProto], Any], size: int) -> Change:
        def change(model: ModelProto) -> None:
            of(model).type.tensor_type.shape.dim[-1].dim_value = size

        return change

    def attribute(kind: str, name: str, value: int) -> Change:
        def change(model: ModelProto) -> None:
            for node in model.graph.node:
                for one in node.attribute:
                    if node.op_type == kind and one.name == name:
                        one.i = value

        return change

    def cycle(model: ModelProto) -> None:
        model.graph.node[0].input[0] = model.graph.node[-1].output[0]

    def numbers(value: int) -> Change:
        def change(model: ModelProto) -> None:
            for one in model.graph.initializer:
                if one.data_type == TensorProto.INT64:
                    array = np.full(tuple(one.dims), value, np.int64)
                    one.CopyFrom(numpy_helper.from_array(array, one.name))

        return change

    def function_of_itself(model: ModelProto) -> None:
        node = helper.make_node("Again", ["a"], ["b"], domain="own")
        own = helper.make_function("own", "Again", ["a"], ["b"], [node], [helper.make_opsetid("own", 1)])
        model.functions.append(own)
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node[0].op_type, model.graph.node[0].domain = "Again", "own"

    return {
        "weights of NaN": fill(float("nan")),
        "weights of infinity": fill(float("inf")),
        "weights of the largest float": fill(3e38),
        "weights of zero": fill(0.0),
        "a weight of negative shape": with_dims([-1, 4]),
        "a weight of huge shape": with_dims([2**31, 2**31]),
        "a weight of 2 TB": with_dims([2**39]),
        "a weight without a shape": with_dims([]),
        "a weight in /etc/passwd": outside("/etc/passwd"),
        "a weight above the folder": outside("../../data.parquet"),
        "a weight in a device": outside("/dev/zero", 2**40),
        "a weight nowhere": outside("nowhere.bin"),
        "a weight in a terminal's commands": outside("\x1b[31m\n"),
        "no weight": lambda model: model.graph.ClearField("initializer"),
        "an unknown operator": renamed_node("Frobnicate"),
        "an operator of another domain": renamed_node("\x1b[31mRun", "com.example"),
        "another operator": renamed_node("Relu"),
        "a loop": cycle,
        "a function that calls itself": function_of_itself,
        "no node": lambda model: model.graph.ClearField("node"),
        "no output": lambda model: model.graph.ClearField("output"),
        "no input": lambda model: model.graph.ClearField("input"),
        "an input of another name": renamed_input,
        "an input of another size": shaped(lambda model: model.graph.input[0], 99),
        "an input of negative size": shaped(lambda model: model.graph.input[0], -5),
        "an output of another size": shaped(lambda model: model.graph.output[0], 2**40),
        "an input of text": lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 8),
        "a later version of the operators": lambda model: setattr(model.opset_import[0], "version", 999),
        "a later format": lambda model: setattr(model, "ir_version", 99),
        "no version of the operators": lambda model: model.ClearField("opset_import"),
        "axes beyond the shape": attribute("Concat", "axis", 99),
        "an LSTM of another size": attribute("LSTM", "hidden_size", 2**30),
        "an LSTM of size 0": attribute("LSTM", "hidden_size", 0),
        "shapes and indices of -7": numbers(-7),
        "shapes and indices of 0": numbers(0),
        "shapes and indices without an end": numbers(2**40),
        "no metadata": lambda model: model.ClearField("metadata_props"),
        "metadata twice": lambda model: model.metadata_props.append(model.metadata_props[0]),
    }


def _with_metadata(change: Callable[[str], str]) -> Change:
    def on_model(model: ModelProto) -> None:
        text = next(one.value for one in model.metadata_props if one.key == _KEY)
        model.ClearField("metadata_props")
        model.metadata_props.add(key=_KEY, value=change(text))

    return on_model


def _texts() -> dict[str, Callable[[str], str]]:
    return {
        "empty": lambda text: "",
        "cut": lambda text: text[: len(text) // 2],
        "a list": lambda text: "[]",
        "deep lists": lambda text: "[" * 100_000 + "]" * 100_000,
        "deep objects": lambda text: '{"a":' * 100_000 + "1" + "}" * 100_000,
        "null": lambda text: "null",
        "another onnxruntime": lambda text: text.replace('"needs_onnxruntime": "1.', '"needs_onnxruntime": "99.'),
        "an onnxruntime without an end": lambda text: text.replace(
            '"needs_onnxruntime": "1.', f'"needs_onnxruntime": "{"9" * 9000}.'
        ),
    }


def _on_fields(change: Callable[[Any], object]) -> Callable[[str], str]:
    def on_text(text: str) -> str:
        fields = json.loads(text)
        change(fields)
        return json.dumps(fields)

    return on_text


def _fields() -> dict[str, Callable[[Any], object]]:
    def put_in(*place: str, value: Any) -> Callable[[Any], object]:
        def change(fields: Any) -> None:
            for key in place[:-1]:
                fields = fields[key]
            fields[place[-1]] = value

        return change

    return {
        "a later format": put_in("format_version", value=99),
        "a history without an end": put_in("history", value=10**9),
        "a horizon without an end": put_in("horizon", value=10**9),
        "a history below zero": put_in("history", value=-6),
        "no horizon": put_in("horizon", value=0),
        "quantiles of another number": put_in("quantiles", value=[0.5]),
        "quantiles that are NaN": put_in("quantiles", value=[float("nan")] * 3),
        "quantiles that obey a terminal": put_in("quantiles", value=["\x1b[31m"]),
        "other columns": put_in("schema", "observed", value={"real": ["nowhere"]}),
        "more columns": put_in("schema", "observed", value={"real": ["wind", "hour2"]}),
        "columns that obey a terminal": put_in("schema", "observed", value={"real": ["\x1b[31m\nerror: forged"]}),
        "no vocabularies": put_in("vocabularies", value={}),
        "longer vocabularies": put_in("vocabularies", "shift", value=[f"{n}" for n in range(1000)]),
        "vocabularies of numbers": put_in("vocabularies", "shift", value=[1, 2]),
        "vocabularies that are texts": put_in("vocabularies", "shift", value="day"),
        "more series": put_in("series", value=[[f"{n}"] for n in range(1000)]),
        "series that are texts": put_in("series", value=["north", "south"]),
        "no series": put_in("series", value=None),
        "another transform": put_in("target_transform", value="\x1b[31m"),
        "a transform of positive targets": put_in("target_transform", value="log"),
        "a target of another machine": put_in("target", value="\x1b[31m"),
        "low bits of no layer": put_in("low_bits", value={"\x1b[31m": 3}),
        "bits of 0": put_in("low_bits", value={"head": 0}),
        "fills of another length": put_in("fills", value={"wind": []}),
        "fills of no column": put_in("fills", value={"nowhere": [1.0]}),
        "usual values of another length": put_in("usual", value={"wind": []}),
        "usual values of no column": put_in("usual", value={"nowhere": [[0.0, 1.0]]}),
        "a policy of a later version": put_in("preparation", "gaps", value="bridge"),
        "a step of nothing": put_in("preparation", "step", value=["", 0]),
        "shortest history without an end": put_in("preparation", "min_history", value=10**9),
        "layers that are a number": put_in("quantized_layers", value=3),
        "versions that are a list": put_in("versions", value=[1]),
    }


def _other_weights(folder: Path) -> None:
    from faults.broken.case import FP32

    model = onnx.load(folder / FP32)
    for one in model.graph.initializer:
        if one.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(one) * np.float32(1.01)
            one.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), one.name))
    (folder / FP32).write_bytes(model.SerializeToString())
