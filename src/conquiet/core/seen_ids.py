"""Remember entries that were reported: an entry that is never settled returns with every claim. Pure."""

_REMEMBERED = 10_000


class SeenIds:
    """Remembers the last ten thousand entries that were reported, and at most as many again."""

    def __init__(self) -> None:
        # Two sets in turn: to forget the oldest of one collection with every new entry costs as much as the rest.
        # A text as the key, not a tuple: ten thousand tuples are work for every run of the garbage collector.
        self._recent: set[str] = set()
        self._older: set[str] = set()

    def add(self, stream: str, message_id: str) -> bool:
        """Remember the entry; return True if it was not known."""
        key = f"{message_id} {stream}"
        if key in self._recent or key in self._older:
            return False
        if len(self._recent) == _REMEMBERED:
            self._older, self._recent = self._recent, set()
        self._recent.add(key)
        return True

    def is_known(self, stream: str, message_id: str) -> bool:
        """True if this entry is remembered."""
        key = f"{message_id} {stream}"
        return key in self._recent or key in self._older
