"""Flask: emit messages in the transaction of the request.

    app = App("shop", …)
    extension = FlaskExtension(app, flask_app)

    @flask_app.post("/orders")
    def create():
        extension.session.add(Order(…))
        extension.emit("order.paid", OrderPaid(…))      # published if this request commits
        return "", 201

``extension.session`` is opened at its first use. After the view, and before the response is sent, it is committed if
the status is below 400; otherwise, and after an exception, it is rolled back, even if an error handler returns a
redirect. A commit that fails makes the response a 500. Later in the request, for example in the generator of a
streamed response, ``emit`` is refused. An application that has a session passes it and commits it: Flask-SQLAlchemy
with ``FlaskExtension(app, session=lambda: db.session)``.

See docs/decisions/0024.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra
from conquiet.core.tracing import Headers
from conquiet.errors import ConfigurationError, LifecycleError

require_extra("flask", "flask")

from flask import Flask, Request, has_request_context, request  # noqa: E402
from werkzeug.exceptions import HTTPException  # noqa: E402

from conquiet.app.application import App  # noqa: E402
from conquiet.app.parameters import SessionKind  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Response
    from sqlalchemy.orm import Session

_FIRST_ERROR: Final = 400


@dataclass(slots=True)
class _Transaction:
    """The transaction of one request.

    Attributes:
        session: Its session, if it was used.
        has_failed: The view has raised. An error handler may turn that into a response of any status.
        has_ended: It was committed or rolled back.
    """

    session: "Session | None" = None
    has_failed: bool = False
    has_ended: bool = False


class FlaskExtension:
    """Emit in the transaction of the current request.

    Args:
        app: The application that declares the events.
        flask_app: The Flask application; ``init_app`` adds it later.
        session: Returns the session of the current request, for applications that have one. They commit it.

    Raises:
        ConfigurationError: An argument is of another type.
    """

    def __init__(self, app: App, flask_app: Flask | None = None, *, session: "Callable[[], Any] | None" = None) -> None:
        if not isinstance(app, App):
            raise ConfigurationError(
                f"app must be a conquiet App, got a {type(app).__name__}: FlaskExtension(app, flask_app)"
            )
        self._app = app
        self._session = session
        # By the request itself: requests of a test may share ``g``, and an environ may be passed on.
        self._transactions: WeakKeyDictionary[Request, _Transaction] = WeakKeyDictionary()
        if flask_app is not None:
            self.init_app(flask_app)

    def init_app(self, flask_app: Flask) -> None:
        """Register with a Flask application, as Flask extensions do."""
        if not isinstance(flask_app, Flask):
            raise ConfigurationError(f"flask_app must be a Flask application, got a {type(flask_app).__name__}")
        self._app.registry.events.require_complete()
        flask_app.extensions["conquiet"] = self
        self._watch_errors(flask_app)
        flask_app.after_request(self._after_request)
        flask_app.teardown_request(self._teardown)

    @property
    def session(self) -> "Session":
        """The session of the current request; opened at its first use.

        Raises:
            LifecycleError: No request is being handled here.
        """
        if not has_request_context():
            raise LifecycleError(
                "FlaskExtension.session is the session of a request, and no request is being handled here: outside of "
                "one call app.emit_sync(event, payload, session=…) with a session of your own"
            )
        if self._session is not None:
            given: Session = self._session()
            return given
        current = self._current
        if current.session is None:
            current.session = self._app.assembly.database.source_for(SessionKind.SESSION)()
        return current.session

    def emit(
        self,
        event: str,
        payload: Any = None,
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
        key: str | None = None,
        headers: Headers | None = None,
    ) -> str:
        """Emit a message in the transaction of the current request and return its id.

        Args:
            event: An event that the app handles or declares.
            payload: An object of the event's model, or a mapping that fits it.
            delay_s: Seconds until it is due.
            at: The moment it is due, with a time zone.
            key: Messages of one key run one at a time and in order, over all hosts; see docs/ordering.md.
            headers: Names and texts that are sent with the message.

        Raises:
            LifecycleError: No request is being handled here.
            ConfigurationError: The event is unknown, or an argument is wrong. Nothing was written.
            PayloadError: The payload does not fit the event's model. Nothing was written.
        """
        session = self.session
        if self._session is None and self._current.has_ended:
            raise LifecycleError(
                "the transaction of this request has ended, so the message would be lost: emit it in the view, before "
                "the response is streamed and before functions of after_request and teardown_request run"
            )
        return self._app.emit_sync(event, payload, session=session, delay_s=delay_s, at=at, key=key, headers=headers)

    @property
    def _current(self) -> _Transaction:
        return self._transactions.setdefault(request._get_current_object(), _Transaction())  # type: ignore[attr-defined] # noqa: SLF001 - the object behind the proxy

    def _watch_errors(self, flask_app: Flask) -> None:
        """Record exceptions of views: an error handler may turn one into a redirect, which is not an error status."""
        handle = flask_app.handle_user_exception

        def handle_and_record(*arguments: Any) -> Any:
            error = arguments[-1]  # behind the context, since Flask 3.2
            # An abort() counts by its status, if it has one: abort(redirect(…)) does not.
            if not isinstance(error, HTTPException) or (error.code or 0) >= _FIRST_ERROR:
                self._current.has_failed = True
            return handle(*arguments)

        flask_app.handle_user_exception = handle_and_record  # type: ignore[method-assign, assignment] # there is no hook

    def _after_request(self, response: "Response") -> "Response":
        current = self._current
        current.has_ended = True
        try:
            if current.session is not None and response.status_code < _FIRST_ERROR and not current.has_failed:
                current.session.commit()
        finally:
            self._close()
        return response

    def _teardown(self, _error: BaseException | None) -> None:
        self._close()  # a session left after an exception that Flask re-raises, as in its test mode

    def _close(self) -> None:
        """Close the session, which rolls back what was not committed."""
        session, self._current.session = self._current.session, None
        if session is not None:
            session.close()


describe_constructors(globals())
