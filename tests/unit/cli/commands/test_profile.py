"""`profile` from the command line: worker processes, tables that fit a terminal, one JSON object, exit codes."""

import json

import pytest

from qat_tft.checkpointing.segments import Mode
from qat_tft.cli.app import main
from qat_tft.profiling import interleaved
from qat_tft.profiling.footprint import Footprint
from qat_tft.profiling.measurement import Measurement
from qat_tft.profiling.step_simulator import StepSimulator

SMALL = ["--static", "1", "--observed", "9", "--known", "2", "--history", "6", "--horizon", "3", "--hidden", "8"]
MIB = 2**20


def test_a_profile_is_one_json_object_and_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *SMALL, "--batch-size", "4", "--repeats", "1", "--no-use-qat", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["batch_size"], found["repeats"]) == (4, 1)
    assert [(row["phase"], row["mode"]) for row in found["rows"]] == [("fp32", mode) for mode in Mode]
    for row in found["rows"]:
        assert row.keys() == {
            "phase",
            "mode",
            "simulated_bytes",
            "live_bytes",
            "process_bytes",
            "process_to_off",
            "step_seconds",
            "time_to_off",
            "out_of_memory",
        }
        assert min(row[key] for key in row if key.endswith(("bytes", "off", "seconds"))) > 0
        assert row["out_of_memory"] is None
    assert found["rows"][0]["time_to_off"] == found["rows"][0]["process_to_off"] == 1.0
    for line in ("Simulating fp32, full", "Measuring fp32, off, round 1 of 1"):
        assert line in shown.err


def answering(command: list[str]) -> Measurement | str:
    task = json.loads(command[-1])
    if not task["segments"]:
        return "DefaultCPUAllocator: can't allocate memory"
    return Measurement((2.0, 3.0, 10.0), 300 * MIB, 200 * MIB)


def test_tables_fit_80_columns_and_a_mode_without_enough_memory_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepSimulator, "__call__", lambda *shape: Footprint(MIB, 0, 0, 0, 0, flops=1))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(interleaved, "in_worker", answering)
    assert main(["profile", *SMALL, "--repeats", "2", "--checkpoint-segments", "lstm_encoder,lstm_decoder"]) == 0
    shown = capsys.readouterr()
    assert "fp32, off: out of memory (DefaultCPUAllocator: can't allocate memory)" in shown.out
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in shown.out.splitlines()}
    assert rows["fp32", "off"][1:] == ["-", "-", "-", "-", "-"]
    assert rows["qat", "full"][1:] == ["200", "300", "-", "3", "-"]
    assert ("qat", "lstm_encoder,lstm_d") in {(key[0], key[-1][:19]) for key in rows if key}
    assert max(map(len, shown.out.splitlines())) <= 80
    assert shown.err.count("Measuring fp32, off") == 1, "what ran out of memory gets no second round"
    assert shown.err.count("Measuring fp32, full") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--repeats", "0"], "--repeats", id="no repeat"),
        pytest.param(["--device", "tpu"], "--device: Input", id="unknown device"),
        pytest.param(["--precision", "int4"], "--precision: Input", id="unknown precision"),
        pytest.param(["--device", "cpu", "--precision", "fp16"], "--precision: fp16 needs", id="fp16 on the CPU"),
        pytest.param(["--hidden", "0"], "--hidden: Input", id="hidden 0"),
        pytest.param(["--checkpoint-segments", "lstm"], "unknown segment 'lstm'", id="unknown segment"),
        pytest.param(["--batch-size", "9" * 18], "numbers at once. Allowed: up to 1e+12", id="beyond all memory"),
        pytest.param(["--observed", "0"], "--observed: the number of columns cannot be 0", id="no target"),
        pytest.param(["--parquet-file", "x.parquet"], "both set the number of columns", id="counts and a file"),
        pytest.param(["--schema", "x.toml"], "--schema without --parquet-file", id="schema without data"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *SMALL, *words]) == 2
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert shown.out == ""
