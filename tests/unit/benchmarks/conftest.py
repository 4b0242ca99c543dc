"""Scripts of benchmarks/ as modules."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def benchmark_named(monkeypatch: pytest.MonkeyPatch):
    """Import a script as it imports its neighbours: its folder stands first in the path."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what a script sets is undone as well
    monkeypatch.syspath_prepend(BENCHMARKS)

    def load(name: str) -> ModuleType:
        return import_module(name)

    return load
