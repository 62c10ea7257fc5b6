"""environment.yml and pyproject.toml name the same things with the same versions."""

import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA: list[Any] = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
PIP: list[str] = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))

NO_PYTHON = {"python", "pip", "nodejs"}
"""What conda installs and pyproject cannot name (python is held against requires-python)."""

OF_CONDA = ("mpi", "demo", "lab")
"""Extras whose parts environment.yml names itself; it takes the others as extras of the editable install."""


def versions(lines: list[str]) -> dict[str, SpecifierSet]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements}


def named_in_environment() -> dict[str, SpecifierSet]:
    return versions([entry for entry in CONDA if isinstance(entry, str)] + [e for e in PIP if not e.startswith("-e")])


def editable_extras() -> set[str]:
    return set(Requirement("allranks" + next(e for e in PIP if e.startswith("-e")).removeprefix("-e .")).extras)


def named_in_project() -> dict[str, SpecifierSet]:
    extras = PROJECT["optional-dependencies"]
    return versions(PROJECT["dependencies"] + [line for extra in OF_CONDA for line in extras[extra]])


def test_what_the_environment_names_the_project_names() -> None:
    assert set(named_in_environment()) - NO_PYTHON == set(named_in_project())


def test_the_versions_are_the_same() -> None:
    project = named_in_project()
    differing = {
        name: f"environment.yml {specifier or '(any)'}, pyproject.toml {project[name] or '(any)'}"
        for name, specifier in named_in_environment().items()
        if name in project and specifier != project[name]
    }
    assert not differing


def test_the_python_versions_are_the_same() -> None:
    assert named_in_environment()["python"] == SpecifierSet(PROJECT["requires-python"])


def test_every_extra_is_in_the_environment_once() -> None:
    taken = editable_extras()
    assert taken.isdisjoint(OF_CONDA), "conda's own packages would be installed again by pip"
    instead_of_cpu = {"cuda12", "cuda13"}
    assert taken | set(OF_CONDA) | instead_of_cpu == set(PROJECT["optional-dependencies"])
