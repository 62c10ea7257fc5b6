"""What comms have yet to say is kept bounded, and the last state is never lost."""

from __future__ import annotations

from typing import Any

from allranks.lifeline.outbox import OTHERS_KEPT, CommMessage, Outbox, pack, unpack


def opening(comm: str, **state: Any) -> CommMessage:
    return CommMessage("comm_open", comm, {"state": state, "buffer_paths": []}, {"version": "2.1.0"})


def update(comm: str, *buffers: tuple[list[Any], bytes], **state: Any) -> CommMessage:
    data = {"method": "update", "state": state, "buffer_paths": [path for path, _ in buffers]}
    return CommMessage("comm_msg", comm, data, {}, [buffer for _, buffer in buffers])


def custom(comm: str, content: int) -> CommMessage:
    return CommMessage("comm_msg", comm, {"method": "custom", "content": content}, {})


def closing(comm: str) -> CommMessage:
    return CommMessage("comm_close", comm, {}, {})


def filled(*letters: CommMessage) -> Outbox:
    mailbox = Outbox()
    for message in letters:
        mailbox.put(message)
    return mailbox


def test_of_many_states_one_is_left_with_the_last_of_each_value() -> None:
    mailbox = filled(*(update("a", value=n) for n in range(1000)), update("a", colour="red"))
    [message] = mailbox.take()
    assert message.data["state"] == {"value": 999, "colour": "red"}
    assert not mailbox


def test_a_state_before_the_opening_has_left_becomes_part_of_it() -> None:
    mailbox = filled(opening("a", value=0, step=1), update("a", value=5))
    [message] = mailbox.take_opens()
    assert (message.kind, message.data["state"], message.metadata) == (
        "comm_open",
        {"value": 5, "step": 1},
        {"version": "2.1.0"},
    )
    assert not mailbox and mailbox.opens == 0


def test_comms_are_opened_in_order_and_before_states_that_may_name_them() -> None:
    mailbox = filled(update("box", children=["IPY_MODEL_b"]), opening("a"), custom("a", 1), opening("b"))
    assert [(each.kind, each.comm) for each in mailbox.take()] == [
        ("comm_open", "a"),
        ("comm_open", "b"),
        ("comm_msg", "box"),
        ("comm_msg", "a"),
    ]


def test_bytes_replace_those_of_the_same_name_and_leave_others() -> None:
    mailbox = filled(
        update("a", (["image"], b"old"), (["data", "x"], b"kept"), data={}),
        update("a", (["image"], b"new")),
    )
    [message] = mailbox.take()
    assert dict(zip(map(tuple, message.data["buffer_paths"]), message.buffers, strict=True)) == {
        ("data", "x"): b"kept",
        ("image",): b"new",
    }
    [message] = filled(update("a", (["image"], b"old")), update("a", image=None)).take()
    assert (message.data["state"], message.buffers) == ({"image": None}, [])


def test_messages_that_are_no_states_are_kept_up_to_a_number() -> None:
    contents = [each.data["content"] for each in filled(*(custom("a", n) for n in range(1000))).take()]
    assert contents == list(range(1000 - OTHERS_KEPT, 1000))


def test_what_is_closed_needs_nothing_else() -> None:
    assert filled(opening("a"), update("a", value=1), closing("a")).take() == []
    assert filled(update("a", value=1), custom("a", 1), closing("a")).take() == [closing("a")]


def test_packed_letters_come_out_as_they_were() -> None:
    letters = [opening("a", value=1), update("b", (["x"], b"one"), (["y"], b"two")), closing("c")]
    rows, buffers = pack(letters)
    assert buffers == [b"one", b"two"]
    assert [each._replace(buffers=tuple(each.buffers)) for each in unpack(rows, buffers)] == [
        each._replace(buffers=tuple(each.buffers)) for each in letters
    ]
