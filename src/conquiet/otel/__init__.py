"""OpenTelemetry: spans and metrics of messages, by the messaging conventions. Needs the extra ``otel``.

>>> from conquiet.otel import instrument  # doctest: +SKIP
>>> instrument()  # doctest: +SKIP
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("otel", "opentelemetry")

from conquiet.otel.instrumentation import ContextMode, instrument, uninstrument  # noqa: E402

__all__ = ["ContextMode", "instrument", "uninstrument"]

describe_constructors(globals())
