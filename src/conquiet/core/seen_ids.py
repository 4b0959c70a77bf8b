"""Remember entries that were reported: an entry that is never settled returns with every claim. Pure."""

from collections import OrderedDict

_REMEMBERED = 10_000


class SeenIds:
    """Remembers the last ten thousand entries that were reported."""

    def __init__(self) -> None:
        # A text as the key, not a tuple: ten thousand tuples are work for every run of the garbage collector.
        self._seen: OrderedDict[str, None] = OrderedDict()

    def add(self, stream: str, message_id: str) -> bool:
        """Remember the entry; return True if it was not known."""
        key = f"{message_id} {stream}"
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def is_known(self, stream: str, message_id: str) -> bool:
        """True if this entry is remembered."""
        return f"{message_id} {stream}" in self._seen
