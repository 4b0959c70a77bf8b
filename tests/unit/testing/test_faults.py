import pytest

from conquiet.testing.faults import ChunkDecision, Conversation, Fault, FaultKind, FaultPlan

DROP_XADD = Fault(FaultKind.DROP_REQUEST, b"XADD")


def test_without_a_fault_everything_passes() -> None:
    plan, talk = FaultPlan(), Conversation()

    assert plan.on_request(talk, b"ping") == ChunkDecision(b"ping")
    assert plan.on_reply(talk, b"pong") == ChunkDecision(b"pong")


def test_a_fault_strikes_the_next_fitting_chunk_and_only_once() -> None:
    plan, talk = FaultPlan(), Conversation()
    plan.arm(DROP_XADD)

    assert plan.on_request(talk, b"PING") == ChunkDecision(b"PING")
    assert plan.on_request(talk, b"..XADD..") == ChunkDecision(b"", close=True)
    assert plan.on_request(Conversation(), b"..XADD..") == ChunkDecision(b"..XADD..")
    assert plan.done == 1


@pytest.mark.parametrize("split", [1, 2, 3])
def test_a_word_split_over_two_chunks_is_still_found(split: int) -> None:
    """TCP promises bytes, not borders."""
    plan, talk = FaultPlan(), Conversation()
    plan.arm(DROP_XADD)

    first, second = b"XADD"[:split], b"XADD"[split:]
    assert plan.on_request(talk, b"before" + first) == ChunkDecision(b"before" + first)
    assert plan.on_request(talk, second + b"after") == ChunkDecision(b"", close=True)


def test_halves_of_a_word_on_two_connections_do_not_make_a_word() -> None:
    plan = FaultPlan()
    plan.arm(DROP_XADD)

    assert not plan.on_request(Conversation(), b"XA").close
    assert not plan.on_request(Conversation(), b"DD").close


def test_the_dropped_reply_belongs_to_the_matching_request() -> None:
    plan, struck, other = FaultPlan(), Conversation(), Conversation()
    plan.arm(Fault(FaultKind.DROP_REPLY, b"COMMIT"))

    assert plan.on_request(struck, b"COMMIT") == ChunkDecision(b"COMMIT")
    assert plan.on_reply(other, b"OK") == ChunkDecision(b"OK")
    assert plan.on_reply(struck, b"OK") == ChunkDecision(b"", close=True)


def test_a_cut_reply_lets_exactly_n_bytes_through_even_over_several_chunks() -> None:
    plan, talk = FaultPlan(), Conversation()
    plan.arm(Fault(FaultKind.CUT_REPLY, None, 5, on_any_reply=True))

    assert plan.on_reply(talk, b"abc") == ChunkDecision(b"abc")
    assert plan.on_reply(talk, b"defg") == ChunkDecision(b"de", close=True)


def test_two_faults_strike_in_the_order_in_which_they_were_armed() -> None:
    plan = FaultPlan()
    plan.arm(Fault(FaultKind.DROP_REPLY))
    plan.arm(Fault(FaultKind.DROP_REQUEST))

    assert plan.on_request(Conversation(), b"one") == ChunkDecision(b"one")
    assert plan.on_request(Conversation(), b"two") == ChunkDecision(b"", close=True)


def test_waiting_for_a_fault_that_finds_no_chunk_names_it() -> None:
    plan = FaultPlan()
    plan.arm(DROP_XADD)

    with pytest.raises(TimeoutError, match="XADD"):
        plan.wait(0.01)


def test_a_disarmed_fault_neither_strikes_nor_is_waited_for() -> None:
    plan = FaultPlan()
    plan.arm(DROP_XADD)

    plan.disarm()

    plan.wait(0)
    assert plan.on_request(Conversation(), b"XADD") == ChunkDecision(b"XADD")


@pytest.mark.parametrize(("kind", "done"), [(FaultKind.DROP_REPLY, 1), (FaultKind.CUT_REPLY, 0)])
def test_a_connection_that_ends_by_itself_settles_its_fault(kind: FaultKind, done: int) -> None:
    """The dropped reply is lost either way; a reply that was shorter than the cut was not cut."""
    plan, talk = FaultPlan(), Conversation()
    plan.arm(Fault(kind, b"x", 100))
    plan.on_request(talk, b"x")

    plan.abandoned(talk)

    plan.wait(0)
    assert plan.done == done
