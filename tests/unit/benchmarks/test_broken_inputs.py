"""Broken inputs are refused, and what judges that notices every way to mishandle one."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SOME = """
import json, sys
from pathlib import Path
from faults import broken_inputs
tally = broken_inputs.measure(Path(sys.argv[1]), seed=1, share=0.015, exported=False)
print(json.dumps([tally.tried, tally.failures]))
"""
Program = Callable[[Sequence[str]], int]


def test_some_broken_inputs_are_handled(tmp_path: Path) -> None:
    """In a process of its own: the measurement forks, which a process with threads should not."""
    words = [sys.executable, "-W", "ignore", "-c", SOME, str(tmp_path)]
    done = subprocess.run(words, cwd=BENCHMARKS, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    tried, failures = json.loads(done.stdout)
    assert failures == []
    assert tried >= 5


def test_there_are_hundreds_of_inputs_and_a_seed_gives_the_same_ones(benchmark_named) -> None:
    broken = benchmark_named("faults.broken_inputs")
    names = [str(case) for case in broken.cases(3)]
    assert len(names) >= 300
    assert names == [str(case) for case in broken.cases(3)]
    assert names != [str(case) for case in broken.cases(4)]


def refuse(words: Sequence[str]) -> int:
    print("error: data.parquet: not Parquet.", file=sys.stderr)
    return 2


def succeed(words: Sequence[str]) -> int:
    print("done")
    print("a note", file=sys.stderr)
    Path("out.parquet").write_bytes(b"PAR1")
    return 0


def fail_uncaught(words: Sequence[str]) -> int:
    raise KeyError("plant")


def crash(words: Sequence[str]) -> int:
    faulthandler.disable()  # the test runner's would print into its own output
    os.abort()


def sleep(words: Sequence[str]) -> int:
    time.sleep(30)
    return 0


def say_twice(words: Sequence[str]) -> int:
    return refuse(words) + 0 * refuse(words)


def say_nothing(words: Sequence[str]) -> int:
    return 2


def fail_a_check(words: Sequence[str]) -> int:
    print("error: the check failed.", file=sys.stderr)
    return 1


def warn(words: Sequence[str]) -> int:
    print("x.py:1: UserWarning: beware", file=sys.stderr)
    return succeed(words)


def obey(words: Sequence[str]) -> int:
    print("error: column '\x1b[31m' is missing.", file=sys.stderr)
    return 2


def leave_a_file(words: Sequence[str]) -> int:
    Path(".results.json.7.tmp").touch()
    return refuse(words)


def change_a_file(words: Sequence[str]) -> int:
    Path("data.parquet").write_text("other")
    return succeed(words)


def take_memory(words: Sequence[str]) -> int:
    held = bytearray(os.urandom(1)) * 2_200_000_000
    return refuse(words) if held else 0


@pytest.fixture
def judged(benchmark_named, tmp_path: Path) -> Callable[..., str]:
    """What the judge says of a program that may write out.parquet and end with 0 or 2."""
    case, trial = benchmark_named("faults.broken.case"), benchmark_named("faults.broken.trial")
    judge = benchmark_named("faults.broken.judge")
    (tmp_path / "data.parquet").write_text("no Parquet")
    command = case.command("predict", "out.parquet")

    def run(program: Program, limit: float = 60.0) -> str:
        outcome = trial.tried(command.words, tmp_path, program=program, limit=limit)
        return judge.problems(case.Case("text", command, lambda _: None), outcome)

    return run


@pytest.mark.parametrize("program", [refuse, succeed])
def test_a_refusal_and_a_result_are_right(judged, program: Program) -> None:
    assert judged(program) == ""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(fail_uncaught, "Traceback", id="traceback"),
        pytest.param(crash, "ended by signal 6", id="crash"),
        pytest.param(say_twice, "2 messages", id="two messages"),
        pytest.param(say_nothing, "0 messages", id="no message"),
        pytest.param(fail_a_check, "exit code 1, not 0 or 2", id="exit code"),
        pytest.param(warn, "Warning", id="warning"),
        pytest.param(obey, "control character", id="terminal"),
        pytest.param(leave_a_file, "touched .results.json.7.tmp", id="file left"),
        pytest.param(change_a_file, "touched data.parquet", id="file changed"),
        pytest.param(take_memory, "GB of memory", id="memory"),
    ],
)
def test_every_way_to_mishandle_an_input_is_noticed(judged, program: Program, said: str) -> None:
    assert said in judged(program)


def test_a_program_that_takes_too_long_is_ended_and_noticed(judged) -> None:
    assert "not done after" in judged(sleep, limit=0.5)
