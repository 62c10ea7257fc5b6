"""The report as a Markdown page, for readers who have never seen such a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from allranks.machine.jaccl_systems import SWITCH
from allranks.messages.events.probe_answers import ProbeAnswer, ProbeCheck
from allranks.units import duration_text, size_text

from .probe_questions import ENDINGS, GPUS, MACHINE, QUESTIONS, RDMA, ProbeQuestion
from .probe_verdict import Report, Verdict, as_expected

SECTIONS: Sequence[tuple[str, Sequence[ProbeQuestion]]] = (
    ("The machine", MACHINE),
    ("RDMA: devices and the driver's functions", [each for group in RDMA for each in group.questions]),
    ("RDMA: resources of a process that has ended", [each for group in ENDINGS for each in group.questions]),
    ("NVIDIA GPUs", GPUS),
)
MANY = 3
"""This many or more questions that could not be asked for the same reason are merged into one line."""
NOT_ASKED = "could not be asked"
INTRO = """\
Written by `python -m allranks probe`. allranks runs notebook cells on several MLX processes (ranks) at once; a world is
a group of ranks, joined by a backend such as `ring` (TCP), `jaccl` (RDMA over Thunderbolt), `mpi` or `nccl`.

Each question is answered by *yes*, *no* or *could not be asked*, with the reason. An answer that is not as expected is
marked **!** and listed first."""
IN_PLACE = """\
MLX's JACCL waits indefinitely for a rank that is lost. In place, allranks unblocks the ranks that wait, and they go on
in the same processes, with all variables. It is switched off on each version of macOS until a report like this one
shows that it works there."""
OUTRO = """## This report

Schema {}. The file `allranks-probe.json` beside it has the same, for programs."""


def page(report: Report) -> str:
    """The page as text that ends with a newline."""
    parts = [
        f"# Probe of {_title(report)}",
        INTRO,
        _result(report),
        _machine(report),
        f"## Abort collectives of JACCL in place\n\n{IN_PLACE}\n\n{verdict_text(report.verdict)}",
        *(f"## {title}\n\n{_answers(report, questions)}" for title, questions in SECTIONS),
        f"## Worlds of ranks\n\n{_worlds(report)}",
        OUTRO.format(report.schema),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def result_text(report: Report) -> str:
    """Sentences such as ``3 of 21 answers are not as expected; 8 could not be asked. It took 4 min.``"""
    skipped = sum(each.given == "not asked" and not each.failed for each in report.answers)
    skipped += sum(each.result == "not available" for each in report.checks)
    total, wrong = len(report.answers) + len(report.checks), len(report.unexpected())
    said = f"{wrong} of {total} answers are not as expected" if wrong else f"No answer of {total} is unexpected"
    stopped = "" if report.complete else " It was stopped before all was asked."
    return f"{said}; {skipped} could not be asked. It took {duration_text(report.seconds)}.{stopped}"


def verdict_text(verdict: Verdict) -> str:
    may = {"yes": "yes", "no": "no", "not asked": "not known"}[verdict.in_place]
    if not verdict.macos:
        return f"This is not macOS: it is not switched off here. A Mac with these answers: {may}. {verdict.why}"
    said = f"May it be switched on for macOS {verdict.macos}? **{may.capitalize()}.** {verdict.why}"
    if verdict.listed:
        return f"{said} In this version of allranks it is."
    if verdict.in_place != "yes":
        return f"{said} It stays off there unless `{SWITCH}=1` is set for the ranks."
    line = f'    "{verdict.macos}": "<address of the issue with this report>",'
    return f"{said} To do so, add this line to `PROVEN` in `kernel_ext/allranks/machine/jaccl_systems.py`:\n\n{line}"


def _title(report: Report) -> str:
    machine = report.machine
    return " ".join(filter(None, [machine.model, f"({machine.system} {machine.release})", f"on {report.date}"]))


def _result(report: Report) -> str:
    lines = [f"**{result_text(report)}**"]
    wrong = [f"- **!** {_cell(_answer_line(each))}" for each in report.answers if not as_expected(each)]
    failed = [each for each in report.checks if each.result == "failed"]
    wrong += [f"- **!** {_cell(f'{each.world}: {each.name}: {each.detail}')}" for each in failed]
    return "\n\n".join([*lines, "\n".join(wrong)] if wrong else lines)


def _answer_line(answer: ProbeAnswer) -> str:
    return f"{QUESTIONS[answer.question].text} {_given(answer)}" + (f": {answer.detail}" if answer.detail else "")


def _machine(report: Report) -> str:
    machine = report.machine
    rows = [
        ("system", f"{machine.system} {machine.release}"),
        ("model", machine.model or "not known"),
        ("processor", f"{machine.chip or 'not known'}, {machine.cores} cores"),
        ("memory", size_text(machine.memory)),
        ("Python", machine.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items())),
    ]
    return _table(("what", "which"), rows)


def _answers(report: Report, questions: Iterable[ProbeQuestion]) -> str:
    by_name = {each.question: each for each in report.answers}
    found = [by_name[question.name] for question in questions if question.name in by_name]
    because = Counter(each.detail for each in found if each.given == "not asked" and not each.failed)
    rows = []
    for answer in found:
        count = 0 if answer.failed or answer.given != "not asked" else because[answer.detail]
        if count < MANY:
            mark = "" if as_expected(answer) else "**!** "
            rows.append((QUESTIONS[answer.question].text, mark + _given(answer), answer.detail))
    for why, count in because.items():
        if count >= MANY:
            rows.append((f"{count} {'other ' if rows else ''}questions", NOT_ASKED, why))
    return _table(("question", "answer", "what was seen, or why not"), rows) if rows else "Not asked."


def _given(answer: ProbeAnswer) -> str:
    return "no answer" if answer.failed else NOT_ASKED if answer.given == "not asked" else answer.given


def _worlds(report: Report) -> str:
    worlds = dict.fromkeys(each.world for each in report.checks)
    if not worlds:
        return "None was formed."
    return "\n\n".join(f"### {world}\n\n{_world([c for c in report.checks if c.world == world])}" for world in worlds)


def _world(checks: Sequence[ProbeCheck]) -> str:
    if len(checks) == 1 and checks[0].result == "not available":
        return f"Not available here: {checks[0].detail}."
    rows = [
        (each.name, ("**!** failed" if each.result == "failed" else each.result), f"{each.seconds:.1f} s", each.detail)
        for each in _merged(checks)
    ]
    return _table(("check", "result", "took", "what was seen"), rows)


def _merged(checks: Sequence[ProbeCheck]) -> list[ProbeCheck]:
    """Merge consecutive checks of an operation that passed with different dtypes into one check."""
    found: list[ProbeCheck] = []
    for check in checks:
        operation, _, dtype = check.name.rpartition(" ")
        before = found[-1] if found else None
        alike = before is not None and before.name.startswith(f"{operation} ") and before.seconds == check.seconds
        if operation and before is not None and alike and {before.result, check.result} == {"passed"}:
            found[-1] = ProbeCheck(check.world, f"{before.name}, {dtype}", "passed", check.detail, check.seconds)
        else:
            found.append(check)
    return found


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
