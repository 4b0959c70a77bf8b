"""Prepare one delivery for the syncer, in pure steps.

    headers ──retry limit──▶ body ──decode──▶ object ──schema──▶ normalised ──decrypt──▶ message for the syncer
                 │                    │                 │                        │
             Exhausted           Unreadable        Unreadable         Unreadable or KeyFault

The first step that refuses a message ends the preparation.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from conquiet.rabbit import message_schemas
from conquiet.rabbit.death_headers import retry_count
from conquiet.rabbit.decode import DEFAULT_MAX_BYTES, Unreadable, decode
from conquiet.rabbit.message_schemas import SchemaRegistry
from conquiet.rabbit.proca.decrypt import Decryptor, KeyFault
from conquiet.rabbit.proca.normalize import merge_contact
from conquiet.rabbit.settle import Exhausted

if TYPE_CHECKING:
    from conquiet.rabbit.settings import RabbitSettings

EXHAUSTED: Final = Exhausted()


@dataclass(slots=True)  # not frozen: that costs more, and one object is created per message
class Ready:
    """A prepared message for the syncer. ``repr`` does not show it."""

    message: Any = field(repr=False)


Prepared = Ready | Exhausted | Unreadable | KeyFault


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps with their settings. Stateless: any thread may call it."""

    schemas: SchemaRegistry | None = None
    max_retries: int | None = None
    decryptor: Decryptor | None = None
    max_body_bytes: int = DEFAULT_MAX_BYTES

    @classmethod
    def of(cls, settings: "RabbitSettings") -> "Pipeline":
        """Return the pipeline of a consumer with these settings."""
        decryptor = None if settings.key_store is None else Decryptor(settings.key_store)
        return cls(settings.schemas, settings.max_retries, decryptor, settings.max_body_bytes)

    @property
    def reads_headers(self) -> bool:
        """True if :meth:`prepare` reads headers. If not, they need not be decoded."""
        return self.max_retries is not None

    def prepare(self, headers: object, body: bytes) -> Prepared:
        """Return the message for the syncer, or the result of the first step that refuses it."""
        if self.max_retries is not None and retry_count(headers) > self.max_retries:
            return EXHAUSTED
        decoded = decode(body, self.max_body_bytes)
        if isinstance(decoded, Unreadable):
            return decoded
        return Ready(decoded) if self.schemas is None else self._fit(decoded, self.schemas)

    def _fit(self, decoded: dict[str, Any], registry: SchemaRegistry) -> Prepared:
        schema = registry.find(decoded)
        if isinstance(schema, Unreadable):
            return schema
        message = message_schemas.apply(schema, decoded)
        if isinstance(message, Unreadable):
            return message
        if schema.decrypts and self.decryptor is not None and (info := message.get("personalInfo")):
            opened = self.decryptor.open(info)
            if isinstance(opened, Unreadable | KeyFault):
                return opened
            message = merge_contact(message, opened.fields)
        return Ready(message)
