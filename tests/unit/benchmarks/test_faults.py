"""A few kills and write errors of the benchmark, aimed at changes of files: nothing is timed, so nothing is flaky."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="faults are injected by a library that cc compiles"
)

# In a process of its own: faults below libc need a library that is loaded in front of it.
TRIALS = """
import json, sys
from pathlib import Path
from faults import kills, write_errors
from faults.forked import WarmProcess
from faults.tally import Tally
from faults.tiny import Workshop, commands, trial_folder

work, tally = Path(sys.argv[1]), Tally("lost")
with WarmProcess(work, trial_folder(work)) as warm:
    shop = Workshop(work, warm)
    shop.set_up(export=False)
    for name in ("train", "inspect"):
        command = commands(shop)[name]
        shop.undisturbed(command)
        kills.kill_at(shop, command, (20, 69) if name == "train" else (1, 2, 3, 4), tally)
        write_errors.fail_at(shop, command, () if name == "train" else (1, 2, 3, 4), tally)
print(json.dumps([tally.tried, tally.failures]))
"""


def test_killed_and_failed_commands_end_as_undisturbed_ones(tmp_path):
    words = [sys.executable, "-c", TRIALS, str(tmp_path)]
    done = subprocess.run(words, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    tried, failures = json.loads(done.stdout.splitlines()[-1])
    assert tried == 10
    assert failures == []


def test_a_trial_that_leaves_half_a_file_is_lost(tmp_path, benchmark_named):
    contents = benchmark_named("faults.contents")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text('{"q_risk": {')
    with pytest.raises(contents.HalfWritten, match=r"run/results\.json is not whole"):
        contents.finals(tmp_path)
    (tmp_path / "run" / "results.json").rename(tmp_path / "run" / ".results.json.0123abcd.tmp")
    assert contents.finals(tmp_path) == {}
    assert contents.names(tmp_path) == {"run/.results.json.0123abcd.tmp"}
