"""The house: rooms of a size that can be surveyed, arrows in one direction, names that documents get right."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES, MOST_LINES = 18, 400
HOMES = {"qat_tft": ROOT / "qat_tft", "qat_tft.export": ROOT / "export"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
SOURCES = re.compile(r"`((?:qat_tft|export|tests|benchmarks|examples|docs)/[\w./*-]*)`")

# What each room may import, besides the files that stand at the top of the package and know no room.
LEAVES = {
    *("errors", "atomic", "device", "durations", "launch", "lock", "plain", "ranks", "schema", "stages", "temporary"),
    "texts",
}
ARROWS = {
    "device": {"errors", "ranks"},
    "launch": {"errors"},
    "ranks": {"errors", "launch"},
    "temporary": {"errors"},
    "schema": {"errors"},
    "checkpointing": {"errors"},
    "config": {"checkpointing", "data", "model", "quantization"},
    "data": set(),
    "model": {"checkpointing"},
    "quantization": {"checkpointing", "model"},
    "evaluation": {"data", "model"},
    "runs": {"config", "data", "evaluation", "model", "quantization"},
    "report": {"config", "data", "evaluation", "model", "runs"},
    "profiling": {"checkpointing", "config", "data", "model", "quantization", "runs"},
    "tracking": {"runs"},
    "training": {
        "checkpointing",
        "config",
        "data",
        "evaluation",
        "model",
        "profiling",
        "quantization",
        "runs",
        "tracking",
    },
    "export": {"config", "data", "evaluation", "model", "quantization", "runs"},
    "__main__": {"cli"},
    "api": {"cli", "config", "data", "export", "report", "runs", "training"},
    "cli": {"checkpointing", "config", "data", "evaluation", "export", "profiling", "report", "runs", "training"},
}


def modules() -> dict[str, Path]:
    """Return every module by its dotted name."""
    found = {}
    for package, home in HOMES.items():
        for path in home.rglob("*.py"):
            parts = [package, *path.relative_to(home).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """Return what every module imports of ours, at its top or in a function."""
    known = modules()
    return {name: set(imported(path, known)) - {name} for name, path in known.items()}


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_no_module_imports_itself_by_a_detour():
    graph = imports()
    assert len(graph) > 150
    assert sum(map(len, graph.values())) > 500
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" -> ".join(cycle.args[1]))


def test_rooms_import_no_other_rooms_than_they_may():
    arrows = {(room(one), room(other)) for one, others in imports().items() for other in others}
    found = {(one, other) for one, other in arrows if one != other and one and other and other not in LEAVES}
    assert found <= {(one, other) for one, others in ARROWS.items() for other in others}
    unused = {(one, other) for one, others in ARROWS.items() for other in others - LEAVES} - found
    assert unused == set(), "an arrow that nothing goes along any more"


def test_no_room_is_crowded_and_no_file_is_long():
    folders: dict[Path, int] = {}
    for path in modules().values():
        folders[path.parent] = folders.get(path.parent, 0) + 1
        assert len(path.read_text().splitlines()) <= MOST_LINES, path
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES} == {}


def test_cuda_is_asked_for_in_one_file():
    asking = [str(path.relative_to(ROOT)) for path in modules().values() if "torch.cuda" in path.read_text()]
    assert asking == ["qat_tft/device.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_no_stale_path(page: Path):
    stale = [path for path in SOURCES.findall(page.read_text()) if not any(ROOT.glob(path.rstrip("/")))]
    assert stale == []
