"""Requests that set, read or describe the user's variables, or save them to a file and load them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from allranks.lifeline.open_questions import Reply
from allranks.machine.private_files import make_private, write_private
from allranks.messages import requests
from allranks.messages.host_messages import RankConfig
from allranks.messages.requests import Nothing
from allranks.messages.value_types import Namespace
from allranks.pickling import pickle_values
from allranks.rank.arrays import array_status
from allranks.rank.cell.changed_names import CellNames
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.main_thread.running_cell import RunningCell
from allranks.rank.values import checkpoint, describe_variables, process_state
from allranks.rank.values.ask_trial_load import Beginning, TrialLoad, try_to_load
from allranks.rank.world.given_names import GivenNames
from allranks.rank.world.membership import World

from .handler_table import Buffers, RequestTable


class VariableHandlers(RequestTable):
    def __init__(self, rank: int, user_ns: Namespace, names: GivenNames, ledger: Ledger, cell: RunningCell) -> None:
        super().__init__()
        self._rank, self._user_ns, self._names, self._ledger, self._cell = rank, user_ns, names, ledger, cell
        self._pushed: tuple[int, Namespace] | None = None
        """Number of an undecided push, and the variables to bind once all ranks have loaded theirs; else None."""
        self.confirm(requests.Push, self._push)
        self.confirm(requests.DecidePush, self._decide_push)
        self.answer(requests.Pull, self._pull)
        self.answer(requests.Describe, self._describe)
        self.answer(requests.DescribeLeaves, self._describe_leaves)
        self.answer(requests.PullLeaf, self._pull_leaf)

    def _push(self, request: requests.Push, buffers: Buffers) -> None:
        self._pushed = None  # frees the variables of a notebook that ended before it had decided
        self._pushed = (request.push, pickle_values.unpack(buffers, take=True))

    def _decide_push(self, request: requests.DecidePush, _: Buffers) -> None:
        """Bind or drop the pushed variables. Raises LookupError if the rank no longer holds the values to bind."""
        number, pushed = self._pushed or (None, {})
        if number == request.push:
            if request.bind:
                self._user_ns.update(pushed)
            self._pushed = None
        elif request.bind:
            raise LookupError("the rank no longer holds these values")

    def _pull(self, request: requests.Pull, _: Buffers) -> Reply[Nothing]:
        value = self._named(request.name)
        if not request.computed_only:
            return Reply(Nothing(), pickle_values.pack(value))
        # Other ranks may be at another step, so no collective may be entered. A collective that was entered already
        # ends, since all ranks enter their collectives in the same order.
        reader, arrays = array_status.reader, list(pickle_values.arrays_to_pack(value))
        if arrays and reader is None:
            raise RuntimeError("with this version of MLX, no arrays can be pulled while a cell runs")
        if reader is not None and any(reader.is_pending(array) is not False for array in arrays):
            raise RuntimeError("it is not evaluated yet: while a cell runs, only evaluated arrays can be pulled")
        # Copies, since the user's loop goes on while they are sent.
        return Reply(Nothing(), [bytes(each) for each in pickle_values.pack(value)])

    def _describe(self, request: requests.Describe, _: Buffers) -> Reply[requests.DescribedVariables]:
        held = self._names.user_variables()
        if request.names:
            held = {name: value for name, value in held.items() if name in request.names}
        arrays = self._ledger.invalid
        on_its_way, invalid = arrays.on_its_way(), set(arrays.names(held))
        described = describe_variables.describe(held, on_its_way, invalid, compared=not self._cell.running)
        return Reply(requests.DescribedVariables(described))

    def _describe_leaves(self, request: requests.DescribeLeaves, _: Buffers) -> Reply[requests.Leaves]:
        on_its_way = self._ledger.invalid.on_its_way()
        return Reply(requests.Leaves(describe_variables.describe_leaves(self._named(request.name), on_its_way)))

    def _pull_leaf(self, request: requests.PullLeaf, _: Buffers) -> Reply[Nothing]:
        return Reply(Nothing(), pickle_values.pack(describe_variables.leaf_at(self._named(request.name), request.path)))

    def _named(self, name: str) -> object:
        """Return the value of a dotted path. Raises NameError if there is none."""
        root, *path = name.split(".")
        if root not in self._user_ns:
            raise NameError(f"rank {self._rank} has no variable {root!r} (%distributed vars lists them)")
        value = self._user_ns[root]
        for part in path:
            if not hasattr(value, part):
                raise NameError(f"rank {self._rank} has no {name!r}: {type(value).__name__} has no {part!r}")
            value = getattr(value, part)
        return value


class CheckpointHandlers(RequestTable):
    def __init__(
        self,
        config: RankConfig,
        beginning: Beginning,
        world: World,
        user_ns: Namespace,
        names: GivenNames,
        cell_names: CellNames,
        ledger: Ledger,
    ) -> None:
        super().__init__()
        self._config, self._beginning, self._world, self._ledger = config, beginning, world, ledger
        self._user_ns, self._names, self._cell_names = user_ns, names, cell_names
        self._loaded: dict[Path, requests.Loaded] = {}
        """By path, the answer for a file that must not be loaded again."""
        self.answer(requests.Save, self._save)
        self.answer(requests.Rescue, self._rescue)
        self.answer(requests.Load, self._load)
        self.confirm(requests.Drop, lambda request, _: _remove(Path(request.path)))

    def _save(self, request: requests.Save, _: Buffers) -> Reply[requests.Saved]:
        state = process_state.taken(self._beginning.environment, self._world.environment)
        variables = {**self._names.user_variables(), process_state.NAME: state}
        path = self._file(request.path)
        saved = self._saved(checkpoint.save, variables, path, request.aside)
        if request.path is not None:
            return Reply(saved)
        # Without a path, the checkpoint is for a rank on another host and is sent as bytes.
        try:
            return Reply(saved, [path.read_bytes()])
        finally:
            path.unlink()

    def _rescue(self, request: requests.Rescue, _: Buffers) -> Reply[requests.Saved]:
        """Save the variables that are bound to the same objects as when the blocked cell began.

        MLX would save arrays that the cell has made since even if they are half computed.
        """
        variables = self._names.user_variables()
        old = {name: value for name, value in variables.items() if self._cell_names.was_bound(name)}
        unsure = [name for name in variables if name not in old]
        return Reply(self._saved(checkpoint.rescue, old, Path(request.path), request.aside, unsure))

    def _file(self, path: str | None) -> Path:
        return Path(path or Path(self._config.directory, "carried"))

    def _saved(
        self,
        save: Callable[..., checkpoint.SavedCheckpoint],
        variables: Namespace,
        path: Path,
        aside: str | None,
        unsure: Sequence[str] = (),
    ) -> requests.Saved:
        if aside is not None:
            make_private(path.parent)
        size = self._world.group.size() if self._world.group is not None else 1

        def attempt(file: Path) -> TrialLoad:
            return try_to_load(file, self._beginning, self._config.rank, size)

        saved: checkpoint.SavedCheckpoint = save(path, variables, attempt, Path(aside) if aside is not None else None)
        return requests.Saved(saved.left, saved.failed, list(self._ledger.invalid.names(variables)), list(unsure))

    def _load(self, request: requests.Load, buffers: Buffers) -> Reply[requests.Loaded]:
        """Load the variables in a file or in the buffers.

        The file at a given path stays if `keep` is set, or if part of it could not be loaded. Without `keep`, it is
        loaded only once.
        """
        path = self._file(request.path)
        if path in self._loaded and not buffers:  # the notebook was interrupted before it got the answer
            return Reply(self._loaded[path])
        if buffers:
            write_private(path, buffers[0])
        loaded = checkpoint.load(path, self._user_ns)
        for name in set(request.invalid) & set(loaded.names):
            self._ledger.invalid.mark(self._user_ns[name])
        self._names.hand_out()
        failed = loaded.failed | (process_state.restore(loaded.state) if loaded.state is not None else {})
        if buffers or not (failed or request.keep):
            _remove(path)
        answer = requests.Loaded(failed)
        if not buffers and not request.keep:
            self._loaded[path] = answer
        return Reply(answer)


def _remove(path: Path) -> None:
    """Remove a file of variables, and its folder if that is then empty."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()
