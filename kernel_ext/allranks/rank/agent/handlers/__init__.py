"""Handlers of the requests that the head sends to a rank.

Most requests that touch the user's variables or MLX run in the main thread. The agent's thread, or a thread of their
own, answers the other requests at once, even while the main thread is blocked.

Runs in: a rank's process, in the thread that the type of the request names.
Called by: ``rank.agent.agent``.
May call: all subpackages of ``rank`` except ``rank.process``, and the packages that these call.
"""
