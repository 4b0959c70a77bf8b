"""What was told already: an entry that nobody settles comes again with every claim. Pure."""

from collections import OrderedDict

_REMEMBERED = 10_000


class News:
    """Remembers the entries that something was told about, the last ten thousand of them."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_new(self, stream: str, message_id: str) -> bool:
        """True the first time that this entry is asked about."""
        key = (stream, message_id)
        if key in self._told:
            return False
        self._told[key] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return True
