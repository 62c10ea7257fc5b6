"""environment.yml and the conda recipe name what pyproject.toml names, with the same versions."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from allranks import __version__

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA: list[Any] = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "conda" / "recipe.yaml").read_text())
PIP: list[str] = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))

USED = ("demo", "experiment", "lm", "mpi")
"""Extras that our code imports where it is asked for what needs them."""

NO_PYTHON = {"python", "pip", "nodejs"}
"""What conda installs and pyproject cannot name (python is held against requires-python)."""

OF_CONDA = ("mpi", "demo", "lab")
"""Extras whose parts environment.yml names itself; it takes the others as extras of the editable install."""


def versions(lines: list[str]) -> dict[str, SpecifierSet]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements}


def imported() -> set[str]:
    """Top-level packages that our code imports, also in functions, except our own and Python's."""
    sources = [
        file for root in ("kernel_ext", "backends", "widgets") for file in (ROOT / root).glob("allranks*/**/*.py")
    ]
    found = set[str]()
    for node in (each for file in sources for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return {name for name in found if not name.startswith("allranks")} - sys.stdlib_module_names


def test_what_is_imported_is_declared() -> None:
    """A package that only comes along with another one may go with it."""
    extras = [each for extra in USED for each in PROJECT["optional-dependencies"][extra]]
    declared = versions(PROJECT["dependencies"] + extras).keys()
    distributions = packages_distributions()
    undeclared = {
        name for name in imported() if not declared & {canonicalize_name(each) for each in distributions.get(name, ())}
    }
    assert not undeclared


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


def test_the_conda_recipe_is_of_this_version_and_needs_what_the_project_needs() -> None:
    context = RECIPE["context"]
    assert context["version"] == __version__
    assert SpecifierSet(f">={context['python_min']}") == SpecifierSet(PROJECT["requires-python"])
    python, *run = RECIPE["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert versions(run) == versions(PROJECT["dependencies"])


def test_the_conda_recipe_has_the_projects_commands() -> None:
    assert RECIPE["build"]["python"]["entry_points"] == [
        f"{name} = {main}" for name, main in PROJECT["scripts"].items()
    ]
