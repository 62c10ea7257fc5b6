"""The collective runtimes of MLX: ring, MPI, JACCL and NCCL. They plan worlds and start no ranks.

A backend implements `protocol.Backend` and is listed in `registry`. Runs in any process of allranks.
May call: ``plan``, ``protocol``.
"""
