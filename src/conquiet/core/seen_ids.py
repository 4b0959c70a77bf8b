"""Remember reported entries: every claim returns an unsettled entry again. Pure."""

_REMEMBERED = 10_000


class SeenIds:
    """Remembers the last 10,000 reported entries, and at most 20,000."""

    def __init__(self) -> None:
        # Two rotating sets: removing the oldest entry of one collection for every new entry would double the cost.
        # The key is a string, not a tuple: the garbage collector would scan 10,000 tuples in every run.
        self._recent: set[str] = set()
        self._older: set[str] = set()

    def add(self, stream: str, message_id: str) -> bool:
        """Remember the entry. Return True if it was new."""
        key = f"{message_id} {stream}"
        if key in self._recent or key in self._older:
            return False
        if len(self._recent) == _REMEMBERED:
            self._older, self._recent = self._recent, set()
        self._recent.add(key)
        return True

    def is_known(self, stream: str, message_id: str) -> bool:
        """Return True if the entry is remembered."""
        key = f"{message_id} {stream}"
        return key in self._recent or key in self._older
