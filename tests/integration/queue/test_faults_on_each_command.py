"""Every command that a queue sends, broken in every way: one clear error, nothing sent twice, the next call works.

A call may send several commands, and each of them is broken once: the table names them in their order. Afterwards the
server must have counted the commands up to the broken one, each once, and no other.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import pytest
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.errors import QueueError
from conquiet.queue import QueueMessage, RedisStreamsQueue
from conquiet.testing import FaultProxy

FAULTS = ("request lost", "reply lost", "cut mid-frame", "stalled")
NOT_OURS = ("client|", "config|", "hello", "info", "select")


class Sent(NamedTuple):
    """One command as it goes over the wire.

    Attributes:
        name: Its name in the error.
        word: Bytes that this request has and no other of the same call.
        counted: The commands that the server counts for it; for a script, also the commands that it calls.
    """

    name: str
    word: bytes
    counted: tuple[str, ...]


class Case(NamedTuple):
    """A call and the commands it sends; ``broken`` are the commands to break, all of them if it is None."""

    call: Callable[["Scene"], object]
    sends: tuple[Sent, ...]
    broken: tuple[int, ...] | None = None


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


class Scene(NamedTuple):
    """A queue behind the proxy, how to make another one, and a message that is pending for it."""

    queue: RedisStreamsQueue
    new_queue: Callable[[], RedisStreamsQueue]
    message: QueueMessage


def sent(name: str, *, word: bytes | None = None, counted: tuple[str, ...] | None = None) -> Sent:
    first, _, _ = name.partition(" ")
    return Sent(name, word or b"\r\n%b\r\n" % first.encode(), counted or (name.lower().replace(" ", "|"),))


LOOK, FIND, CLAIM, CHECK = sent("XINFO CONSUMERS"), sent("XPENDING"), sent("XCLAIM"), sent("XRANGE")
CHECK_TWO = sent("XRANGE", counted=("xrange", "xrange"))
CASES: dict[str, Case] = {
    "create": Case(lambda scene: scene.new_queue(), (sent("XGROUP CREATE"),)),
    "enqueue": Case(lambda scene: scene.queue.enqueue({"n": 1}), (sent("XADD"),)),
    "enqueue once": Case(
        lambda scene: scene.queue.enqueue({"n": 1}, idempotency_key="k"),
        (sent("EVAL", counted=("eval", "get", "set", "xadd", "set")),),
    ),
    "enqueue_many": Case(
        lambda scene: scene.queue.enqueue_many([{"n": 1}, {"n": 2}]),
        (sent("EVAL", counted=("eval", "xadd", "xadd")),),
    ),
    "read": Case(lambda scene: scene.queue.read(100), (sent("XREADGROUP"),)),
    "recover_own": Case(lambda scene: scene.queue.recover_own(), (sent("XREADGROUP"), FIND, sent("XACK"))),
    "count_own": Case(lambda scene: scene.queue.count_own(), (FIND,)),
    "ack": Case(lambda scene: scene.queue.ack(scene.message), (sent("XACK"),)),
    "ack_id": Case(lambda scene: scene.queue.ack_id(scene.message.id), (sent("XACK"),)),
    "ack_many": Case(lambda scene: scene.queue.ack_many([scene.message]), (sent("XACK"),)),
    "extend_many": Case(
        lambda scene: scene.queue.extend_many([scene.message]),
        (sent("EVAL", counted=("eval", "xpending", "xclaim")),),
    ),
    "extend": Case(
        lambda scene: scene.queue.extend(scene.message), (sent("EVAL", counted=("eval", "xpending", "xclaim")),)
    ),
    "claim_stale": Case(lambda scene: scene.queue.claim_stale(30_000), (LOOK, FIND, CLAIM, CHECK_TWO)),
    "claim_stale, one gone": Case(
        lambda scene: scene.queue.claim_stale(30_000, 2), (LOOK, FIND, CLAIM, CHECK), broken=(3,)
    ),
    "claim_stale, long lists": Case(
        lambda scene: scene.queue.claim_stale(30_000),
        (
            LOOK,
            sent("XPENDING", word=b"\r\nalice\r\n"),
            sent("XPENDING", word=b"\r\nbob\r\n"),
            sent("XPENDING", word=b"\r\n("),
            CLAIM,
            CHECK_TWO,
        ),
        broken=(1, 2, 3),
    ),
    "backlog": Case(
        lambda scene: scene.queue.backlog(), (sent("XLEN"), sent("XINFO GROUPS"), FIND, CHECK, sent("TIME"))
    ),
}
BREAKS = [
    pytest.param(name, at, id=f"{name}: {case.sends[at].name} ({at + 1})")
    for name, case in CASES.items()
    for at in case.broken or range(len(case.sends))
]


@pytest.fixture
def proxy(redis_url: str, fault_proxy: Callable[[str], FaultProxy]) -> FaultProxy:
    return fault_proxy(redis_url)


@pytest.fixture
def message(make_queue: MakeQueue, raw: RawRedis, stream: str) -> QueueMessage:
    """One of the two that alice has pending; the other is deleted, and two of bob's four stale ones. One more waits."""
    make_queue()
    ids = [raw.xadd(stream, {"data": "{}"}) for _ in range(7)]
    raw.xreadgroup("billing", "alice", {stream: ">"}, count=2)
    raw.xreadgroup("billing", "bob", {stream: ">"}, count=4)
    raw.xclaim(stream, "billing", "bob", 0, ids[2:6], idle=60_000, justid=True)
    raw.xdel(stream, ids[1], ids[3], ids[4])
    return QueueMessage(stream, "billing", ids[0].decode(), {})


@pytest.fixture
def scene(
    make_queue: MakeQueue,
    connect: Connect,
    redis_url: str,
    proxy: FaultProxy,
    message: QueueMessage,
    command_timeout_s: float,
) -> Scene:
    """Behind the proxy, of a client that would retry."""
    client = connect(proxy.url_for(redis_url))
    return Scene(
        make_queue(client=client, command_timeout_s=command_timeout_s),
        lambda: make_queue(client=client, command_timeout_s=command_timeout_s, stream_key=f"{message.stream}:new"),
        message,
    )


@pytest.fixture
def command_timeout_s(fault: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """Short for who has to wait for it, generous for the others."""
    if fault != "stalled":
        return 5.0
    monkeypatch.setattr("conquiet.queue.redis_streams.LONGEST_SLICE_MS", 100)
    return 0.7


@pytest.fixture
def long_lists(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries are many, for the case that is about many."""
    if call.endswith("long lists"):
        monkeypatch.setattr("conquiet.queue.pending_scan.SMALL_GROUP", 0)
        monkeypatch.setattr("conquiet.queue.pending_scan.PAGE", 2)


def of_ours(counted: dict[str, int]) -> Counter[str]:
    return Counter({name: calls for name, calls in counted.items() if not name.startswith(NOT_OURS)})


@pytest.mark.usefixtures("long_lists")
@pytest.mark.parametrize("call", CASES)
@pytest.mark.parametrize("fault", ["none"])
def test_a_call_sends_the_commands_of_the_table_and_no_other(
    scene: Scene, commands_of: Callable[[], dict[str, int]], call: str, fault: str
) -> None:
    """Without this the table could leave a command out, and no test would break it."""
    before = of_ours(commands_of())

    CASES[call].call(scene)

    assert of_ours(commands_of()) - before == Counter(word for one in CASES[call].sends for word in one.counted)


@pytest.mark.spec(
    "RS-008.1", "RS-008.2", "RS-005.3", "RS-005.16", "QC-009.6", "QC-009.1", "QC-009.2", "QC-009.3", "QC-003.5",
    "QC-006.7", "QC-009.7", "QC-002.6",
)  # fmt: skip
@pytest.mark.usefixtures("long_lists")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("call", "at"), BREAKS)
def test_a_fault_on_any_command_is_one_error_and_no_repeat(
    scene: Scene,
    proxy: FaultProxy,
    commands_of: Callable[[], dict[str, int]],
    call: str,
    at: int,
    fault: str,
) -> None:
    case = CASES[call]
    broken = case.sends[at]
    arrived = case.sends[: at if fault == "request lost" else at + 1]
    before = of_ours(commands_of())
    match fault:
        case "request lost":
            proxy.drop_next_request(broken.word)
        case "reply lost":
            proxy.drop_next_reply(broken.word)
        case "cut mid-frame":
            proxy.cut_reply_after(1, broken.word)
        case _:
            proxy.stall_next_reply(broken.word)

    with pytest.raises(QueueError, match="sent once and not repeated") as caught:
        case.call(scene)

    proxy.resume()
    proxy.wait_for_fault()
    assert of_ours(commands_of()) - before == Counter(word for one in arrived for word in one.counted)
    error = caught.value
    assert type(error) is QueueError
    assert error.in_doubt
    assert (error.command, error.group) == (broken.name, "billing")
    assert str(error.stream).startswith(scene.message.stream)
    # The next calls get new connections and no leftover of the last.
    case.call(scene)
    assert scene.queue.backlog().pending in range(1, 8)
