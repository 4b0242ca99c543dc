"""The example of quantization-aware training in Python runs and prints that the integer model is the same."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "qat_in_python.py"
SAME = 1e-2  # of quantiles near one; a code or two that falls the other way


def test_the_python_example_ends_with_an_integer_model_that_equals_the_qat_model():
    printed = subprocess.run([sys.executable, EXAMPLE], check=True, capture_output=True, text=True).stdout
    found = re.search(r"by at most (\S+)", printed)
    assert found, printed
    assert float(found[1]) < SAME
