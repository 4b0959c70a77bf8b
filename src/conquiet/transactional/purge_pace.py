"""Set the pace of a purge: slow while it keeps up, faster while old rows accumulate. Pure."""

from typing import Final

LONGEST_PAUSE_S: Final = 60.0
"""A pause is never longer: the server closes the connection of the purger's lock after two idle minutes."""


class PurgePace:
    """The share of the time in which passes of one host work.

    It doubles while a pass does not end, because more rows become old than are deleted; every pass that ends halves it.
    So it stays near what the table needs: a table with 600 new rows a second needs about a hundredth, and a table that
    was not purged for months is emptied within hours.

    Args:
        least: The share to begin with.
        most: The share to end with; ``least`` if that is more.
        hurry_after_s: Time after which a pass that has not ended speeds up.

    Attributes:
        share: The share now.
    """

    def __init__(self, least: float, most: float, *, hurry_after_s: float) -> None:
        self._least = least
        self._most = max(least, most)
        self._hurry_after_s = hurry_after_s
        self._since = 0.0
        self.share = least

    def begin(self, now: float) -> None:
        """Record that a pass begins."""
        self._since = now

    def pause_s(self, now: float, took_s: float) -> float:
        """Return how long to wait after a full batch that took ``took_s``."""
        if now - self._since >= self._hurry_after_s:
            self._since = now
            self.share = min(self.share * 2, self._most)
        return min(took_s * (1 / self.share - 1), LONGEST_PAUSE_S)

    def caught_up(self) -> None:
        """Record that a pass has deleted all old rows."""
        self.share = max(self.share / 2, self._least)
