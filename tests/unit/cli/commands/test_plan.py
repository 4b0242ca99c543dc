"""`plan` from the command line: tables that fit a terminal, one JSON object, exit codes."""

import json
from pathlib import Path

import pytest
import torch

from qat_tft.checkpointing.segments import Mode
from qat_tft.cli.app import main
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.step_simulator import StepSimulator

SMALL = ["--static", "1", "--observed", "9", "--known", "2", "--history", "6", "--horizon", "3", "--hidden", "8"]
SMALL += ["--no-use-qat"]


def test_a_plan_for_one_budget_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", *SMALL, "--batch-size", "4", "--memory-budget", "20MB", "--json"]
    assert main(words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["batch_size"] == 4
    assert plan["budgets"] == {"20MB": 20_000_000}
    assert plan["cheapest_mode"] == {"20MB": "off"}
    assert [(row["phase"], row["mode"]) for row in plan["rows"]] == [("fp32", mode) for mode in Mode]
    for row in plan["rows"]:
        assert row["peak"] == sum(
            row[part] for part in ("weights", "gradients", "optimizer", "activations", "temporaries")
        )
        assert row["largest_batch"]["20MB"] >= 4


def formula(self: StepSimulator, kind: str, mode: str, batch: int, **rest: object) -> Footprint:
    return Footprint(10**9, 10**9, 10**9, batch * 12_345_678, 10**9, flops=batch if mode == "off" else 2 * batch)


def test_a_plan_for_data_takes_its_columns_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(tmp_path / "bars.parquet")
    assert main(["sample-data", "--rows", "4000", "--out", data]) == 0
    seen = set()

    def noting(self: StepSimulator, kind: str, mode: str, batch: int, **rest: object) -> Footprint:
        seen.add(tuple(group.total for group in self.groups))
        return formula(self, kind, mode, batch)

    monkeypatch.setattr(StepSimulator, "__call__", noting)
    capsys.readouterr()
    assert main(["plan", "--parquet-file", data, "--json"]) == 0
    assert main(["plan", "--json"]) == 0
    assert seen == {(5, 220, 10)}


@pytest.mark.parametrize(
    ("words", "chunk"),
    [
        pytest.param(["--device", "cpu"], 4, id="a CPU"),
        pytest.param(["--device", "cuda"], 32, id="a GPU"),
        pytest.param([], 32, id="usual GPUs"),
        pytest.param(["--memory-budget", "9GB", "--device", "cuda"], 32, id="a GPU of another size"),
        pytest.param(["--memory-budget", "9GB"], 32 if torch.cuda.is_available() else 4, id="training here"),
        pytest.param(["--device", "cuda", "--selection-chunk", "6"], 6, id="a given chunk"),
    ],
)
def test_a_plan_computes_in_the_chunks_that_training_on_the_device_would_take(
    words: list[str], chunk: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def noting(self: StepSimulator, kind: str, mode: str, batch: int, **rest: object) -> Footprint:
        seen.add(self.shape.variables_together)
        return formula(self, kind, mode, batch)

    monkeypatch.setattr(StepSimulator, "__call__", noting)
    assert main(["plan", "--selection", "exact", *words, "--json"]) == 0
    assert seen == {chunk}


def test_a_plan_for_usual_gpus_is_shown_as_tables_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepSimulator, "__call__", formula)
    assert main(["plan", "--batch-size", "200"]) == 0
    shown = capsys.readouterr()
    assert "Simulating qat, mode full" in shown.err
    assert "One training step of 200 windows" in shown.out
    for size in (4, 12, 24, 48):
        assert f"{size} GB" in shown.out
    for row in ("fp32   off", "qat    aggressive", "+100%", "12 GB: mode off is the fastest that fits 200 windows"):
        assert row in shown.out
    assert "4 GB: no mode fits 200 windows." in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "…" not in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--memory-budget", "lots"], "--memory-budget: 'lots' is not an amount of memory", id="nonsense"),
        pytest.param(["--memory-budget", "2"], "Allowed: a positive number and one of KB, KiB, MB, GB", id="no unit"),
        pytest.param(["--memory-budget", "0.01MB"], "is too small for the weights, which take", id="below the weights"),
        pytest.param(["--selection-chunk", "0"], "--selection-chunk: Input", id="chunk 0"),
        pytest.param(["--batch-size", "0"], "--batch-size: Input", id="batch 0"),
        pytest.param(["--heads", "3"], "--heads 3 must divide --hidden 8", id="heads"),
        pytest.param(["--batch-size", "9" * 18], "numbers at once. Allowed: up to 1e+12", id="beyond all memory"),
        pytest.param(["--observed", "0"], "--observed: the number of columns cannot be 0", id="no target"),
        pytest.param(["--parquet-file", "x.parquet"], "both set the number of columns", id="counts and a file"),
        pytest.param(["--schema", "x.toml"], "--schema without --parquet-file", id="schema without data"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *SMALL, *words, "--json"]) == 2
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert message in json.loads(shown.out)["error"]
