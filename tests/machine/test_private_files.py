"""Private files: their owner's alone, whole or not there, and written in one place."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path

import pytest

from allranks.machine.private_files import make_private, private_file, write_private

PRODUCT = Path(__file__).parents[2] / "kernel_ext" / "allranks"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("content", ["ключ", "ключ".encode(), memoryview("ключ".encode())])
def test_it_is_its_owners_alone(content: str | bytes | memoryview, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "key", content)
    finally:
        os.umask(before)
    assert mode(tmp_path / "key") == 0o600
    assert (tmp_path / "key").read_text(encoding="utf-8") == "ключ"


def test_one_that_others_could_read_is_no_longer_theirs(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old")
    file.chmod(0o644)
    with file.open() as theirs:
        write_private(file, "new")
        assert theirs.read() == "old", "who has it open reads what was there"
    assert (mode(file), file.read_text()) == (0o600, "new")


def test_what_a_link_of_that_name_points_to_is_left_alone(tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "key"
    other.write_text("another's")
    file.symlink_to(other)
    write_private(file, "secret")
    assert other.read_text() == "another's" and not file.is_symlink() and file.read_text() == "secret"


def test_where_writing_fails_what_was_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old")
    with pytest.raises(TypeError), private_file(file) as half:
        half.writelines([b"new", "and no bytes"])  # type: ignore[list-item]
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    make_private(tmp_path / "ours")
    assert mode(tmp_path / "ours") == 0o700
    make_private(tmp_path / "ours")
    (tmp_path / "ours").chmod(0o755)
    with pytest.raises(PermissionError):
        make_private(tmp_path / "ours")


def test_no_other_module_makes_private_files() -> None:
    """`0o600` and ``mkstemp`` stand in `machine.private_files` alone, which opens logs, too."""
    elsewhere = [
        f"{path.relative_to(PRODUCT)}:{node.lineno}"
        for path in PRODUCT.rglob("*.py")
        if path != PRODUCT / "machine" / "private_files.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Constant) and node.value == 0o600)
        or (isinstance(node, ast.Attribute) and node.attr in ("mkstemp", "NamedTemporaryFile"))
    ]
    assert not elsewhere
