"""Which of our own files a text points into: what a user is shown points into none."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("allranks", "allranks_backends", "allranks_widgets", "ipyparallel")
_FILES = re.compile(rf"(?=\b({'|'.join(PACKAGES)})/([^\n\"':]+?\.py)\b)")


def frames_of_ours(text: str) -> list[str]:
    """Files of our packages, or of ipyparallel, that stand in the text as a traceback names them.

    Only files that the packages have: what lies below a folder that is merely called allranks, as a clone is, does not
    count.
    """
    return [f"{package}/{file}" for package, file in _FILES.findall(text) if (_folder(package) / file).is_file()]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
