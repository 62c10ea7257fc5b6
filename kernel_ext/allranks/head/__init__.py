"""The state of the ranks, and the code that acts on it: stalls, consistency checks, forming, healing, unblocking.

Runs in: the notebook's kernel, a script, or a shell's command, next to the code that displays things.
Called by: ``cluster``, ``magics``, ``experiment`` and the subpackages of single verbs (``discovery``, ...);
``notebook`` reads its state.
May call: ``hosts``, ``lifeline``, ``pickling``, ``messages``, ``machine``, ``allranks_backends``, ``allranks_widgets``
for formatted figures. It draws nothing and never asks the user.
"""
