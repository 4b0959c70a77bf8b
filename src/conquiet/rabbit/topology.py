"""Does the queue have a dead-letter exchange? AMQP cannot say; the management API can.

Without one, a reject without requeue discards the message silently. So the question is asked at the start, when
somebody gave us the address of the management API, and the answer is logged or insisted on.
"""

import base64
import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from conquiet.errors import RabbitError
from conquiet.kernel.redaction import redact_url

_TIMEOUT_S: Final = 10.0
_OK: Final = 200


def has_dead_letter_exchange(description: Any) -> bool:
    """Read the answer out of the management API's description of a queue: its arguments or its effective policy."""
    facts = description if isinstance(description, dict) else {}
    arguments, policy = facts.get("arguments"), facts.get("effective_policy_definition")
    # The empty name is the default exchange, which is one: only a missing key means "none".
    return (isinstance(arguments, dict) and arguments.get("x-dead-letter-exchange") is not None) or (
        isinstance(policy, dict) and policy.get("dead-letter-exchange") is not None
    )


def ask_management(management_url: str, vhost: str, queue: str) -> Any:
    """Return the management API's description of a queue. Blocks: call it off the event loop.

    Raises:
        RabbitError: No answer, or not a good one. The text has no credentials.
    """
    parts = urlsplit(management_url)
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = f"{parts.path.rstrip('/')}/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
    try:
        with closing(kind(parts.hostname or "localhost", parts.port or 15672, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        if response.status == _OK:
            return json.loads(body)
        reason = f"HTTP {response.status}"
    except (OSError, HTTPException, ValueError) as error:
        reason = type(error).__name__
    raise RabbitError(
        f"the management API at {redact_url(management_url)} does not describe queue {queue}: {reason}",
        queue=queue,
        reason=reason,
    )
