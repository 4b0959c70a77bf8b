"""Define and check the settings of one consumer. SPEC(004 §1)."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, get_args

from conquiet.core.backoff import Backoff
from conquiet.core.batching import BatchSettings, batch_settings
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.validation import require_bool, require_instance, require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.rabbit.decode import DEFAULT_MAX_BYTES
from conquiet.rabbit.message_schemas import SchemaRegistry
from conquiet.rabbit.proca.keystore import KeyStore
from conquiet.rabbit.settle import OnExhausted, PolicyName, SettlePolicy
from conquiet.rabbit.syncer import Syncer
from conquiet.rabbitmq_api import RabbitApi

P = ParamSpec("P")
R = TypeVar("R")

Urls = str | Sequence[str]
WithoutDeadLetters = Literal["move", "discard"]

PREFETCH_LIMIT: Final = 65_535  # the protocol has 16 bits for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """Settings of one consumer, checked when they are created.

    Attributes:
        concurrency: Number of messages (or batches) that the syncer handles concurrently.
        prefetch: Maximum number of unsettled messages; 2 x concurrency unless set.
        batch: Call the syncer with a list of at most this number of messages; None calls it with one message. An unset
            prefetch grows with it, so that the next batch is delivered while one is handled.
        within_s: Deadline for the effect of the first message of a batch, 0.02 s by default. The batch is gathered for
            this time minus the recent batch duration, but for at least half of it.
        max_retries: Messages that were dead-lettered more often than this are not processed. None: no limit.
        key_store: Decrypts ``personalInfo`` of actions. None: it stays encrypted.
        tag: Second half of the consumer tag, ``<hostname>.<tag>``; the package's name unless set.
        schemas: The accepted messages. None: any JSON object. ``sync_queue`` accepts the schemas of the original.
        settle: How to detect that a failing message was tried before; see ``settle.py``.
        max_requeues: With ``settle="delivery_count"``: how often a failing message returns to the queue.
        exhausted: Treatment of a message past ``max_retries``. ``"move"``: moved to ``<queue>.dead``. ``"drop"``:
            acknowledged without processing; the default of ``sync_queue``. ``"dead_letter"``: treated like a failed
            message; do not combine it with a dead-letter exchange that leads back to this queue, because the message
            would never leave that circuit.
        poison_guard: Dead-letter a message that was seen before and breaks the syncer's contract again, instead of
            leaving it to the next process. A process dead-letters at most one: several are more likely an outage.
        dead_letter: Whether the queue has a dead-letter exchange that leads to a queue. None: unknown; the consumer
            queries the management API, or else reads the queue's arguments by AMQP.
        require_dead_letter: Refuse to start unless the queue is known to have one.
        without_dead_letters: Treatment of a failed message if no dead-letter exchange is known. ``"move"``: the
            consumer publishes it to the durable queue ``<queue>.dead``, waits for the confirmation, and then
            acknowledges it. ``"discard"``: the consumer rejects it and the broker deletes it; the default of
            ``sync_queue``.
        management_url: ``http://user:password@host:15672``, used only to check the dead-letter exchange.
        max_body_bytes: A larger body is a failure of the message; it is not parsed.
        grace_s: Time for running handlers to finish when the consumer stops. Kubernetes kills after 30 s.
        heartbeat_s: Proposed heartbeat; None uses the broker's. 0 is refused: a dead peer would never be noticed.
        connect_timeout_s: Longest wait for one connection, and for each reply while opening or closing it.
        max_reconnects: Consecutive failed attempts after which a lost connection is an error.
        reconnect: Waiting times between these attempts.
        outage: Length of the pauses after the syncer raised ``InfrastructureError``; see ``outage.py``.
        ssl_context: For ``amqps://``; the default verifies the certificate and the host name.
        log_tracebacks: Log whole tracebacks of syncers. They end in exception texts, which may quote messages.
    """

    concurrency: int = 1
    prefetch: int | None = None
    batch: int | None = None
    within_s: float | None = None
    max_retries: int | None = None
    key_store: KeyStore | None = field(default=None, repr=False)
    tag: str | None = None
    schemas: SchemaRegistry | None = None
    settle: PolicyName = "redelivered"
    max_requeues: int = 1
    exhausted: OnExhausted = "move"
    poison_guard: bool = False
    dead_letter: bool | None = None
    require_dead_letter: bool = False
    without_dead_letters: WithoutDeadLetters = "move"
    management_url: str | None = field(default=None, repr=False)
    max_body_bytes: int = DEFAULT_MAX_BYTES
    grace_s: float = 25.0
    heartbeat_s: int | None = None
    connect_timeout_s: float = 10.0
    max_reconnects: int = 30
    reconnect: Backoff = field(default_factory=lambda: Backoff(base_s=0.2, cap_s=30.0))
    outage: Backoff = field(default_factory=lambda: Backoff(base_s=1.0, cap_s=30.0))
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    log_tracebacks: bool = False

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_requeues", "max_body_bytes", "max_reconnects"):
            require_positive(name, getattr(self, name))
        for name in ("prefetch", "max_retries", "heartbeat_s"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        require_seconds("grace_s", self.grace_s, zero_allowed=True)
        require_seconds("connect_timeout_s", self.connect_timeout_s)
        if self.tag is not None:
            require_text("tag", self.tag)
        gathered = self.batches
        if gathered is not None and self.prefetch is not None and self.prefetch < gathered.size:
            raise ConfigurationError(
                f"prefetch is {self.prefetch} and batch is {gathered.size}: the broker would never send a whole batch. "
                "Leave prefetch out, or give at least the size of a batch"
            )
        require_positive("prefetch", self.window, most=PREFETCH_LIMIT)
        self._check_choices()
        self._check_objects()

    def _check_choices(self) -> None:
        _require_choice("settle", self.settle, get_args(PolicyName))
        _require_choice("exhausted", self.exhausted, get_args(OnExhausted))
        _require_choice("without_dead_letters", self.without_dead_letters, get_args(WithoutDeadLetters))
        for name in ("poison_guard", "require_dead_letter", "log_tracebacks"):
            require_bool(name, getattr(self, name))
        _require_choice("dead_letter", self.dead_letter, (True, False, None))

    def _check_objects(self) -> None:
        if not isinstance(self.schemas, SchemaRegistry | None):
            raise ConfigurationError("schemas must be a SchemaRegistry, or None to accept any JSON object")
        for name in ("reconnect", "outage"):
            require_instance(name, getattr(self, name), Backoff)
        if self.key_store is not None and not callable(getattr(self.key_store, "private_key", None)):
            raise ConfigurationError("key_store must have a method private_key(public); see FileKeyStore")
        if self.key_store is not None and self.schemas is None:
            raise ConfigurationError(
                "key_store opens the personalInfo of proca:action:2; pass schemas=SchemaRegistry() too, "
                "because without it any JSON object is accepted as it is"
            )
        if self.management_url is not None:
            RabbitApi(self.management_url)  # raises if it cannot be used
        if self.require_dead_letter and self.dead_letter is None and self.management_url is None:
            raise ConfigurationError(
                "require_dead_letter needs a way to know: pass management_url, or dead_letter=True if you are sure"
            )

    @property
    def window(self) -> int:
        """The prefetch of the consumer: 2 x concurrency batches or messages, unless set."""
        return 2 * self.concurrency * (self.batch or 1) if self.prefetch is None else self.prefetch

    @property
    def batches(self) -> BatchSettings | None:
        """Settings of the batches; None if the syncer receives single messages."""
        return batch_settings(self.batch, self.within_s)

    @property
    def policy(self) -> SettlePolicy:
        """The settings for the disposition of deliveries."""
        return SettlePolicy(
            name=self.settle,
            max_requeues=self.max_requeues,
            exhausted=self.exhausted,
            poison_guard=self.poison_guard,
        )


def takes_settings(
    settings: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Urls, str, Syncer, P], R]]:
    """Declare that a function ``(url, queue, syncer, **options)`` takes the fields of ``settings`` as options.

    Type checkers and ``help()`` then show every option. The settings are declared once, in ``RabbitSettings``.
    """
    return takes_keywords_of(settings)


def method_takes_settings(
    settings: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, Urls, str, Syncer, P], R]]:
    """Declare that a method ``(self, url, queue, syncer, **options)`` takes the fields of ``settings`` as options."""
    return takes_keywords_of(settings)


def seed_defaults() -> dict[str, Any]:
    """Return the settings of seed 004 that differ from the defaults of ``RabbitConsumer``."""
    return {"schemas": SchemaRegistry(), "exhausted": "drop", "without_dead_letters": "discard"}


def _require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    # The type is compared too: 1 == True, and "poison_guard=1" is a mistake.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}")
