"""Messages for tests without a server."""

from typing import Any

from conquiet.runtime.message import RuntimeMessage


def a_message(message_id: str = "1-0", stream: str = "s", **facts: Any) -> RuntimeMessage:
    """Return a message with these fields. It holds a secret, which nothing may show."""
    return RuntimeMessage(stream, message_id, {"secret": "x"}, **facts)
