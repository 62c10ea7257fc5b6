"""Files on the rank's host: the copy of the notebook's working folder, fetched files, and files shared between hosts.

Runs in: the ranks.
Called by: ``rank.agent``; ``allranks`` exports `shared_names.shared` for cells.
May call: ``messages`` and ``machine``.
"""
