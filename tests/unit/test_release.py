"""What stands beside the code for those who host, cite or redistribute it says what pyproject.toml says."""

import re
import runpy
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

import qat_tft

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())

LIM_ET_AL = "10.1016/j.ijforecast.2021.03.012"
THIRD_PARTY = runpy.run_path(str(ROOT / "tools" / "third_party.py"))


def test_the_citation_names_project_authors_license_and_the_paper_of_the_model() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["message"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["authors"] == PROJECT["authors"]
    assert CITATION["license"] == PROJECT["license"]
    (paper,) = [work for work in CITATION["references"] if work["doi"] == LIM_ET_AL]
    assert [author["given-names"] for author in paper["authors"]] == ["Bryan", "Sercan Ö.", "Nicolas", "Tomas"]


def test_the_version_is_written_in_one_place() -> None:
    assert qat_tft.__version__ == PROJECT["version"]
    files = [ROOT / name for name in ("CITATION.cff", "Makefile", "README.md", "constraints.txt", "THIRD-PARTY.md")]
    files += [path for top in ("qat_tft", "export", ".github", "tools") for path in (ROOT / top).rglob("*.*")]
    written = re.compile(rf"(?<![\w.]){re.escape(PROJECT['version'])}(?![\w.])")
    texts = [path for path in files if path.suffix in {".py", ".pyi", ".cff", ".md", ".txt", ".yml", ".sh", ".j2", ""}]
    assert len(texts) > 150
    assert [str(path) for path in texts if written.search(path.read_text(encoding="utf-8"))] == []


def test_the_workflow_runs_make_targets_on_every_python_that_is_declared() -> None:
    steps = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    words = [step["run"].split() for step in steps if "run" in step]
    (targets,) = re.findall(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert all(make == "make" and target in targets.split() for make, target in words)
    assert {target for _, target in words} >= {"lint", "test", "smoke"}
    declared = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    assert f">={min(declared, key=Version)}" == PROJECT["requires-python"]


def test_the_third_party_page_lists_every_dependency_with_the_license_of_what_is_installed() -> None:
    page = (ROOT / "THIRD-PARTY.md").read_text()
    assert page.startswith(THIRD_PARTY["HEAD"])
    assert page.endswith(THIRD_PARTY["TAIL"])
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("|")][2:]
    assert [(name, use) for name, _, use in rows] == list(THIRD_PARTY["packages"]())
    stated = {name: license for name, license, _ in rows}
    assert all(stated.values())
    installed = [name for name in stated if _is_installed(name)]
    assert len(installed) > 20
    assert {name: THIRD_PARTY["license_of"](name, []) for name in installed} == {
        name: stated[name] for name in installed
    }


def _is_installed(name: str) -> bool:
    try:
        found = distribution(name)
    except ModuleNotFoundError:
        return False
    return name != "torch" or found.version.endswith("+cpu")  # a build with CUDA bundles more, under more licenses


def test_a_package_that_states_no_license_is_not_listed_without_one(tmp_path: Path) -> None:
    info = tmp_path / "silent-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: silent\nVersion: 1.0\n")
    with pytest.raises(LookupError, match="silent: its metadata state no license"):
        THIRD_PARTY["license_of"]("silent", [str(tmp_path)])
    with pytest.raises(LookupError, match="absent is not installed"):
        THIRD_PARTY["license_of"]("absent", [str(tmp_path)])
