"""Checkpoints: variables in files on the ranks' hosts while processes are replaced, and a report of what was lost.

Nothing is ended before each rank has saved its variables and another process on its host has shown that they load. A
file is removed only by the rank that has loaded all of it: `down` leaves it where it is.
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
from allranks.messages import requests
from allranks.messages.questions import LOST, Reply, RequestFailed
from allranks.messages.requests import Drop, Load, Loaded, Rescue, Save, Saved
from allranks_backends.plan import alike, rank_label

from .change import RankVariables, SavedFiles
from .ranks import Ranks

Say = Callable[[str], None]
"""Takes a line of text before anything is ended."""

A = TypeVar("A", bound=requests.Answer)
Answers: TypeAlias = Mapping[int, Future[Reply[A]]]
"""By rank, as `Ranks.ask` gives them."""
WITHIN = 600.0
"""Seconds a rank gets to save its variables, or to load them."""
CAUSE_WITHIN = 3.0
"""Seconds in which the cause of a rank's death becomes known."""
ASIDE = "-left"
"""Added to the name of a file, for what could be saved and not be loaded."""


def save(ranks: Ranks, numbers: Sequence[int], say: Say) -> dict[int, SavedVariables]:
    """Save the variables of these ranks to files, and `say` what these lack.

    Raises CannotStart where a rank could not.
    """
    # Beside the cluster's folders, which `down` removes, and never where an earlier file may still be.
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
        # The main thread of a rank that is blocked indefinitely saves nothing; another thread can.
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
                asked.add_done_callback(partial(drop, each))  # only then is there a file
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
    """Have these ranks load what is saved for them: what became of it, and the files of what is not loaded."""
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
        del ranks.owed[number]  # also where the rank died of it, as it would again: its file is named
    left = {number: files[number] for number, rank in became.items() if rank.failed}
    return became, (*_files(left), *_files(files, aside=True))


def saved_files(owed: Mapping[int, SavedVariables | None]) -> dict[int, SavedVariables]:
    """What is saved for ranks and not loaded yet."""
    return {number: saved for number, saved in owed.items() if saved is not None}


def where(files: Mapping[int, SavedVariables]) -> str:
    """How to get at all of it, after the processes were ended and no new ones came."""
    listed = [*_files(files), *_files(files, aside=True)]
    return " ".join(["The ranks' variables are saved.", *map(str, listed)]) if listed else ""


def _files(files: Mapping[int, SavedVariables], *, aside: bool = False) -> list[SavedFiles]:
    """These files, which are named after their ranks: those of one folder together.

    `aside`: those of what could be saved and not be loaded.
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
    """Give `targets` the variables of `source`; those that did not get them still await them."""
    # Through a file on their host, or, where they do not share one, through the notebook.
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
    """Why a rank did not do what it was asked."""


def _answered(
    ranks: Ranks, number: int, answers: Answers[A], again: Callable[[], Answers[A]] | None = None
) -> Reply[A]:
    """What a rank answered; asked `again` where it has lost its connection and connects once more.

    Raises CannotAnswer, also where it was not asked, as a dead one is not.
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
    """What there is of a rank's variables that were `saved`, and, so far, `loaded` in a new process."""
    return RankVariables(
        "restored",
        left=tuple(saved.left),
        unloadable=saved.failed,
        half_computed=tuple(saved.unsure),
        not_loaded=loaded.failed if loaded is not None else {},
        invalid=tuple(saved.invalid),
    )
