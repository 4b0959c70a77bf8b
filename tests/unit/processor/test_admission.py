"""May a message run now? The whole table, without a server."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from conquiet.core.settlement import ACKNOWLEDGE, MOVED, Defer, KeepPending, Settlement
from conquiet.processor.admission import Admission
from conquiet.processor.envelope import Envelope
from conquiet.processor.parts import ServerClock
from conquiet.processor.policy import RateLimit
from conquiet.processor.settler import Step
from conquiet.runtime import RuntimeMessage

CANCELLED, UNKNOWN = KeepPending(LookupError("cancelled")), ACKNOWLEDGE
FAR_MS = 2**50
RATE = RateLimit(1)


class Server:
    """All collaborators of admission, with fixed replies."""

    def __init__(
        self, *, cancel: bool = False, paused: bool = False, park: Step = Step.MOVED, rate: Step = Step.MOVED
    ) -> None:
        self.requested_in = {"s"} if cancel else set()
        self.cancel_requested, self.exist = cancel, paused
        self._park, self._rate = park, rate
        self.asked: list[str] = []
        everything: Any = self
        self.admission = Admission(
            SimpleNamespace(clock=ServerClock(), pauses=everything),  # type: ignore[arg-type]
            canceller=everything,
            settler=everything,
            unknown=cast("Any", SimpleNamespace(decide=self._unknown)),
        )

    def must_check(self, message: RuntimeMessage) -> bool:
        return message.delivery_count != 1 or bool(self.requested_in)

    async def is_requested(self, *_: object) -> bool:
        self.asked.append("cancel")
        return self.cancel_requested

    def is_event_paused(self, *_: object) -> bool:
        return self.exist

    async def park(self, *_: object) -> Step:
        self.asked.append("park")
        return self._park

    async def reserve_rate(self, *_: object) -> Step:
        self.asked.append("rate")
        return self._rate

    async def join_key(self, *_: object) -> None:
        self.asked.append("join")

    def acknowledge_with_turn(self, *_: object) -> None:
        self.asked.append("turn")

    async def cancel(self, *_: object) -> Settlement:
        return CANCELLED

    async def _unknown(self, *_: object) -> Settlement:
        return UNKNOWN


async def admitted(
    server: Server, envelope: Envelope, *, rate: RateLimit | None = None, known: bool = True, deliveries: int = 1
) -> Settlement | None:
    message = RuntimeMessage("s", "1-1", {}, delivery_count=deliveries)
    runner: Any = SimpleNamespace(rate=rate) if known else None
    settlement = await server.admission.admit(message, cast("Any", None), envelope, runner)
    if known and rate is None and server.admission.is_certain(message, envelope):
        assert (settlement, server.asked) == (None, []), "the fast path runs a message that needs a check"
    return settlement


def an_envelope(**facts: Any) -> Envelope:
    envelope = Envelope("pay", "m")
    for name, value in facts.items():
        setattr(envelope, name, value)
    return envelope


@pytest.mark.parametrize(
    ("server", "envelope", "how", "settlement", "asked"),
    [
        (Server(), an_envelope(), {}, None, []),
        (Server(), an_envelope(key="k"), {}, MOVED, ["join"]),
        (Server(), an_envelope(key="k", ticket=7), {}, None, ["turn"]),
        (Server(), an_envelope(delay_until_ms=1), {}, None, []),
        (Server(), an_envelope(delay_until_ms=FAR_MS), {}, Defer(until_ms=FAR_MS), []),
        (Server(cancel=True), an_envelope(), {}, CANCELLED, ["cancel"]),
        (Server(cancel=True), an_envelope(), {"known": False}, CANCELLED, ["cancel"]),
        (Server(), an_envelope(), {"deliveries": 2}, None, ["cancel"]),
        (Server(), an_envelope(), {"known": False}, UNKNOWN, []),
        (Server(paused=True), an_envelope(), {"known": False}, UNKNOWN, []),
        (Server(paused=True), an_envelope(), {}, MOVED, ["park"]),
        (Server(paused=True, park=Step.LEFT), an_envelope(), {}, None, ["park"]),
        (Server(paused=True, park=Step.TO_CANCEL), an_envelope(), {}, CANCELLED, ["park"]),
        (Server(), an_envelope(), {"rate": RATE}, MOVED, ["rate"]),
        (Server(rate=Step.LEFT), an_envelope(), {"rate": RATE}, None, ["rate"]),
        (Server(rate=Step.TO_CANCEL), an_envelope(), {"rate": RATE}, CANCELLED, ["rate"]),
        (Server(), an_envelope(reserved=True), {"rate": RATE}, None, []),
        (Server(), an_envelope(reserved=True, reserved_ms=1), {"rate": RATE}, MOVED, ["rate"]),
        (Server(paused=True), an_envelope(), {"rate": RATE}, MOVED, ["park"]),
        (Server(paused=True, park=Step.LEFT), an_envelope(), {"rate": RATE}, MOVED, ["park", "rate"]),
    ],
)
async def test_each_check_decides_in_order(
    server: Server, envelope: Envelope, how: dict[str, Any], settlement: Settlement | None, asked: list[str]
) -> None:
    assert await admitted(server, envelope, **how) == settlement
    assert server.asked == asked
