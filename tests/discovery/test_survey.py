"""Many questions to a host in one go."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from allranks.discovery import survey as survey_module
from allranks.discovery.survey import survey
from allranks_backends.plan import Host

HERE = Host("localhost")


def test_each_command_has_its_own_answer() -> None:
    commands = {
        "both": "echo hi; echo ü >&2; exit 3",
        "lines": "printf 'a\\nb'",
        "none": "nonsuch --version",
        "quiet": ":",
    }
    (here,) = survey([HERE], commands)
    assert here.trouble == ""
    assert (here.answers["both"].out, here.answers["both"].err, here.answers["both"].code) == ("hi\n", "ü\n", 3)
    assert here.out("lines") == "a\nb"
    assert here.answers["none"].code == 127 and here.out("none") == ""
    assert here.answers["quiet"].ok and here.out("quiet") == ""
    assert here.out("never asked") == ""
    assert here.between[0] <= here.between[1]


def test_answers_may_look_like_the_frame_around_them() -> None:
    (here,) = survey([HERE], {"odd": "echo 'abc 0 0 5 5'; printf '\\377\\000x'"})
    assert here.out("odd").startswith("abc 0 0 5 5\n") and here.out("odd").endswith("x")


def test_a_command_that_does_not_end_costs_only_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "COMMANDS_WITHIN", 5)
    (here,) = survey([HERE], {"slow": "echo begun; sleep 300", "fast": "echo there"})
    assert here.answers["slow"].code is None and not here.answers["slow"].ok
    assert here.out("fast") == "there\n"


def test_a_login_may_last_as_long_as_the_caller_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    class Noted(threading.Timer):
        def __init__(self, interval: float, *rest: Any) -> None:
            limits.append(interval)
            super().__init__(interval, *rest)

    monkeypatch.setattr(threading, "Timer", Noted)
    survey([HERE], {"say": "echo hi"}, lambda _: 90)
    survey([HERE], {"say": "echo hi"})
    assert limits == [90 + survey_module.LOGIN_WITHIN, survey_module.COMMANDS_WITHIN + survey_module.LOGIN_WITHIN]


def test_a_host_that_is_not_there_is_named_with_what_to_do() -> None:
    here, there = survey([HERE, Host("nohost.invalid", local=False)], {"say": "echo hi"})
    assert here.out("say") == "hi\n" and not here.trouble
    assert "unknown host name" in there.trouble and there.answers == {}


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for _ in range(10):
        (here,) = survey([HERE], {"say": "echo hi"})
        assert here.out("say") == "hi\n"
        assert not list(tmp_path.iterdir())


def test_the_pipes_of_a_process_that_reads_nothing_are_closed() -> None:
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always", ResourceWarning)
        assert survey_module._run(["true"], bytes(1 << 20), b"end", 15.0) == (b"", b"")
    assert not unclosed
