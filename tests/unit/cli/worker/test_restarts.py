"""When a process is restarted."""

from conquiet.cli.worker.restarts import (
    ABANDONED,
    CRASHES,
    GRACEFUL_EXITS,
    SIGNALLED,
    UNREACHABLE,
    RestartAction,
    RestartPolicy,
)


def test_a_crash_is_followed_by_a_restart_with_growing_pauses() -> None:
    policy = RestartPolicy()

    decisions = [policy.decide(1, now_s=number * 0.1) for number in range(CRASHES - 1)]

    assert [decision.action for decision in decisions] == [RestartAction.RESTART] * (CRASHES - 1)
    assert decisions[-1].delay_s > decisions[0].delay_s


def test_a_crash_loop_is_given_up_but_rare_crashes_never_are() -> None:
    looping, rare = RestartPolicy(), RestartPolicy()

    assert [looping.decide(-9, now_s=number) for number in range(CRASHES)][-1].action is RestartAction.GIVE_UP
    assert {rare.decide(-9, now_s=number * 61.0).action for number in range(20)} == {RestartAction.RESTART}


def test_a_finished_process_is_not_restarted_and_a_usage_error_ends_all() -> None:
    assert RestartPolicy().decide(0, now_s=0).action is RestartAction.FINISHED
    assert RestartPolicy().decide(2, now_s=0).action is RestartAction.CANNOT_START


def test_waiting_for_a_server_at_the_start_is_no_crash() -> None:
    policy = RestartPolicy(wait_s=30.0)

    waits = [policy.decide(UNREACHABLE, now_s=number * 3.0) for number in range(10)]

    assert {decision.action for decision in waits} == {RestartAction.WAIT}
    assert all(0 < decision.delay_s <= 1 for decision in waits)
    assert policy.decide(UNREACHABLE, now_s=30.0).action is RestartAction.UNREACHABLE
    assert policy.decide(1, now_s=31.0).action is RestartAction.RESTART
    assert policy.decide(UNREACHABLE, now_s=60.0).action is RestartAction.WAIT, (
        "it was up meanwhile: the time begins again"
    )
    assert RestartPolicy().decide(UNREACHABLE, now_s=0.0).action is RestartAction.UNREACHABLE


def test_a_process_stopped_by_a_signal_is_replaced_and_did_not_crash() -> None:
    for code in (SIGNALLED, ABANDONED):
        policy = RestartPolicy()
        assert {policy.decide(code, now_s=number).action for number in range(20)} == {RestartAction.RESTART}


def test_five_crashes_within_a_minute_are_a_loop() -> None:
    slow, fast = RestartPolicy(), RestartPolicy()

    assert [slow.decide(1, now_s=second).action for second in (0, 15, 30, 45, 60)] == [RestartAction.RESTART] * 5
    assert [fast.decide(1, now_s=second).action for second in (0, 15, 30, 45, 59)] == [RestartAction.RESTART] * 4 + [
        RestartAction.GIVE_UP
    ]
    # 0.2 s, and up to 30 % of jitter: the crashes of an hour ago do not make it wait longer.
    assert slow.decide(1, now_s=3_600.0).delay_s < 0.3


def test_only_a_graceful_exit_counts_as_drained() -> None:
    assert {0, SIGNALLED} == GRACEFUL_EXITS
