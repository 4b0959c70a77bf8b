"""Record metrics without raising: a metric must not fail the work that it counts.

This module is separate from the registry, so that a package can be imported without the import time of Prometheus.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec

logger = logging.getLogger("conquiet.metrics.registry")  # the name that operators know

P = ParamSpec("P")


def count(metric: Any, *labels: str, n: float = 1) -> None:
    """Add ``n`` to a counter, or to a gauge. Never raises."""
    if not n:
        return
    try:
        (metric.labels(*labels) if labels else metric).inc(n)
    except Exception as error:  # noqa: BLE001 - a metric must not fail the work
        _log_failure(metric, error)


def observe(metric: Any, *labels: str, value: float) -> None:
    """Record one value of a histogram. Never raises."""
    try:
        (metric.labels(*labels) if labels else metric).observe(value)
    except Exception as error:  # noqa: BLE001 - a metric must not fail the work
        _log_failure(metric, error)


def set_gauge(metric: Any, *labels: str, value: float) -> None:
    """Set a gauge. Never raises."""
    try:
        (metric.labels(*labels) if labels else metric).set(value)
    except Exception as error:  # noqa: BLE001 - a metric must not fail the work
        _log_failure(metric, error)


def never_raises(record: Callable[P, None]) -> Callable[P, None]:
    """Wrap a function that records several metrics so that it never raises."""

    @functools.wraps(record)
    def safely(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a metric must not fail the work
            _log_failure(record, error)

    return safely


def _log_failure(metric: Any, error: Exception) -> None:
    # Labels and values are not logged: a caller may have passed the text of a message by mistake.
    name = getattr(metric, "_name", None) or getattr(metric, "__name__", type(metric).__name__)
    logger.debug("metric not recorded", extra={"metric": name}, exc_info=error)
