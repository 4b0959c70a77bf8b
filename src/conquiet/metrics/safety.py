"""Record metrics without risk: a metric must not fail the work it counts.

Apart from the registry, so that a package can be imported without Prometheus' import time.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec

logger = logging.getLogger("conquiet.metrics.registry")  # where operators know it from

P = ParamSpec("P")


def count(metric: Any, *labels: str, n: float = 1) -> None:
    """Add ``n`` to a counter, or to a gauge. Never raises."""
    if not n:
        return
    try:
        (metric.labels(*labels) if labels else metric).inc(n)
    except Exception as error:  # noqa: BLE001 - any failure: the work goes on
        _log_failure(metric, error)


def observe(metric: Any, *labels: str, value: float) -> None:
    """Record one value of a histogram. Never raises."""
    try:
        (metric.labels(*labels) if labels else metric).observe(value)
    except Exception as error:  # noqa: BLE001 - any failure: the work goes on
        _log_failure(metric, error)


def set_gauge(metric: Any, *labels: str, value: float) -> None:
    """Set a gauge. Never raises."""
    try:
        (metric.labels(*labels) if labels else metric).set(value)
    except Exception as error:  # noqa: BLE001 - any failure: the work goes on
        _log_failure(metric, error)


def never_raises(record: Callable[P, None]) -> Callable[P, None]:
    """Make a function that records several metrics at once safe to call anywhere."""

    @functools.wraps(record)
    def safely(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - any failure: the work goes on
            _log_failure(record, error)

    return safely


def _log_failure(metric: Any, error: Exception) -> None:
    # Labels and numbers stay out of the log: a caller may have passed a message's text by mistake.
    name = getattr(metric, "_name", None) or getattr(metric, "__name__", type(metric).__name__)
    logger.debug("metric not recorded", extra={"metric": name}, exc_info=error)
