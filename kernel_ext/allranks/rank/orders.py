"""What the notebook may ask of a rank: one method an order, each with its answer's header and buffers.

Those in `IN_MAIN` touch the user's variables or MLX and run in the main thread once that is idle; the others answer at
once from the agent's thread, also while the main thread is blocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import carry, look, values, variables
from .lifeline import Header
from .pending import names_in, pending_names, settle
from .trace import TRACE, now

if TYPE_CHECKING:
    from .agent import Agent

Answer = tuple[Header, list[Any]]
IN_MAIN = frozenset(
    {"variables", "leaves", "leaf", "form", "push", "pull", "save", "load", "replay", "settle", "look_back", "console"}
)
IN_THREAD = frozenset({"rescue"})
"""Those that may take long while the main thread is blocked."""
AT_ONCE = (
    "drop",
    "interrupt",
    "free",
    "records",
    "clock",
    "timeline",
    "open",
    "pending",
    "refuse",
    "debug",
    "complete",
    "inspect",
    "acknowledge",
    "comms",
    "comms_taken",
    "exit",
    "die",
)
KNOWN = IN_MAIN | IN_THREAD | frozenset(AT_ONCE)


class Orders:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def form(self, header: Header, _: Sequence[Any]) -> Answer:
        return self._agent.world.form(header), []

    def push(self, header: Header, buffers: Sequence[Any]) -> Answer:
        pushed = values.unpack(buffers)
        self._agent.user_ns.update(pushed)
        return {"names": list(pushed)}, []

    def pull(self, header: Header, _: Sequence[Any]) -> Answer:
        return {}, values.pack(self._named(header["name"]))

    def variables(self, header: Header, _: Sequence[Any]) -> Answer:
        """Describe the user's variables, or those of these `names`; evaluates nothing."""
        held = self._agent.user_variables()
        if names := header.get("names"):
            held = {name: value for name, value in held.items() if name in names}
        void = self._agent.ledger.void
        names, on_its_way = void.names(held), void.on_its_way()
        described = variables.describe(held, on_its_way)
        return {"variables": [{**each, "void": each["name"] in names} for each in described]}, []

    def leaves(self, header: Header, _: Sequence[Any]) -> Answer:
        """Describe each leaf of one variable; evaluates nothing."""
        on_its_way = self._agent.ledger.void.on_its_way()
        return {"leaves": variables.describe_leaves(self._named(header["name"]), on_its_way)}, []

    def leaf(self, header: Header, _: Sequence[Any]) -> Answer:
        """The value of one leaf."""
        return {}, values.pack(variables.leaf_at(self._named(header["name"]), header["path"]))

    def _named(self, name: str) -> Any:
        """The value of a dotted path. Raises NameError."""
        root, _, path = name.partition(".")
        if root not in self._agent.user_ns:
            raise NameError(f"no variable {root!r} on rank {self._agent.config.rank}")
        value = self._agent.user_ns[root]
        for part in path.split(".") if path else ():
            value = getattr(value, part)
        return value

    def save(self, header: Header, _: Sequence[Any]) -> Answer:
        """Write the user's variables to a file of the cluster's, for a process that takes over."""
        variables = self._agent.user_variables()
        path = Path(header.get("path") or Path(self._agent.config.directory, "carried"))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        left, void = carry.save(path, variables), self._agent.ledger.void.names(variables)
        if "path" in header:
            return {"left": left, "void": void}, []
        # For a rank on another host: as bytes.
        try:
            return {"left": left, "void": void}, [path.read_bytes()]
        finally:
            path.unlink()

    def rescue(self, header: Header, _: Sequence[Any]) -> Answer:
        """`save`, while the main thread is blocked for good.

        What the blocked cell has bound is left out: it may be half computed, and MLX lets other threads read that.
        """
        variables = self._agent.user_variables()
        old = {name: value for name, value in variables.items() if self._agent.cell.names.was_bound(name)}
        unsure = [name for name in variables if name not in old]
        path = Path(header["path"])
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return {"left": carry.rescue(path, old), "unsure": unsure}, []

    def load(self, header: Header, buffers: Sequence[Any]) -> Answer:
        """Take over the variables in a file that `save` wrote, or in its bytes."""
        path = Path(header.get("path") or Path(self._agent.config.directory, "carried"))
        if buffers:
            path.touch(mode=0o600)
            path.write_bytes(buffers[0])
        loaded = carry.load(path)
        self._agent.user_ns.update(loaded)
        for name in set(header.get("void", ())) & loaded.keys():
            self._agent.ledger.void.mark(loaded[name])
        self._agent.world.set_names()
        if not header.get("keep"):
            path.unlink()
        return {}, []

    def drop(self, header: Header, _: Sequence[Any]) -> Answer:
        """Remove a file that `save` wrote."""
        Path(header["path"]).unlink(missing_ok=True)
        return {}, []

    def interrupt(self, header: Header, _: Sequence[Any]) -> Answer:
        """Stop a cell: a blocked collective is freed where that is possible, Python code gets a SIGINT."""
        cell, number = self._agent.cell, header.get("cell")
        if number is not None:
            cell.stop(number)  # before looking whether it runs: it may begin between the two
        if number is None or (cell.running and number == cell.number):
            self._agent.freeing.stop()
        return {}, []

    def free(self, header: Header, _: Sequence[Any]) -> Answer:
        """Make the collective this rank waits in raise; nothing happens if it waits in none."""
        if header["cell"] == self._agent.cell.number:
            self._agent.freeing.free()
        return {}, []

    def records(self, header: Header, _: Sequence[Any]) -> Answer:
        """The collectives this rank asked for after number `after`."""
        after = header["after"]
        records = [list(record) for record in self._agent.ledger.since(after)]
        return {"records": records, "swapped": self._agent.ledger.swapped(after)}, []

    def clock(self, header: Header, _: Sequence[Any]) -> Answer:
        """What this machine's clock says now."""
        return {"now": now()}, []

    def timeline(self, header: Header, _: Sequence[Any]) -> Answer:
        """What was recorded of this cell."""
        return {"timeline": TRACE.told(header["cell"], self._agent.cell.file)}, []

    def replay(self, header: Header, _: Sequence[Any]) -> Answer:
        """Enter collectives this rank missed, with zeros, so that those blocked in them return."""
        self._agent.ledger.replay(header["records"])
        return {"seq": self._agent.ledger.seq}, []

    def settle(self, _header: Header, _: Sequence[Any]) -> Answer:
        """Evaluate what the user's variables, and the frames of what the last cell raised, want from collectives."""
        settle([*self._agent.user_ns.items(), *self._agent.debugger.held()])
        return {"seq": self._agent.ledger.seq}, []

    def open(self, header: Header, _: Sequence[Any]) -> Answer:
        """The ranks agree on the next collective, or they do not (`refusal` says how)."""
        if header["cell"] == self._agent.cell.number:
            self._agent.gate.open(header.get("refusal"))
        return {}, []

    def pending(self, header: Header, _: Sequence[Any]) -> Answer:
        """Which variables that `code` mentions wait for a collective."""
        if self._agent.ledger.seq == 0:
            return {"names": []}, []
        return {"names": pending_names(self._agent.user_ns, names_in(header["code"]))}, []

    def refuse(self, header: Header, _: Sequence[Any]) -> Answer:
        """The world is broken elsewhere: enter no more collectives in it."""
        self._agent.ledger.refuse = header["because"]
        return {}, []

    def complete(self, header: Header, _: Sequence[Any]) -> Answer:
        return {"matches": look.complete(self._agent.shell, header["code"], header["cursor"])}, []

    def inspect(self, header: Header, _: Sequence[Any]) -> Answer:
        return {"found": look.inspect(self._agent.user_ns, header["name"], header.get("detail", 0))}, []

    def acknowledge(self, header: Header, _: Sequence[Any]) -> Answer:
        self._agent.cell.acknowledge(header["cell"])
        return {}, []

    def comms(self, header: Header, buffers: Sequence[Any]) -> Answer:
        """What the user did to this rank's widgets; handled once the main thread is idle."""
        self._agent.comms.deliver(header["number"], header["letters"], buffers)
        return {}, []

    def comms_taken(self, header: Header, _: Sequence[Any]) -> Answer:
        """The notebook has what the widgets said up to this `number`, and wants more in `every` seconds."""
        self._agent.comms.taken(header["number"], header["every"])
        return {}, []

    def look_back(self, _header: Header, _: Sequence[Any]) -> Answer:
        """Stay in the frames of what the last cell raised; the answer comes when that is over."""
        self._agent.debugger.look_back()
        return {}, []

    def console(self, _header: Header, _: Sequence[Any]) -> Answer:
        """Listen for a console on this host; the answer names the connection file."""
        return {"file": self._agent.open_console()}, []

    def debug(self, header: Header, _: Sequence[Any]) -> Answer:
        """Give the debugger a command."""
        self._agent.debugger.put(header["number"], header["command"])
        return {}, []

    def exit(self, header: Header, _: Sequence[Any]) -> Answer:
        """End cleanly if the main thread is free; the host process ends the rank otherwise."""
        self._agent.debugger.put(0, None)
        self._agent.call_main(self._agent.config.stop)
        return {}, []

    def die(self, header: Header, _: Sequence[Any]) -> Answer:
        """End at once, whatever the main thread is blocked in."""
        self._agent.end_process()
        return {}, []
