"""Replies to COMMIT that are lost between a database and the workers of a storm, written down when they are.

A proxy loses the reply to the next COMMIT that it sees. If there is none any more the fault has hit nothing, and is not
in the history.
"""

import time

from tests.invariants.histories import History

from conquiet.testing import FaultProxy


class LostReplies:
    """Loses replies to COMMIT, and records each of them.

    Args:
        proxy: Between the workers and their database.
        history: The storm's.
        most: Maximum number of lost replies.
    """

    def __init__(self, proxy: FaultProxy, history: History, most: int) -> None:
        self._proxy, self._history, self._most = proxy, history, most
        self._armed = 0
        self._looked_s = time.monotonic()
        self.struck = 0

    def arm(self) -> None:
        """Lose the reply to the next COMMIT."""
        if self._armed < self._most:
            self._armed += 1
            self._proxy.drop_next_reply(after_request_matching=b"COMMIT")

    def note(self) -> None:
        """Write down what was lost since the last call: it happened between that and now."""
        now, done = time.monotonic(), self._proxy.counters.faults
        for _ in range(done - self.struck):
            self._history.record(
                "fault", kind="lost reply to COMMIT", scope="server", began=self._looked_s, until=round(now, 6)
            )
        self.struck, self._looked_s = done, now

    def end(self) -> None:
        """Lose no more."""
        self._proxy.disarm()
        self.note()
