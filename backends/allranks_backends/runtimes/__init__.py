"""The collective runtimes of MLX, one file each: ring, MPI, JACCL, NCCL. Pure planning.

A backend implements `protocol.Backend` and is listed in `registry`. Runs in any process of allranks.
May call: ``plan``, ``protocol``.
"""
