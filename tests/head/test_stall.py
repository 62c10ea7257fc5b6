"""What a cell says unasked of ranks that wait, and whom it frees."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from allranks.head.cell.absent_ranks import EndedRank
from allranks.head.cell.stall import AFTER_DEATH, AFTER_FAILURE, STALL_AFTER, StallWatch
from allranks.head.state.known_rank import SILENT_AFTER
from allranks_backends.plan import Link
from allranks_backends.views import Collective, LinkView, RankView, Snapshot

LONG, SHORT = STALL_AFTER + 0.1, STALL_AFTER - 0.1
RAISED = EndedRank("raised ValueError: boom (line 3)", failed=True)
FINISHED = EndedRank("finished the cell", failed=False)
DEAD = EndedRank("died: killed by SIGKILL", failed=True, dead=True)
FREED = EndedRank("was unblocked", failed=False, came=True)
BLOCKED = "blocked in all_sum #17 f32[10] (line 5)"


def collective(seq: int, op: str = "all_sum", shape: tuple[int, ...] = (10,), line: int | None = 5) -> Collective:
    return Collective(seq, op, shape, "float32", 40, line)


def waiting(rank: int, seq: int = 17, since: float = LONG, stalled: float | None = None, **kind: Any) -> RankView:
    called = collective(seq, **kind)
    return at(rank, "waiting", collective=called, since=since, stalled=stalled)


def at(rank: int, state: Any, **more: Any) -> RankView:
    called = more.get("collective")
    entered = called.number if called is not None and called.shared else 0
    return RankView(rank, "localhost", state=state, **{"entered": entered, **more})


def snapshot(*views: RankView) -> Snapshot:
    return Snapshot("main", "ring", "whole", 1, views)


def look(
    *views: RankView,
    ended: dict[int, EndedRank] | None = None,
    since: float | None = None,
    ranks: Any = None,
) -> tuple[list[str], list[int]]:
    watch = StallWatch(ranks if ranks is not None else range(len(views)))
    findings, free = watch.look(snapshot(*views), ended or {}, since)
    return [f"{each.ranks}: {each.text}" for each in findings], free


def test_a_rank_that_completed_what_others_are_still_in() -> None:
    done = EndedRank("finished the cell", False, settled=17)
    said, free = look(waiting(0), at(1, "idle", collective=collective(17)), ended={1: done})
    assert said == [f"(0,): {BLOCKED}: rank 1 has completed it, but what it sent may not have arrived"]
    assert free == []


@pytest.mark.parametrize(
    ("view", "ended", "why"),
    [
        ({"seq": 17}, {"settled": 17}, "have completed it, but what they sent may not have arrived"),
        ({"seq": 17}, {"settled": 16}, "called it but finished the cell without evaluating it"),
        ({"seq": 16}, {"settled": 16}, "never entered it; they finished the cell"),
        ({"seq": 17}, {"failed": True}, "never entered it; they finished the cell"),
    ],
    ids=["completed", "not evaluated", "not called", "raised before it was evaluated"],
)
def test_ranks_that_are_done_with_the_cell(view: dict[str, Any], ended: dict[str, Any], why: str) -> None:
    how = EndedRank(**{"how": "finished the cell", "failed": False, **ended})
    views = [at(rank, "idle", collective=collective(**view)) for rank in (1, 2)]
    assert look(waiting(0), *views, ended={1: how, 2: how})[0] == [f"(0,): {BLOCKED}: ranks 1-2 {why}"]


def test_ranks_that_wait_in_another_collective_of_that_number() -> None:
    said, free = look(waiting(0), waiting(1, op="all_max", since=SHORT), waiting(2, op="all_max", since=SHORT))
    other = "all_max #17 f32[10] (line 5)"
    assert said == [f"(0, 1, 2): the ranks disagree: rank 0 entered {BLOCKED[11:]}; ranks 1-2 entered {other}"]
    assert free == [0, 1, 2], "it can never complete correctly"
    later = waiting(1, 18, op="all_max", since=SHORT)
    assert "rank 1 is blocked in all_max #18 f32[10] (line 5) instead" in look(waiting(0), later)[0][0]


def test_a_rank_that_only_called_a_collective_has_not_entered_it() -> None:
    called = at(1, "running", line=9, collective=collective(17, op="all_max"))
    behind = waiting(2, 16, since=SHORT)
    assert look(waiting(0), called, behind)[0][0] == (
        f"(0,): {BLOCKED}: rank 1 has not entered it yet (running line 9); "
        "rank 2 has not entered it yet (blocked in all_sum #16 f32[10] (line 5))"
    )


def test_several_ranks_of_another_cell_that_do_the_same() -> None:
    said, _ = look(waiting(0), at(1, "running", line=3), at(2, "running", line=3), ranks=[0])
    assert said[0].endswith("ranks 1-2 are not part of this cell (running line 3)")


def test_each_group_is_told_who_is_missing_in_its_own_collective() -> None:
    done = EndedRank("finished the cell", False, settled=17)
    said, _ = look(waiting(0), waiting(1, 18), at(2, "idle", collective=collective(17)), ended={2: done})
    assert said[0] == f"(0,): {BLOCKED}: rank 2 has completed it, but what it sent may not have arrived"
    assert said[1].endswith("rank 2 never entered it; it finished the cell"), "of rank 1, which is one further"


def test_ranks_disagree_on_the_newest_collective_that_is_waited_for() -> None:
    views = waiting(0, 17), waiting(1, 18), waiting(2, 18, op="all_max")
    assert "rank 1 entered all_sum #18 f32[10] (line 5); rank 2 entered all_max #18" in look(*views)[0][-1]


def test_a_send_of_that_number_is_not_the_collective_that_a_rank_entered_instead() -> None:
    sent = Collective(17, "send", (10,), "float32", 40, 3, shared=False)
    said, free = look(waiting(0), at(1, "idle", collective=sent, entered=17), ended={1: FINISHED})
    assert len(said) == 1 and "instead" not in said[0] and free == []


def test_a_rank_that_waits_in_an_unknown_collective_disturbs_nothing() -> None:
    unknown = at(1, "waiting", since=LONG)
    assert look(waiting(0), unknown)[0][0] == f"(0,): {BLOCKED}: rank 1 has not entered it yet (waiting)"


def test_all_ranks_in_one_collective_are_reported_where_nothing_moves() -> None:
    views = [waiting(rank, since=12.4, stalled=11.0 + rank) for rank in range(2)]
    links = (
        LinkView(Link(0, 1, "ethernet", "en5"), sent=1, rtt=14e-6, retransmits=3, queued=4096),
        LinkView(Link(1, 0, "ethernet", "en5"), sent=1, rtt=14e-6, retransmits=0, queued=0),
    )
    watch, now = StallWatch(range(2)), replace(snapshot(*views), links=links)
    findings, free = watch.look(now, {}, None)
    assert [(each.ranks, each.text) for each in findings] == [
        (
            (0, 1),
            "all ranks are in all_sum #17 f32[10] (line 5) since 12 s, and no byte moved on any link for 11 s. Not "
            "acknowledged: 0 → 1 4 KiB (en5, 3 segments resent, round trip 14.0 µs). To abort the collective and keep "
            "all variables, interrupt the cell. To check cables and firewalls: %distributed doctor",
        )
    ]
    assert free == [] and watch.look(now, {}, None) == ([], [])
    empty = replace(now, links=links[1:])
    assert (
        "Nothing is left to send: what was sent has arrived." in StallWatch(range(2)).look(empty, {}, None)[0][0].text
    )


@pytest.mark.parametrize(
    "last",
    [
        {"stalled": 3.0},
        {"stalled": 0.0},
        {"since": 3.0, "stalled": 20.0},
        {"seq": 18, "stalled": 20.0},
        {"stalled": None},
    ],
    ids=["a byte moved", "one computes", "came late", "another collective", "not counted"],
)
def test_nothing_is_said_of_a_stall_that_is_none(last: dict[str, Any]) -> None:
    views = [waiting(0, since=20.0, stalled=20.0), waiting(1, **{"since": 20.0, **last})]
    assert [each for each in look(*views)[0] if "all ranks" in each] == []


def test_where_traffic_is_not_counted_that_is_said_later() -> None:
    now = replace(snapshot(*(waiting(rank, since=31.0) for rank in range(2))), backend="mpi")
    (finding,) = StallWatch(range(2)).look(now, {}, None)[0]
    assert finding.text.startswith(
        "all ranks are in all_sum #17 f32[10] (line 5) since 31 s. Their traffic on mpi cannot"
    )


def test_when_stopped_a_rank_that_was_in_the_collective_is_not_said_to_be_missing() -> None:
    watch = StallWatch(range(2))
    assert watch.look(snapshot(waiting(0), waiting(1)), {}, None) == ([], [])
    watch.stopping = True
    assert watch.look(snapshot(waiting(0), at(1, "running")), {}, None) == ([], [])
    assert "#18" in watch.look(snapshot(waiting(0, seq=18), at(1, "running")), {}, None)[0][0].text


def test_when_stopped_those_that_wait_for_ranks_that_never_came_are_still_reported() -> None:
    watch = StallWatch(range(2), stopping=True)
    (finding,) = watch.look(snapshot(waiting(0, seq=1), at(1, "running")), {}, None)[0]
    assert "#1 " in finding.text


def test_a_rank_that_leaves_a_collective_early_is_missing_while_nobody_stops_it() -> None:
    watch = StallWatch(range(2))
    watch.look(snapshot(waiting(0), waiting(1)), {}, None)
    assert len(watch.look(snapshot(waiting(0), at(1, "running")), {}, None)[0]) == 1


def test_those_that_were_reported_as_blocked_are_reported_again_when_nothing_moves() -> None:
    watch, views = StallWatch(range(3)), [waiting(rank, since=20.0, stalled=20.0) for rank in range(3)]
    assert len(watch.look(snapshot(at(0, "running"), *views[1:]), {}, None)[0]) == 1
    (finding,) = watch.look(snapshot(*views), {}, None)[0]
    assert finding.ranks == (0, 1, 2) and finding.text.startswith("all ranks are in")


def test_a_compiler_whose_line_is_unknown() -> None:
    said, _ = look(at(0, "running", compiler="g++", compiling=5), at(1, "running", compiler="g++", compiling=4))
    assert said == ["(0,): g++ has been compiling for 5 s: the first call makes the kernels"]
    said, _ = look(at(0, "running", line=3, compiler="g++", compiling=10))
    assert said == ["(0,): g++ has been compiling for line 3 for 10 s: the first call makes the kernels"]


def test_ranks_that_wait_for_a_compiler_are_named_once() -> None:
    views = [at(rank, "running", line=3, source="f(x)", compiler="g++", compiling=5) for rank in range(2)]
    watch, now = StallWatch(range(3)), snapshot(*views, waiting(2))
    said = [each.text for each in watch.look(now, {}, None)[0]]
    assert "g++ has been compiling for line 3 for 5 s: the first call makes the kernels" in said
    assert any("have not entered it yet (compiling with g++ for 5 s, running line 3: f(x))" in each for each in said)
    assert watch.look(now, {}, None) == ([], [])


def test_nothing_is_said_while_all_wait_or_none_has_waited_long() -> None:
    assert look(waiting(0), waiting(1), waiting(2)) == ([], [])
    assert look(waiting(0, since=SHORT), at(1, "running", line=9)) == ([], [])
    assert look(at(0, "running"), at(1, "idle")) == ([], [])


def test_a_rank_that_has_not_come_is_named_with_its_line_and_nobody_is_freed() -> None:
    said, free = look(waiting(0), at(1, "running", line=9, source="time.sleep(100)"), waiting(2))
    assert said == [f"(0, 2): {BLOCKED}: rank 1 has not entered it yet (running line 9: time.sleep(100))"]
    assert free == []


def test_a_rank_whose_line_is_unknown_is_reported_as_such() -> None:
    def why(**view: Any) -> str:
        [text], _ = look(waiting(0), at(1, **view), at(2, **view))
        return text.partition("ranks 1-2 have not entered it yet ")[2]

    assert why(state="running", silent=3) == "(running; location not known: nothing reported for 3 s)"
    assert why(state="running") == "(running; location not known: it has not reported one yet)"
    assert why(state="running", begun=False) == "(yet to begin the cell)"
    outside = "outside the cell's code, in dumps (pickle.py:12)"
    assert why(state="running", source=outside) == f"(running {outside})"


def test_a_stopped_rank_is_named_with_its_last_line() -> None:
    def why(**view: Any) -> str:
        said, _ = look(waiting(0), at(1, "suspended" if view.get("suspended") else "silent", **view))
        return said[-1].partition("rank 1 has not entered it yet ")[2]

    assert why(silent=6) == "(location not known; nothing reported for 6 s)"
    assert why(line=9, source="f(x)", away=12) == "(out of reach for 12 s, reconnecting)"
    assert why(line=9, source="f(x)", suspended=True) == "(last seen at line 9: f(x); its process is suspended)"


def test_a_rank_that_finished_without_coming() -> None:
    said, free = look(waiting(0), at(1, "idle", collective=collective(16)), ended={1: FINISHED})
    assert said == [f"(0,): {BLOCKED}: rank 1 never entered it; it finished the cell"]
    assert free == []


def test_ranks_that_are_not_part_of_the_cell() -> None:
    said, _ = look(waiting(0), at(1, "idle"), at(2, "idle"), ranks=[0])
    assert said[0].endswith("(line 5): ranks 1-2 are not part of this cell: interrupt the cell and run it on all ranks")


def test_ranks_that_run_another_cell_may_be_on_their_way() -> None:
    said, _ = look(waiting(0), at(1, "running", line=3, source="step()"), at(2, "running", line=3), ranks=[0])
    assert "rank 1 is not part of this cell (running line 3: step())" in said[0]


def test_the_users_own_words_stay_as_they_are() -> None:
    raised = EndedRank("raised NameError: name 'x' is not defined: it was deleted (line 3)", failed=True)
    said, _ = look(waiting(0), at(1, "failed"), at(2, "failed"), ended={1: raised, 2: raised}, since=3.0)
    assert "ranks 1-2 never entered it; they raised NameError: name 'x' is not defined: it was deleted" in said[0]


def test_a_rank_that_entered_another_collective_and_is_through_is_said_to_have_come() -> None:
    said, free = look(waiting(0), at(1, "idle", collective=collective(17, shape=(12,))), ended={1: FINISHED})
    assert "rank 1 entered all_sum #17 f32[12] (line 5)" in said[0] and len(said) == 1
    assert "the ranks disagree" in said[0] and free == [0]


def test_several_that_do_the_same_are_one_phrase() -> None:
    said, _ = look(waiting(0), at(1, "idle"), at(2, "idle"), ended={1: FINISHED, 2: FINISHED})
    assert said[0].endswith("ranks 1-2 never entered it; they finished the cell")


@pytest.mark.parametrize(("how", "grace"), [(RAISED, AFTER_FAILURE), (DEAD, AFTER_DEATH)])
def test_those_that_wait_for_a_failed_rank_are_named_and_freed_after_a_grace(how: EndedRank, grace: float) -> None:
    views = waiting(0, since=SHORT), at(1, "failed"), waiting(2, since=SHORT)
    assert look(*views, ended={1: how}, since=grace - 0.05) == ([], [])
    said, free = look(*views, ended={1: how}, since=grace)
    assert free == [0, 2]
    assert said == [f"(0, 2): {BLOCKED}: rank 1 never entered it; it {how.how}"]


def test_a_rank_that_runs_python_is_not_freed() -> None:
    assert look(waiting(0), at(1, "running", line=3), at(2, "failed"), ended={2: RAISED}, since=3.0)[1] == [0]


def test_one_that_was_freed_is_no_culprit() -> None:
    said, _ = look(waiting(0), at(1, "failed"), at(2, "dead"), ended={1: FREED, 2: DEAD}, since=1.0)
    assert said == [f"(0,): {BLOCKED}: rank 2 never entered it; it died: killed by SIGKILL"]


def test_each_thing_is_said_once_and_freeing_is_tried_again_each_second() -> None:
    watch, now = StallWatch(range(2)), snapshot(waiting(0), at(1, "failed"))
    ended = {1: RAISED}
    first = watch.look(now, ended, 2.0)
    assert [each.ranks for each in first[0]] == [(0,)] and first[1] == [0]
    assert watch.look(now, ended, 2.2) == ([], [])
    assert watch.look(now, ended, 3.1) == ([], [0])
    further = watch.look(snapshot(waiting(0, seq=18), at(1, "failed")), ended, 3.2)
    assert "#18" in further[0][0].text


def test_those_that_come_later_are_reported_without_those_before() -> None:
    watch = StallWatch(range(3))
    (first,) = watch.look(snapshot(waiting(0), at(1, "running"), at(2, "running")), {}, None)[0]
    (second,) = watch.look(snapshot(waiting(0), waiting(1), at(2, "running")), {}, None)[0]
    assert (first.ranks, second.ranks) == ((0,), (1,))
    assert second.text.startswith(f"{BLOCKED}: rank 2 has not entered it yet")
    assert watch.look(snapshot(waiting(0), waiting(1), at(2, "running")), {}, None) == ([], [])


def test_ranks_in_different_collectives_are_told_apart() -> None:
    said, _ = look(waiting(0, 17), waiting(1, 18, line=6), at(2, "running", line=2))
    assert [each.partition(":")[0] for each in said] == ["(0,)", "(1,)"]


def test_a_silent_rank_is_said_to_be_silent_once() -> None:
    watch = StallWatch(range(2), began=time.monotonic() - SILENT_AFTER)
    now = snapshot(waiting(0, since=SHORT), at(1, "silent"))
    findings, free = watch.look(now, {}, None)
    assert [(each.ranks, each.text.partition(":")[0]) for each in findings] == [((1,), "is not responding")]
    assert free == [] and watch.look(now, {}, None) == ([], [])


def test_a_rank_that_was_silent_before_the_cell_began_gets_the_time_to_respond() -> None:
    watch = StallWatch(range(3))
    silent = snapshot(waiting(0, since=SHORT), at(1, "silent"), at(2, "suspended"))
    assert [each.ranks for each in watch.look(silent, {}, None)[0]] == [(2,)], "a suspended one cannot respond"
    watch.began -= SILENT_AFTER
    assert [each.ranks for each in watch.look(silent, {}, None)[0]] == [(1,)]


def received(rank: int, peer: int | None, op: str = "recv") -> RankView:
    called = Collective(3, op, (10,), "float32", 40, 2, shared=False, peer=peer)
    return at(rank, "waiting", collective=called, since=LONG, entered=17)


@pytest.mark.parametrize(
    ("peer", "ended", "why"),
    [
        ({"state": "running", "line": 4}, {}, "rank 2 has not sent it yet (running line 4)"),
        (
            {"state": "idle"},
            {2: FINISHED},
            "rank 2 finished the cell; a send takes place when its result is evaluated",
        ),
        ({"state": "failed"}, {2: RAISED}, "rank 2 raised ValueError: boom (line 3)"),
        ({"state": "dead"}, {2: DEAD}, "rank 2 died: killed by SIGKILL"),
    ],
)
def test_of_a_recv_only_the_rank_that_should_send_is_named(
    peer: dict[str, Any], ended: dict[int, EndedRank], why: str
) -> None:
    said, _ = look(received(0, 2), at(1, "running", line=9), at(2, **peer), ended=ended)
    assert said == [f"(0,): blocked in recv #3 f32[10] from rank 2 (line 2): {why}"]


def test_of_a_send_the_receiver_is_named_and_what_it_waits_in() -> None:
    said, _ = look(received(0, 1, "send"), at(1, "running", line=9))
    assert said == [
        "(0,): blocked in send #3 f32[10] to rank 1 (line 2): rank 1 has not received it yet (running line 9)"
    ]
    said, _ = look(received(0, 1, "send"), waiting(1))
    assert said[0].endswith(f"to rank 1 (line 2): rank 1 is {BLOCKED}")


def test_a_rank_outside_of_the_cell_that_should_send() -> None:
    said, _ = look(received(0, 1), at(1, "idle"), ranks=[0])
    assert said[0].endswith(": rank 1 is not part of this cell: interrupt the cell and run it on all ranks")


def test_of_a_collective_in_a_smaller_group_it_is_not_said_who_is_missing() -> None:
    said, free = look(received(0, None, "all_sum"), at(1, "running", line=9), at(2, "idle"), ended={2: FINISHED})
    unknown = "which ranks make up that smaller group is not known here"
    assert said == [
        f"(0,): blocked in all_sum #3 f32[10] (line 2): {unknown}; rank 1 is running line 9; rank 2 finished the cell"
    ]
    assert free == []


def test_what_ranks_do_alone_is_no_disagreement_and_counts_for_nothing() -> None:
    alone = Collective(17, "send", (10,), "float32", 40, 3, shared=False, peer=0)
    said, free = look(waiting(0), waiting(1), at(2, "waiting", collective=alone, since=LONG, entered=16))
    assert [each for each in said if "disagree" in each] == [] and free == []
    assert "rank 2 has not entered it yet (blocked in send #17" in said[0]
