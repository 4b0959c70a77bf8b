"""Dead letters as ``conquiet dead-letters`` prints them: payloads only if asked for, and every line ours."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from conquiet.cli.output import print_json
from conquiet.kernel.redaction import printable

if TYPE_CHECKING:
    from conquiet.processor import DeadMessage

WHOLE = 2**30
"""No text is cut here."""


def print_delivery(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print what is known of a message of RabbitMQ, and each time it died."""
    if as_json:
        print_json(facts)
        return
    print_facts(facts, apart="deaths")
    for death in facts["deaths"]:
        told = f"{death['time'] or '-'} {death['reason']} in {death['queue']}, {death['count']} times"
        typer.echo(f"died         {printable(told, limit=WHOLE)}")


def print_facts(facts: dict[str, Any], *, apart: str) -> None:
    """Print a line for each, escaped: whoever sent a message must not write lines of his own."""
    for key, value in facts.items():
        if key != apart:
            shown = ", ".join(value) if isinstance(value, list) else value
            typer.echo(f"{key:<12} {'-' if shown in (None, '') else printable(shown, limit=WHOLE)}")


def facts_of_message(dead: "DeadMessage", *, show_payload: bool) -> dict[str, Any]:
    """Return what a list tells of a message of the processor."""
    record = dead.record
    facts: dict[str, Any] = {
        "id": dead.id,
        "event": record.event,
        "group": record.group,
        "reason": record.reason,
        "error": record.error_type,
        "attempts": record.attempts,
        "died": time_of(dead.died_ms),
    }
    return facts | ({"payload": record.payload} if show_payload else {})


def facts_of_delivery(one: Any, *, show_payload: bool) -> dict[str, Any]:
    """Return what a list tells of a message of RabbitMQ."""
    facts: dict[str, Any] = one.as_dict()
    body = facts.pop("body")
    return facts | ({"payload": body.decode("utf-8", "backslashreplace")} if show_payload else {})


def time_of(milliseconds: int) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
