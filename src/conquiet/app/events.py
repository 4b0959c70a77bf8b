"""The events that an application knows: their payload models, and the versions of their payloads. Pure.

An event is known if the application handles it, or declares it for another service (``app.declare``). Emitting an
unknown event is refused: a typo would otherwise become a message that no process handles.

An event with a changed payload gets upgrade functions, one per old version:

    payload of version 1 ──upgrade 1──▶ version 2 ──upgrade 2──▶ version 3 ──▶ model

Only such an event carries its version, in the key ``_version`` of the payload. A payload without it is of version 1.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from conquiet.app.payloads import PayloadModel, encode_untyped
from conquiet.core.functions import require_plain_function
from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive
from conquiet.errors import ConfigurationError, PayloadError

VERSION_KEY: Final = "_version"

Upgrade: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


class Event:
    """One known event.

    Args:
        name: Its name.
        model: Annotation of its payload; None accepts any.
        upgrades: Converts a payload of a version to the next version. It may be filled later.
    """

    def __init__(self, name: str, model: Any = None, upgrades: Mapping[int, Upgrade] | None = None) -> None:
        self.name = name
        self._model = None if model is None else PayloadModel(name, model)
        self._upgrades = {} if upgrades is None else upgrades

    @property
    def version(self) -> int:
        """The version that is emitted now."""
        return max(self._upgrades, default=0) + 1

    def require_complete(self) -> None:
        """Raise ``ConfigurationError`` if an upgrade between two versions is missing."""
        missing = [version for version in range(1, self.version) if version not in self._upgrades]
        if missing:
            raise ConfigurationError(
                f"event {self.name!r} is at version {self.version} and has no upgrade of version {missing[0]}: add "
                f"@app.upgrade({self.name!r}, {missing[0]})"
            )

    def encode(self, payload: Any) -> dict[str, Any]:
        """Return the JSON object to send.

        Raises:
            PayloadError: It does not fit the model.
        """
        data = encode_untyped(payload) if self._model is None else self._model.encode(payload)
        if self._upgrades:
            data[VERSION_KEY] = self.version
        return data

    @property
    def is_plain(self) -> bool:
        """True if the handler gets the JSON object unchanged."""
        return not self._upgrades and self._model is not None and self._model.is_plain

    def decoder(self) -> Callable[[Mapping[str, Any]], Any]:
        """Return ``decode``, or the model's without upgrades, which saves a call per message."""
        return self.decode if self._upgrades or self._model is None else self._model.decode

    def decode(self, data: Mapping[str, Any]) -> Any:
        """Return what the handler gets: the model's object.

        Raises:
            PayloadError: It does not fit the model, an upgrade failed, or its version is newer than this process knows.
        """
        if self._upgrades:
            data = self._upgraded(dict(data))
        return dict(data) if self._model is None else self._model.decode(data)

    def _upgraded(self, data: dict[str, Any]) -> dict[str, Any]:
        version = data.pop(VERSION_KEY, 1)
        if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= self.version:
            known = isinstance(version, int) and version > self.version
            raise self._refused("is newer than this process knows" if known else "is not a version number")
        for step in range(version, self.version):
            try:
                data = dict(self._upgrades[step](data))
            except Exception as error:  # noqa: BLE001 - a function of the user's
                # Its text may quote the payload, and a KeyError is the payload's fault: only the type is shown.
                raise self._refused(f"cannot be upgraded from {step}: {type(error).__name__}") from None
        return data

    def _refused(self, reason: str) -> PayloadError:
        return PayloadError(
            f"the version of a payload of event {self.name!r} {reason}; here it is at version {self.version}",
            reason=reason,
            path=f"$.{VERSION_KEY}",
        )


class Events:
    """The known events of an application."""

    def __init__(self) -> None:
        self._known: dict[str, Event] = {}
        self._upgrades: dict[str, dict[int, Upgrade]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def add(self, name: str, model: Any) -> Event:
        """Make an event known.

        Raises:
            ConfigurationError: It is known already, or the model cannot be built.
        """
        if name in self._known:
            raise ConfigurationError(f"event {name!r} is declared already")
        event = self._known[name] = Event(name, model, self._upgrades.setdefault(name, {}))
        return event

    def add_upgrade(self, name: str, version: int, function: Upgrade) -> None:
        """Add an upgrade function, before or after the event itself."""
        require_positive("version", version)
        require_plain_function("an upgrade", function)
        known = self._upgrades.setdefault(name, {})
        if version in known:
            raise ConfigurationError(f"event {name!r} has an upgrade of version {version} already")
        known[version] = function

    def find(self, name: object) -> Event:
        """Return a known event.

        Raises:
            ConfigurationError: It is unknown. The text suggests the known name that is most like it.
        """
        event = self._known.get(name) if isinstance(name, str) else None
        if event is None:
            raise ConfigurationError(_unknown(name, self._known))
        return event

    def require_complete(self) -> None:
        """Raise ``ConfigurationError`` for upgrades of an unknown event, or a missing upgrade."""
        for name in self._upgrades:
            self.find(name)
        for event in self._known.values():
            event.require_complete()


def _unknown(name: object, known: Iterable[str]) -> str:
    if not isinstance(name, str):
        return f"an event is named by a text, got a {type(name).__name__}"
    shown = printable(name)
    close = difflib.get_close_matches(name, known, n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return (
        f"event {shown!r} is not known to this app: {suggestion}If another service handles it, declare it with "
        f"app.declare({shown!r}, Model)"
    )
