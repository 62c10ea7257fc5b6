"""Events: reports to the head, from a rank or from a process that a scheduler started.

Each type says when it is sent. Events of a cell contain its number. `Output` and `Done` also contain `seq`: the rank
keeps them until the head acknowledges the cell, and sends them again after a reconnect. `CommMessages`, `LogCalls` and
`TaskEvent` are sent again by numbers of their own. `probe_answers` has the answers to the probe's questions.

Runs in: every process of allranks.
Called by: ``rank`` and ``lifeline``, which send them; ``head``, ``hosts``, ``cluster``, ``notebook`` and ``timeline``,
which handle them; ``probe`` for `probe_answers`.
May call: ``messages``.
"""

from .measures import *
from .output import *
from .reports import *
from .transfer_events import *
