"""Remember entries that were reported: an entry that is never settled returns with every claim. Pure."""

from collections import OrderedDict

_REMEMBERED = 10_000


class SeenIds:
    """Remembers the last ten thousand entries that were reported."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add(self, stream: str, message_id: str) -> bool:
        """Remember the entry; return True if it was not known."""
        key = (stream, message_id)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def is_known(self, stream: str, message_id: str) -> bool:
        """True if this entry is remembered."""
        return (stream, message_id) in self._seen
