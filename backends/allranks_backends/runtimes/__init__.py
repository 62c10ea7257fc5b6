"""The collective runtimes of MLX, one file each: ring, MPI, JACCL, NCCL. Pure planning.

A backend is one file with the members of `protocol.Backend`, entered in `registry`. Runs in any process of ours.
May call: ``plan``, ``protocol``.
"""
