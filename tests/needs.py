"""What a test needs of the machine: missing on a user's machine it is skipped, missing in CI it fails.

A GPU is the exception, since CI has none: only `make gpu` insists on it.
"""

import os
import shutil

import pytest


def need(condition: object, reason: str) -> None:
    """Skip the running test unless ``condition`` holds; with ``CI=true`` fail it, so that no test is lost unseen."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have what this test needs: {reason}", pytrace=False)
    pytest.skip(reason)


def need_tool(name: str, install: str) -> str:
    """Path of a program, ``/usr/sbin`` included (sshd and ip live there); ``install`` says where to get it."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
    need(path, f"{name} is not installed ({install})")
    assert path is not None
    return path


def need_gpu(condition: object, reason: str) -> None:
    """Skip the running test unless ``condition`` holds; with ``ALLRANKS_GPU=1``, as `make gpu` sets it, fail it."""
    if condition:
        return
    if os.environ.get("ALLRANKS_GPU") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
