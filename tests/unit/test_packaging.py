"""Wheel, source distribution and editable install carry the same package, and the pins fit the ranges."""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import qat_tft

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Our code is text of a few hundred KB before compression; a wheel beyond this carries something by mistake.
WHEEL_LIMIT = 1024 * 1024
# What the embedded data may take of a user's disk and download.
EMBEDDED_LIMIT = 300 * 1000

# The folders of the tree that are sources; everything else in it was made by a tool.
TOPS = {".ci", ".github", "benchmarks", "docs", "examples", "export", "qat_tft", "tests", "tools"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what the archives are built from, so that nothing left in the tree by an older build can slip in."""
    tree = tmp_path_factory.mktemp("tree")
    for path in ROOT.iterdir():
        if path.name in TOPS or path.is_file():
            _copy(path, tree / path.name)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built_wheel(tree, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unpacked_sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution as `make sdist` does, and unpack it."""
    out = tmp_path_factory.mktemp("sdist")
    program = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, out], capture_output=True, text=True, check=False, cwd=tree)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("qat_tft-*.tar.gz")
    with tarfile.open(built) as archive:
        archive.extractall(out, filter="data")
    return out / built.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, which borrows its dependencies from this one: its site-packages.

    This environment's `.pth` files are not read from there, so an editable qat-tft in it is out of reach.
    """
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment)
    python = environment / "bin" / "python"
    site = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    run_pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    return site


@pytest.fixture(scope="module")
def members(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def test_wheel_holds_every_source_file_at_its_import_path(members: frozenset[str]) -> None:
    ours = {name for name in members if not name.startswith("qat_tft-")}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "qat_tft").rglob("*.py")}
    expected |= {f"qat_tft/{path.relative_to(ROOT)}" for path in (ROOT / "export").rglob("*.py")}
    assert {name for name in ours if name.endswith(".py")} == expected
    assert "qat_tft/export/__init__.py" in ours
    assert "qat_tft/py.typed" in ours


def test_wheel_puts_nothing_beside_qat_tft_into_site_packages(members: frozenset[str]) -> None:
    tops = {name.split("/")[0] for name in members}
    assert "export" not in tops
    assert tops == {"qat_tft", f"qat_tft-{PROJECT['project']['version']}.dist-info"}


def test_wheel_carries_embedded_data_and_templates_and_stays_small(wheel: Path, members: frozenset[str]) -> None:
    embedded = ROOT / "qat_tft" / "data" / "sample" / "embedded"
    expected = {str(path.relative_to(ROOT)) for path in embedded.glob("*") if path.is_file()}
    assert any(name.endswith(".parquet") for name in expected)
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "qat_tft" / "report" / "templates").iterdir()}
    assert templates
    assert expected | templates <= members
    assert sum((ROOT / name).stat().st_size for name in expected) < EMBEDDED_LIMIT
    assert wheel.stat().st_size < WHEEL_LIMIT


def test_wheel_states_its_license_and_carries_both_texts(wheel: Path, members: frozenset[str]) -> None:
    info = f"qat_tft-{PROJECT['project']['version']}.dist-info"
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= members
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata.splitlines()


def test_sdist_holds_every_file_of_the_repository(unpacked_sdist: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    ours = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    found = {str(path.relative_to(unpacked_sdist)) for path in unpacked_sdist.rglob("*") if path.is_file()}
    generated = {name for name in found if name in {"PKG-INFO", "setup.cfg"} or name.startswith("qat_tft.egg-info/")}
    assert found - generated == ours


def test_sdist_builds_the_wheel_that_the_tree_builds(unpacked_sdist: Path, wheel: Path, tmp_path: Path) -> None:
    assert _checksums(_built_wheel(unpacked_sdist, tmp_path)) == _checksums(wheel)


def test_installed_commands_work_without_the_source_tree(site: Path, tmp_path: Path) -> None:
    smoke = [ROOT / "tools" / "smoke.sh", site.parents[2] / "bin"]
    done = subprocess.run(smoke, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_installed_wheel_imports_export_from_inside_the_package(site: Path, tmp_path: Path) -> None:
    found = imported_file("qat_tft.export", python=_python_of(site), cwd=tmp_path)
    assert found == site / "qat_tft" / "export" / "__init__.py"


def test_editable_install_imports_export_from_the_working_tree(tmp_path: Path) -> None:
    direct_url = distribution("qat-tft").read_text("direct_url.json") or ""
    if '"editable": true' not in direct_url:
        pytest.skip("qat-tft is not installed editable in this environment")
    found = imported_file("qat_tft.export", python=sys.executable, cwd=tmp_path)
    assert found == ROOT / "export" / "__init__.py"


def test_every_package_folder_is_named_in_pyproject() -> None:
    ours = {path.parent.relative_to(ROOT) for path in (ROOT / "qat_tft").rglob("__init__.py")}
    ours |= {"qat_tft" / path.parent.relative_to(ROOT) for path in (ROOT / "export").rglob("__init__.py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {".".join(folder.parts) for folder in ours}


def test_git_ignores_no_file_of_the_package() -> None:
    """A pattern such as `runs/` ignores a room of that name, and a clone would lack it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    sources = [str(path) for top in ("qat_tft", "export", "tests") for path in (ROOT / top).rglob("*.py")]
    words = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(words, input="\n".join(sources), capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == ""


def test_every_public_name_and_module_of_the_wheel_can_be_imported(site: Path, tmp_path: Path) -> None:
    assert imported_names(python=_python_of(site), cwd=tmp_path).is_relative_to(site)


def test_every_public_name_and_module_of_the_editable_install_can_be_imported(tmp_path: Path) -> None:
    assert imported_names(python=sys.executable, cwd=tmp_path).is_relative_to(ROOT)


def test_importing_the_package_brings_neither_torch_nor_onnxruntime(tmp_path: Path) -> None:
    program = "import sys, qat_tft; sys.exit(bool({'torch', 'onnxruntime', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=tmp_path).returncode == 0


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="forecast_everything"):
        qat_tft.forecast_everything  # noqa: B018


def test_every_requirement_is_pinned_to_a_release_inside_its_range() -> None:
    pins = read_pins()
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    for requirement in map(Requirement, chain(project["dependencies"], *extras)):
        pin = pins[canonicalize_name(requirement.name)]
        assert pin in requirement.specifier, f"{requirement} against {pin}"


def test_pins_name_no_build_of_torch_and_no_index() -> None:
    pins = read_pins()
    assert "+" not in pins["torch"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith("-") or "://" in line or " @ " in line]


def test_continuous_integration_runs_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    commands = [line for line in script.read_text().splitlines() if re.search(r"\bmake\b", line)]
    assert commands == ["exec make test"]


def run_pip(*arguments: str | Path) -> None:
    """Run this environment's pip, without a network, and show its output when it fails."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def imported_file(module: str, *, python: str | Path, cwd: Path) -> Path:
    """Return the file that a fresh interpreter imports `module` from."""
    return printed_path(f"import {module} as found; print(found.__file__)", python=python, cwd=cwd)


def printed_path(program: str, *, python: str | Path, cwd: Path) -> Path:
    """Run a program in a fresh interpreter, and return the path that it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [python, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()).resolve()


EVERYTHING = """
import importlib, pkgutil, qat_tft, qat_tft.export
assert len(qat_tft.__all__) > 20 and len(qat_tft.__all__) == len(set(qat_tft.__all__))
for name in qat_tft.__all__:
    assert getattr(qat_tft, name).__name__ == name, name
packages = (qat_tft, qat_tft.export)  # the editable install keeps export elsewhere
modules = {one.name for package in packages for one in pkgutil.walk_packages(package.__path__, package.__name__ + ".")}
assert len(modules) > 150 and "qat_tft.export.build.passes.widen_rows" in modules
for module in modules:
    importlib.import_module(module)
print(qat_tft.__file__)
"""


def imported_names(*, python: str | Path, cwd: Path) -> Path:
    """Import every public name and every module in a fresh interpreter; return the package's `__init__`."""
    return printed_path(EVERYTHING, python=python, cwd=cwd)


def read_pins() -> dict[str, str]:
    """Return package name -> release from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {str(canonicalize_name(name)): release for name, release in pairs}


def _built_wheel(tree: Path, out: Path) -> Path:
    run_pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, tree)
    (built,) = out.glob("qat_tft-*.whl")
    return built


def _checksums(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {member.filename: member.CRC for member in archive.infolist()}


def _python_of(site: Path) -> Path:
    return site.parents[2] / "bin" / "python"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
