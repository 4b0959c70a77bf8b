"""The way of one message from the wire to the syncer, as a straight line of pure steps.

headers ──retry limit──▶ body ──decode──▶ object ──schema──▶ normalised ──decrypt──▶ what the syncer gets
│                   │                  │                         │
Exhausted          Unreadable         Unreadable          Unreadable or KeyFault
"""

from dataclasses import dataclass, field
from typing import Any, Final

from conquiet.rabbit import schema as schemas
from conquiet.rabbit.decode import DEFAULT_MAX_BYTES, Unreadable, decode
from conquiet.rabbit.decrypt import Decryptor, KeyFault
from conquiet.rabbit.intake import is_exhausted
from conquiet.rabbit.normalize import merge_contact
from conquiet.rabbit.schema import SchemaRegistry
from conquiet.rabbit.settle import Exhausted

EXHAUSTED: Final = Exhausted()


@dataclass(frozen=True, slots=True)
class Ready:
    """A message fit for the syncer. ``repr`` does not show it."""

    message: Any = field(repr=False)


Prepared = Ready | Exhausted | Unreadable | KeyFault


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps with their settings. Has no state: it may run in any thread."""

    schemas: SchemaRegistry
    max_retries: int | None = None
    decryptor: Decryptor | None = None
    max_body_bytes: int = DEFAULT_MAX_BYTES

    @property
    def reads_headers(self) -> bool:
        """Whether :meth:`prepare` looks at headers at all: they need not be decoded if it does not."""
        return self.max_retries is not None

    def prepare(self, headers: object, body: bytes) -> Prepared:
        """Take one delivery through all steps; the first that fails has the last word."""
        if is_exhausted(headers, self.max_retries):
            return EXHAUSTED
        decoded = decode(body, self.max_body_bytes)
        if isinstance(decoded, Unreadable):
            return decoded
        schema = self.schemas.find(decoded)
        if isinstance(schema, Unreadable):
            return schema
        message = schemas.apply(schema, decoded)
        if isinstance(message, Unreadable):
            return message
        if schema.decrypts and self.decryptor is not None and (info := message.get("personalInfo")):
            opened = self.decryptor.open(info)
            if isinstance(opened, Unreadable | KeyFault):
                return opened
            message = merge_contact(message, opened.fields)
        return Ready(message)
