"""The agent: the thread of a rank that is awake when the main thread is blocked, and what it may be asked.

Runs in: a rank's process, mostly in the agent's thread.
Called by: ``rank.process``.
May call: all rooms of the rank but ``rank.process``.
"""
