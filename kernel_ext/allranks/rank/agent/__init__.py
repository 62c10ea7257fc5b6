"""The agent: the thread of a rank that runs even while the main thread is blocked, and the requests it handles.

Runs in: a rank's process, mostly in the agent's thread.
Called by: ``rank.process``.
May call: all other subpackages of ``rank`` except ``rank.process``, and the packages that these call.
"""
