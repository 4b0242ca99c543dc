"""Write THIRD-PARTY.md: what qat-tft depends on, under the licenses that the packages' own metadata state.

    python tools/third_party.py [FOLDER ...] > THIRD-PARTY.md

`make third-party` calls it. Packages are looked for in the running environment, and in the folders given.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageMetadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]

HEAD = """\
# Third-party software and data

What qat-tft depends on. None of these packages is part of qat-tft's own archives: pip installs them, each with its own
license text and the notices of what it bundles in turn. The licenses are those that the metadata of the releases in
`constraints.txt` state; where a package has builds of several kinds, such as torch with and without CUDA, those of the
CPU build. `make third-party` writes this page.

| package | license | needed for |
| --- | --- | --- |
"""

TAIL = """
The archives do contain the embedded data: hourly bike rentals by Hadi Fanaee-T and Joao Gama, licensed under Creative
Commons Attribution 4.0 International. `NOTICE` and `qat_tft/data/sample/embedded/NOTICE` give credit, source and
changes.
"""


def page(folders: list[str]) -> str:
    """Return the page.

    Raises:
        LookupError: a package is not installed, or its metadata state no license.
    """
    return HEAD + "".join(f"| {name} | {license_of(name, folders)} | {use} |\n" for name, use in packages()) + TAIL


def packages() -> Iterator[tuple[str, str]]:
    """Yield every package that pyproject.toml names, and what it is needed for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = {"every use": project["dependencies"]}
    groups |= {f"extra `{extra}`": named for extra, named in extras.items() if extra != "dev"}
    groups["development"] = extras["dev"]
    for use, named in groups.items():
        for requirement in map(Requirement, named):
            yield requirement.name, use


def license_of(name: str, folders: list[str]) -> str:
    """Return the license as the installed package states it: an SPDX expression, else classifiers, else a name.

    Raises:
        LookupError: the package is not installed, or states no license.
    """
    stated = _metadata(name, folders)
    if "License-Expression" in stated:
        return stated["License-Expression"]
    classifiers = [line.split(" :: ")[-1] for line in stated.get_all("Classifier", []) if line.startswith("License ::")]
    if classifiers:
        return ", ".join(classifiers)
    if "License" in stated:
        return stated["License"].splitlines()[0]
    raise LookupError(f"{name}: its metadata state no license")


def _metadata(name: str, folders: list[str]) -> PackageMetadata:
    for found in Distribution.discover(name=name, path=[*folders, *sys.path]):
        return found.metadata
    raise LookupError(f"{name} is not installed")


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1:]))
