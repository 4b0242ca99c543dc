"""The comparison's ratios point the right way round, sides answer what they are asked, and nothing needs a peer."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

SIDE = '''
"""A side whose loss prints, as libraries do."""
import torch
from sides.worker import Side, run

class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, *inputs):
        one, unused = inputs
        return 2 * self.linear(one)

def build(workload, options):
    model = Doubled()
    def inputs(windows):
        return torch.randn(windows, 3), torch.randn(windows, 1)
    def loss():
        print("a library says something")
        return model(*inputs(workload.batch)).square().mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Side(f"version {options['number']}", model, optimizer, loss, model, inputs)

run(build)
'''
ROUNDING_DB = 100.0
"""Copies of a model differ by nothing; single precision alone would give more than 120 dB."""


@pytest.fixture
def script(benchmark_named):
    return benchmark_named("peers")


@pytest.fixture
def side(script, tmp_path, monkeypatch):
    """A process that serves the side above."""
    (tmp_path / "tiny_side.py").write_text(SIDE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = import_module("sides.process")
    with process.working(process.Program(sys.executable, "tiny_side", "w2", {"number": 7})) as worker:
        yield worker


def timed(script, *seconds: float):
    return script.Timed("1.0", 10, seconds)


def found(script, **changes):
    steps = {
        name: {
            script.row("fp32", "off"): timed(script, 1.0, 2.0, 9.0),
            script.row("fp32", "full"): timed(script, 3.0),
            script.row("qat", "off"): timed(script, 2.2),
            script.row("qat", "full"): timed(script, 4.5),
            "darts": timed(script, 8.0),
            "neuralforecast": timed(script, 4.0),
        }
        for name in ("w1", "w2")
    }
    milliseconds = {
        script.INT8: {1: 2.0, 32: 20.0},
        script.FP32: {1: 3.0, 32: 50.0},
        "darts": {1: 10.0, 32: 200.0},
        "neuralforecast": {1: 16.0, 32: 100.0},
    }
    files = script.TimedFiles(milliseconds, dict.fromkeys(milliseconds, 4000), {"darts": "traced"})
    risks = {"0.1": 0.2, "0.5": 0.4}, {"0.1": 0.21, "0.5": 0.4}
    quality = script.Quality((0.4, 0.6), (0.5, 0.55), risks[:1] * 2, risks[1:] * 2, (50.0, 45.0))
    values = {
        "steps": steps,
        "large": {32: 2.0, 256: 10.0},
        "peaks": {"fp32, off": 300 * 2**20, "fp32, full": 100 * 2**20, "qat, full": 120 * 2**20},
        "files": {"w1": files, "w2": files},
        "quality": {"ett_h1": quality, "other": replace(quality, selected_db=(48.0,))},
        "largest_batch": 99,
        "peers": ("darts", "neuralforecast"),
    }
    return script.Found(**{**values, **changes})


def test_each_ratio_is_ours_over_the_peer_that_is_fastest_there(script):
    result = script.figures(found(script))
    assert result["step_ratio"] == {"w1_off": 0.5, "w1_full": 0.75, "w2_off": 0.5, "w2_full": 0.75}
    assert result["onnx_speedup"] == {"w1_b1": 5.0, "w1_b32": 5.0, "w2_b1": 5.0, "w2_b32": 5.0}
    assert result["onnx_ms"]["w2_b32"] == 20.0


def test_ratios_of_our_own_point_the_right_way_round(script):
    result = script.figures(found(script))
    assert list(result) == list(script.KEYS)
    assert result["full_over_off"] == {"w1": 1.5, "w2": 1.5}
    assert result["qat_over_fp32"] == pytest.approx(1.5)  # full, and not off at 1.1
    assert result["batch_scaling"] == pytest.approx(1.6)
    assert result["peak_mib"] == {"off": 300, "full": 100, "qat_full": 120}
    assert result["small_speed"] == {"b1": 1.5, "b32": 2.5}


def test_quality_is_a_ratio_of_means_over_the_seeds_and_the_worst_sqnr_counts(script):
    result = script.figures(found(script))
    assert result["quality_ratio"]["ett_h1"] == pytest.approx(1.05)
    assert result["int8_ratio"]["other"] == {"0.1": pytest.approx(1.05), "0.5": 1.0}
    assert result["tabulated_sqnr_db"] == 45.0


def test_without_peers_and_data_their_figures_are_null_and_the_tables_still_print(script):
    alone = found(script, peers=(), quality={})
    result = script.figures(alone)
    assert set(result["step_ratio"].values()) == set(result["onnx_speedup"].values()) == {None}
    assert result["quality_ratio"] is result["tabulated_sqnr_db"] is result["int8_ratio"] is None
    assert result["full_over_off"]["w2"] == 1.5
    assert any("not measured" in line for line in script._figure_table(result))
    assert list(script._quality_table(alone)) == []


def test_the_tables_show_every_figure(script):
    everything = found(script)
    text = "\n".join([*script._side_table(everything), *script._figure_table(script.figures(everything))])
    assert "| time of a training step, ours / fastest peer, w2_full | `step_ratio` | 0.75 |" in text
    assert "| darts 1.0 | 10 | 8.000 | 10.00 | 200.00 | 4 |" in text
    assert "| ours, INT8 |  |  | 2.00 | 20.00 | 4 |" in text
    assert "| ett_h1 | 0.50000 | 0.52500 | 1.0500 | 0.9167 to 1.2500 | 45.0 |" in list(
        script._quality_table(everything)
    )
    json.dumps(script.details(everything))


def test_a_side_answers_each_request_but_an_unknown_one_and_what_libraries_print_is_no_answer(side):
    assert side.ask("describe") == {"version": "version 7", "parameters": 8}
    assert side.ask("step")["seconds"] > 0
    assert side.ask("memory", steps=1)["bytes"] >= 0
    with pytest.raises(RuntimeError, match="tiny_side w2 ended with exit code 1"):
        side.ask("no such request")


@pytest.mark.slow
def test_a_side_exports_a_file_of_any_batch_with_its_inputs_beside_it(side, tmp_path):
    exported = side.ask("export", folder=str(tmp_path / "files"), batches=[1, 32])
    assert exported == {"how": "dynamic batch", "files": {"1": "any.onnx", "32": "any.onnx"}}
    with np.load(tmp_path / "files" / "b32.npz") as saved:
        assert {name: saved[name].shape for name in saved.files} == {"input_0": (32, 3), "input_1": (32, 1)}


def test_sides_take_turns_and_the_first_round_is_not_timed(script, monkeypatch):
    process = import_module("sides.process")
    asked: list[str] = []

    @contextmanager
    def working(program):
        seconds = iter([99.0, 1.0, 2.0, 3.0])

        def ask(what):
            asked.append(program)
            return {"seconds": next(seconds)} if what == "step" else {"version": "1", "parameters": 1}

        yield SimpleNamespace(ask=ask)

    monkeypatch.setattr(process, "working", working)
    result = process.timed_steps({"a": "a", "b": "b"}, rounds=3)
    assert asked == ["a", "b"] * 5
    assert result["b"].seconds == (1.0, 2.0, 3.0)
    assert result["a"].median == 2.0


def test_a_missing_environment_or_set_is_named_before_anything_is_measured(script, tmp_path):
    process = import_module("sides.process")
    assert process.peer_programs(None, "w1") == {}
    with pytest.raises(FileNotFoundError, match="no environment of pytorch-forecasting"):
        process.peer_programs(tmp_path, "w1")
    with pytest.raises(FileNotFoundError, match=r"holds no ett_h1\.parquet"):
        import_module("sides.quality").require_sets(tmp_path)


def test_simulated_rows_have_the_columns_of_the_workload(script):
    files, workloads = import_module("sides.files"), import_module("sides.workloads")
    table = files.simulated(workloads.WORKLOADS["w2"])
    roles = [name.split("_")[0] for name in table.column_names]
    assert [roles.count(role) for role in ("time", "target", "observed", "known")] == [1, 1, 6, 4]


def test_options_name_the_shape_and_the_measured_form(script):
    files, workloads = import_module("sides.files"), import_module("sides.workloads")
    options = list(files.shape_options(workloads.WORKLOADS["w2"]))
    assert options[:4] == ["--history", "168", "--horizon", "24"]
    for name, value in workloads.FORM.items():
        assert options[options.index(f"--{name}") + 1] == str(value)


def test_without_options_there_are_no_peers_no_data_and_three_seeds(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["peers.py"])
    arguments = script._arguments()
    assert (arguments.json, arguments.peers, arguments.data, arguments.seeds) == (False, None, None, 3)
    assert not arguments.runs.is_absolute()
