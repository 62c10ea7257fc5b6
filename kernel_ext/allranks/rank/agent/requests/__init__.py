"""What the head may ask of a rank: the function that handles each type of request, by modules of ``messages.requests``.

Requests that run in the main thread touch the user's variables or MLX; the others are answered at once by the agent's
thread, or by one of their own, also while the main thread is blocked.

Runs in: a rank's process, where the type of the request says.
Called by: ``rank.agent.agent``.
May call: all rooms of the rank but ``rank.process``.
"""
