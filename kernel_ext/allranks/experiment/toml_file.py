"""``python -m allranks experiment FILE``: an experiment described in TOML.

    name = "scaling"                  # the file's name if it is left out
    function = "train.py:train"       # or: notebook = "train.ipynb"

    [grid]
    n = [1, 2, 4]
    batch = [32, 64]

``folder``, ``fresh``, ``repeat``, ``timeout`` and ``busbw`` are as in `Experiment`; paths are relative to the file.
"""

from __future__ import annotations

import runpy
import sys
import tomllib
from difflib import get_close_matches
from pathlib import Path

from allranks.errors import AllranksError, UsageError

from .experiment import Experiment
from .function_run import Function

OPTIONS = {"fresh": "true or false", "repeat": "a whole number", "timeout": "seconds", "busbw": "true or false"}
KEYS = {**dict.fromkeys(("name", "function", "notebook", "folder"), "a text"), "grid": "a table", **OPTIONS}
"""Maps each key to the kind of value that it takes, in words."""
TYPES = {"a text": (str,), "a table": (dict, list), "true or false": (bool,), "a whole number": (int,)}
"""Maps kinds of values in `KEYS` to Python types; every other kind is a number."""
SHOWN = 60
"""Maximum characters of a value in the printed table."""


def read(path: Path) -> Experiment:
    """Return the experiment that a file describes. Raises UsageError."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    for key in told:
        if key not in KEYS:
            close = get_close_matches(key, KEYS, 1)
            raise UsageError(f"{path}: unknown key {key!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        types, value = TYPES.get(KEYS[key], (int, float)), told[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UsageError(f"{path}: {key} takes {KEYS[key]}, not {value!r}.")
    if ("function" in told) == ("notebook" in told):
        raise UsageError(f'{path}: set what to run: notebook = "train.ipynb" or function = "train.py:train".')
    name = told.get("name", path.stem)
    here = path.resolve().parent
    run = here / told["notebook"] if "notebook" in told else _function(path, told["function"])
    folder = here / told.get("folder", f"runs/{name}")
    given = {key: told[key] for key in OPTIONS if key in told}
    return Experiment(name, run, told.get("grid", {}), folder=folder, **given)


def _function(path: Path, told: str) -> Function:
    """Return the function that ``train.py:train`` names. Raises UsageError."""
    file, _, name = told.rpartition(":")
    source = path.resolve().parent / file
    if not file or not source.is_file():
        raise UsageError(f'{path}: invalid function = "{told}": use FILE:FUNCTION, with FILE next to this one.')
    if str(source.parent) not in sys.path:  # as `python train.py` would, for the modules beside it
        sys.path.insert(0, str(source.parent))
    names = runpy.run_path(str(source))
    if not callable(names.get(name)):
        raise UsageError(f"{path}: {file} has no function {name!r}.")
    function: Function = names[name]
    return function


def main(file: str, again: str | None) -> int:
    """Run the unfinished runs of the experiment in `file`, print the results, and return the exit code.

    The exit code is 1 if a run failed, 2 if nothing could be run, and 130 after Ctrl-C. For `again` see
    `Experiment.run`.
    """
    try:
        experiment = read(Path(file))
        table = experiment.run(again=again)
    except AllranksError as error:
        print(f"allranks experiment: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("allranks experiment: stopped. Finished runs are saved; the same command continues.", file=sys.stderr)
        return 130
    shown = table[[name for name in table.columns if not name.startswith("world.") and name not in ("at", "code")]]
    print(shown.drop(columns=["run", "folder"]).to_string(index=False, max_colwidth=SHOWN, na_rep=""))
    print(repr(experiment).strip("<>"))
    return int((table["status"] == "failed").any())
