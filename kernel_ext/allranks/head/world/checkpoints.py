"""Checkpoints: variables in files on the ranks' hosts while processes are replaced, and a report of what was lost.

If all ranks must be restarted, no process is ended before each rank that stays has saved its variables and a trial
process on its host has loaded them. A file stays until a rank has loaded all of it: `down` does not remove it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TypeAlias, TypeVar

from allranks.errors import CannotStart
from allranks.head.state.known_rank import RETURNS_WITHIN, SavedVariables
from allranks.lifeline.open_questions import LOST, Reply, RequestFailed
from allranks.messages import requests
from allranks.messages.requests import Drop, Load, Loaded, Rescue, Save, Saved
from allranks_backends.plan import alike, rank_label

from .change import RankVariables, SavedFiles
from .ranks import Ranks

Say = Callable[[str], None]
"""Shows a line of text to the user while the world is changed."""

A = TypeVar("A", bound=requests.Answer)
Answers: TypeAlias = Mapping[int, Future[Reply[A]]]
"""Futures of answers by rank, as `Ranks.ask` returns them."""
WITHIN = 600.0
"""Seconds a rank gets to save its variables, or to load them."""
CAUSE_WITHIN = 3.0
"""Seconds to wait until the cause of a rank's death is known."""
ASIDE = "-left"
"""Suffix of the file with variables that could be saved but not loaded."""


def save(ranks: Ranks, numbers: Sequence[int], say: Say) -> dict[int, SavedVariables]:
    """Save the variables of these ranks to files, and `say` which variables the files lack.

    Raises CannotStart if a rank cannot save.
    """
    # Next to the cluster's folders, which `down` removes, and under a name that no earlier file can have.
    directories = {number: PurePath(ranks.processes.end_of_rank(number).directory) for number in numbers}
    unique = secrets.token_hex(3)
    paths = {
        number: str(directory.with_name(f"{directory.name}-variables-{unique}") / str(number))
        for number, directory in directories.items()
    }
    answers = dict[int, Future[Reply[Saved]]]()

    def drop(number: int, _answer: object = None) -> None:
        for each in (paths[number] + ASIDE, paths[number]):
            ranks.lifeline.ask(ranks.monitor.ranks[number].uuid, Drop(each))

    for number, path in paths.items():
        # The main thread of a blocked rank cannot save; another thread can.
        request = Rescue if ranks.monitor.busy([number]) else Save
        answers |= ranks.ask([number], request(path, path + ASIDE))
    given, failed = dict[int, SavedVariables](), dict[int, str]()
    for number in paths:
        try:
            saved = _answered(ranks, number, answers).answer
        except CannotAnswer as error:
            failed[number] = str(error)
        except KeyboardInterrupt:
            for each, asked in answers.items():
                asked.add_done_callback(partial(drop, each))  # the rank writes the file before it answers
            raise
        else:
            given[number] = SavedVariables(paths[number], ranks.monitor.ranks[number].host, saved)
    if failed:
        for number in paths:
            drop(number)
        said = [f"{rank_label(members)}: {error}" for error, members in alike(failed).items()]
        raise CannotStart(
            f"could not save variables; nothing was changed. {'; '.join(said)}. To copy a variable to the "
            "notebook: %distributed pull NAME"
        )
    missing = {number: text for number, each in given.items() if (text := _restored(each.saved).missing_text)}
    for text, members in alike(missing).items():
        say(f"{rank_label(members)}: saved all variables, except {text}.")
    return given


def load(ranks: Ranks, numbers: Iterable[int]) -> tuple[dict[int, RankVariables], tuple[SavedFiles, ...]]:
    """Have these ranks load the variables saved for them; return results by rank, and files with unloaded variables."""
    saved_for = saved_files(ranks.owed)
    files = {number: saved_for[number] for number in numbers if number in saved_for}
    answers = dict[int, Future[Reply[Loaded]]]()
    for number, each in files.items():
        answers |= ranks.ask([number], Load(each.path, invalid=each.saved.invalid))
    became = dict[int, RankVariables]()
    for number, each in files.items():
        try:
            became[number] = _restored(each.saved, _answered(ranks, number, answers).answer)
        except CannotAnswer as error:
            became[number] = RankVariables("lost", error=str(error))
        del ranks.owed[number]  # even if the rank died while loading: it would die again, and the result names its file
    left = {number: files[number] for number, rank in became.items() if rank.failed}
    return became, (*_files(left), *_files(files, aside=True))


def saved_files(owed: Mapping[int, SavedVariables | None]) -> dict[int, SavedVariables]:
    """Return the saved variables that ranks have not loaded yet, by rank."""
    return {number: saved for number, saved in owed.items() if saved is not None}


def where(files: Mapping[int, SavedVariables]) -> str:
    """Say how to load all saved files, after processes were ended and new ones could not be started.

    Empty if there are no files.
    """
    listed = [*_files(files), *_files(files, aside=True)]
    return " ".join(["The ranks' variables are saved.", *map(str, listed)]) if listed else ""


def _files(files: Mapping[int, SavedVariables], *, aside: bool = False) -> list[SavedFiles]:
    """Group the files with saved variables, each named after its rank, by host and folder.

    With `aside`, group instead the files with variables that could be saved but not loaded.
    """
    paths = {
        number: each.path + (ASIDE if aside else "") for number, each in files.items() if not aside or each.saved.failed
    }
    folders = {number: (str(PurePath(path).parent), files[number].host) for number, path in paths.items()}
    return [
        SavedFiles(tuple(members), host, tuple(paths[number] for number in members))
        for (_folder, host), members in alike(folders).items()
    ]


def copy(ranks: Ranks, source: int, targets: Sequence[int]) -> dict[int, RankVariables]:
    """Copy the variables of `source` to `targets`; targets that did not get them stay in `Ranks.owed`."""
    # Through a file on their host, or through the notebook if they do not share a host.
    file: str | None = None
    if all(ranks.hosts[target] == ranks.hosts[source] for target in targets):
        file = str(ranks.processes.end_of_rank(source).directory / "copy")

    def ask_to_save() -> Answers[Saved]:
        return ranks.ask([source], Save(file))

    def ask_to_load(numbers: Sequence[int]) -> Answers[Loaded]:
        return ranks.ask(numbers, Load(file, keep=file is not None, invalid=saved.invalid), reply.buffers)

    try:
        reply = _answered(ranks, source, ask_to_save(), again=ask_to_save)
    except CannotAnswer as error:
        because = f"rank {source} could not save its variables: {error}"
        return dict.fromkeys(targets, RankVariables("empty", source, because))
    saved = reply.answer
    loads = ask_to_load(targets)
    became = dict[int, RankVariables]()
    for number in targets:
        try:
            loaded = _answered(ranks, number, loads, again=partial(ask_to_load, [number])).answer
        except CannotAnswer as error:
            because = f"the variables of rank {source} could not be loaded ({error})"
            became[number] = RankVariables("empty", source, because)
            continue
        became[number] = replace(_restored(saved, loaded), how="copied", source=source)
        ranks.owed.pop(number, None)
    if file is not None:
        ranks.ask([source], Drop(file))
    return became


class CannotAnswer(Exception):
    """A rank did not do what it was asked to do; the message says why."""


def _answered(
    ranks: Ranks, number: int, answers: Answers[A], again: Callable[[], Answers[A]] | None = None
) -> Reply[A]:
    """Return a rank's answer; ask `again` if the rank lost its connection and reconnects.

    Raises CannotAnswer, also if the rank was not asked because it was dead.
    """
    rank = ranks.monitor.ranks[number]
    try:
        if number in answers:
            return answers[number].result(WITHIN)
    except RequestFailed as error:
        raise CannotAnswer(str(error)) from error
    except TimeoutError:
        raise CannotAnswer(f"no answer within {WITHIN:g} s") from None
    except ConnectionError as error:
        wait = ranks.monitor.wait
        if not wait(lambda: rank.dead is not None, CAUSE_WITHIN):
            if again is not None and wait(lambda: rank.connected or rank.dead is not None, RETURNS_WITHIN):
                return _answered(ranks, number, again(), again)
            raise CannotAnswer(str(error) or LOST) from None
    raise CannotAnswer(f"the rank died: {rank.dead or LOST}")


def _restored(saved: Saved, loaded: Loaded | None = None) -> RankVariables:
    """Report on a rank's variables that were `saved` and, if given, `loaded` in a new process."""
    return RankVariables(
        "restored",
        left=tuple(saved.left),
        unloadable=saved.failed,
        half_computed=tuple(saved.unsure),
        not_loaded=loaded.failed if loaded is not None else {},
        invalid=tuple(saved.invalid),
    )
