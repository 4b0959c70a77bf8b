"""The settings of one consumer, checked when they are built. SPEC(004 §1)."""

import ssl
from dataclasses import dataclass, field, fields
from typing import Final, TypedDict, get_args

from conquiet.errors import ConfigurationError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.validation import require_positive, require_seconds, require_text
from conquiet.rabbit.decode import DEFAULT_MAX_BYTES
from conquiet.rabbit.keystore import KeyStore
from conquiet.rabbit.schema import SchemaRegistry
from conquiet.rabbit.settle import OnExhausted, PolicyName, SettlePolicy

PREFETCH_LIMIT: Final = 65_535  # the protocol has 16 bits for it


class RabbitOptions(TypedDict, total=False):
    """The keyword arguments of ``RabbitConsumer`` and ``sync_queue``; ``RabbitConfig`` says what each one means."""

    concurrency: int
    prefetch: int | None
    max_retries: int | None
    key_store: KeyStore | None
    tag: str | None
    schemas: SchemaRegistry
    settle: PolicyName
    max_requeues: int
    exhausted: OnExhausted
    poison_guard: bool
    dead_letter: bool | None
    require_dead_letter: bool
    management_url: str | None
    max_body_bytes: int
    grace_s: float
    heartbeat_s: int | None
    connect_timeout_s: float
    max_reconnects: int
    reconnect: Backoff
    ssl_context: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitConfig:
    """How one consumer works.

    Attributes:
        concurrency: How many messages the syncer handles at once.
        prefetch: How many unsettled messages the broker gives us; 2 x concurrency unless set.
        max_retries: Messages that were dead-lettered more often than this are not processed. None: no limit.
        key_store: Opens ``personalInfo`` of actions. None: it stays encrypted.
        tag: Second half of the consumer tag, ``<hostname>.<tag>``; the package's name unless set.
        schemas: Which messages are accepted.
        settle: How a failing message is found to have been tried before; see ``settle.py``.
        max_requeues: With ``settle="delivery_count"``: how often a failing message is put back.
        exhausted: ``"drop"`` acknowledges what is past ``max_retries``, ``"dead_letter"`` parks it. Do not combine the
            latter with a dead-letter exchange that leads back to this queue: the message would go round for ever.
        poison_guard: Dead-letter a message that breaks the system and was seen before, instead of leaving it in front
            of the next process. One for each process at most: when several break, it is an outage.
        dead_letter: Whether the queue has a dead-letter exchange, if you know; None asks the management API.
        require_dead_letter: Refuse to start unless the queue is known to have one.
        management_url: ``http://user:password@host:15672``, only used for that question.
        max_body_bytes: Larger bodies are failures of the message; they are not parsed.
        grace_s: How long running handlers may take to finish once the consumer stops. Kubernetes kills after 30 s.
        heartbeat_s: Proposed heartbeat; None takes the broker's. 0 is refused: a dead peer would never be noticed.
        connect_timeout_s: Longest wait for one connection, and for each answer while setting it up or closing it.
        max_reconnects: Failed attempts in a row after which a lost connection is an error.
        reconnect: How long to wait between them.
        ssl_context: For ``amqps://``; the default verifies the certificate and the host name.
    """

    concurrency: int = 1
    prefetch: int | None = None
    max_retries: int | None = None
    key_store: KeyStore | None = field(default=None, repr=False)
    tag: str | None = None
    schemas: SchemaRegistry = field(default_factory=SchemaRegistry)
    settle: PolicyName = "redelivered"
    max_requeues: int = 1
    exhausted: OnExhausted = "drop"
    poison_guard: bool = False
    dead_letter: bool | None = None
    require_dead_letter: bool = False
    management_url: str | None = field(default=None, repr=False)
    max_body_bytes: int = DEFAULT_MAX_BYTES
    grace_s: float = 25.0
    heartbeat_s: int | None = None
    connect_timeout_s: float = 10.0
    max_reconnects: int = 20
    reconnect: Backoff = field(default_factory=lambda: Backoff(base_s=0.2, cap_s=30.0))
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)

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
        if self.window > PREFETCH_LIMIT:
            raise ConfigurationError(f"prefetch must be at most {PREFETCH_LIMIT}, got {self.window}")
        self._check_choices()
        self._check_objects()

    def _check_choices(self) -> None:
        _require_choice("settle", self.settle, get_args(PolicyName))
        _require_choice("exhausted", self.exhausted, get_args(OnExhausted))
        for name in ("poison_guard", "require_dead_letter"):
            _require_choice(name, getattr(self, name), (True, False))
        _require_choice("dead_letter", self.dead_letter, (True, False, None))

    def _check_objects(self) -> None:
        if not isinstance(self.schemas, SchemaRegistry):
            raise ConfigurationError("schemas must be a SchemaRegistry")
        if not isinstance(self.reconnect, Backoff):
            raise ConfigurationError("reconnect must be a Backoff")
        if self.key_store is not None and not callable(getattr(self.key_store, "private_key", None)):
            raise ConfigurationError("key_store must have a method private_key(public); see FileKeyStore")
        if self.management_url is not None:
            _require_http(self.management_url)
        if self.require_dead_letter and self.dead_letter is None and self.management_url is None:
            raise ConfigurationError(
                "require_dead_letter needs a way to know: pass management_url, or dead_letter=True if you are sure"
            )

    @property
    def window(self) -> int:
        """The prefetch that is asked of the broker: 2 x concurrency unless set."""
        return 2 * self.concurrency if self.prefetch is None else self.prefetch

    @property
    def policy(self) -> SettlePolicy:
        """The part that decides about deliveries."""
        return SettlePolicy(
            name=self.settle,
            max_requeues=self.max_requeues,
            exhausted=self.exhausted,
            poison_guard=self.poison_guard,
        )


def _require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    # Compared by identity of type too: 1 == True, and "poison_guard=1" is a mistake.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}")


def _require_http(url: object) -> None:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):  # not quoted: it may hold a password
        raise ConfigurationError("management_url must be a URL that starts with http:// or https://")


# The options and the settings are the same list, once for type checkers and once for real.
assert set(RabbitOptions.__annotations__) == {setting.name for setting in fields(RabbitConfig)}  # noqa: S101
