"""Report that a server is unavailable: one line when it begins, a counter while it lasts, one line when it ends.

Several parts of a process use one server: the fetcher, the acknowledger, the heartbeat, housekeeping. Each has an
``OutageWatch`` and reports its failures and successes to it. Together they are one outage: it begins with the first
part that fails and ends when every failed part has succeeded or has been closed. A part that was garbage-collected
without ``close()`` is removed: it must not hide the next outage of its server.

    first failure ──▶ one line ──▶ further failures: counted ──▶ last part succeeds ──▶ one line, with the duration

See docs/decisions/0058.
"""

import logging
import threading
import time
import weakref
from dataclasses import dataclass, field

from conquiet.core.log import FactLogger
from conquiet.metrics.registry import SERVER_FAILED_ATTEMPTS_TOTAL, SERVER_OUTAGES_TOTAL
from conquiet.metrics.safety import count

logger = FactLogger("conquiet.outages")

_REPORTED = "__conquiet_outage__"


def is_reported(error: BaseException) -> bool:
    """Return whether the error is part of an outage that was already logged."""
    return hasattr(error, _REPORTED)


@dataclass(slots=True)
class _KnownOutage:
    address: str
    began_at: float
    attempts: int = 0
    parts: "weakref.WeakSet[OutageWatch]" = field(default_factory=weakref.WeakSet)


class _Outages:
    """The outages of this process, by server and address. Used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[tuple[str, str], _KnownOutage] = {}

    def add(self, watch: "OutageWatch", error: BaseException | None, address: str) -> None:
        count(SERVER_FAILED_ATTEMPTS_TOTAL, watch.server)
        with self._lock:
            self._forget_dropped()
            outage = self._find(watch.server, address)
            is_new = outage is None
            if outage is None:
                outage = self._current[watch.server, address] = _KnownOutage(address, time.monotonic())
            outage.attempts += 1
            outage.parts.add(watch)
        if is_new:
            count(SERVER_OUTAGES_TOTAL, watch.server)
            where = " at %(address)s" if address else ""
            logger.failure(
                logging.WARNING,
                f"%(server)s{where} is unavailable; %(stops)s until it is back",
                error,
                server=watch.server,
                address=address,
                stops=watch.stops,
            )

    def remove(self, watch: "OutageWatch", *, is_back: bool) -> None:
        ended: list[_KnownOutage] = []
        with self._lock:
            self._forget_dropped()
            for key, outage in list(self._current.items()):
                outage.parts.discard(watch)
                if not outage.parts:
                    del self._current[key]
                    ended.append(outage)
        for outage in ended:
            where = " at %(address)s" if outage.address else ""
            state = "is available again after" if is_back else "was still unavailable when the worker ended, for"
            text = f"%(server)s{where} {state} %(outage_s)s s and %(attempts)s failed attempts"
            logger.warning(
                text,
                server=watch.server,
                address=outage.address,
                outage_s=round(time.monotonic() - outage.began_at, 1),
                attempts=outage.attempts,
            )

    def _forget_dropped(self) -> None:
        for key, outage in list(self._current.items()):
            if not outage.parts:
                del self._current[key]

    def _find(self, server: str, address: str) -> _KnownOutage | None:
        """Return the outage of this address. Without an address, return any outage of this kind of server.

        An outage recorded without an address does not match a known address, because it may be another server.
        """
        if address:
            return self._current.get((server, address))
        return next((one for (kind, _), one in self._current.items() if kind == server), None)


_OUTAGES = _Outages()


class OutageWatch:
    """The availability of a server for one part of a worker.

    Args:
        server: Kind of server, as shown in the log: ``Redis``, ``RabbitMQ``, ``the database``.
        stops: Effect of the outage, for the log: "nothing is read from orders".

    Attributes:
        is_failing: True from a failure until the next success.
    """

    def __init__(self, server: str, stops: str) -> None:
        self.server = server
        self.stops = stops
        self.is_failing = False
        self._is_closed = False

    def failed(self, error: BaseException | None, *, address: str = "") -> None:
        """Report a failed attempt. Only the first failure of all parts is logged. Ignored after ``close()``."""
        if error is not None:
            setattr(error, _REPORTED, True)
        if self._is_closed:  # a thread was still waiting for a reply: no success would ever end this outage
            return
        self.is_failing = True
        _OUTAGES.add(self, error, address)

    def succeeded(self) -> None:
        """Report a success. Costs nothing unless an attempt has failed."""
        if self.is_failing:
            self.is_failing = False
            _OUTAGES.remove(self, is_back=True)

    def close(self) -> None:
        """Remove this part from its outage, because the part ends."""
        self._is_closed = True
        if self.is_failing:
            self.is_failing = False
            _OUTAGES.remove(self, is_back=False)
