"""Requests of the head to a rank, each with the type of its answer.

A `Question` has an answer, a plain `Request` has none. The type also determines the thread of the rank that handles
the request: that decides which state the handler may touch, and whether it runs while the main thread is blocked in a
collective.

Runs in: every process of allranks.
Called by: ``cluster``, ``files``, ``head``, ``hosts``, ``lifeline``, ``notebook`` and ``timeline`` to send requests;
``rank`` to handle them.
May call: ``messages``.
"""

from .cell_requests import *
from .file_requests import *
from .introspection_requests import *
from .reach_requests import *
from .request import *
from .saved_state_requests import *
from .share_requests import *
from .transfer_requests import *
from .variable_requests import *
from .world_requests import *
