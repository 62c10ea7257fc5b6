"""Modules of the working folder: reloaded when their source has changed.

Runs in: a rank's main thread.
Called by: ``rank.agent``.
May call: nothing of ours but the types of ``messages``.
"""
