"""Observing without risk. Apart from the registry, so that a room can be imported without Prometheus' import time."""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

logger = logging.getLogger("conquiet.metrics.registry")  # where operators know it from

P = ParamSpec("P")


def never_raises(observe: Callable[P, None]) -> Callable[P, None]:
    """Make an observing function safe to call anywhere: a metric must not fail the work it counts."""

    @functools.wraps(observe)
    def safely(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            observe(*args, **kwargs)
        except Exception:
            # The arguments are labels and numbers, but they stay out of the log all the same.
            logger.debug("metric not recorded", extra={"observer": observe.__name__}, exc_info=True)

    return safely
