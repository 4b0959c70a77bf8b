"""Numbers on the command line. ``inf``, ``nan`` and ``1e309`` are floats to its parser, and nobody means them."""

import math
from typing import Final

import typer

FOR_EVER_S: Final = 100 * 365 * 86_400.0
"""A hundred years. What is longer means the same, and neither clocks nor servers can count all of it."""


def finite(value: float) -> float:
    """Refuse what is no number, cut what is out of all measure. The callback of every option that takes a float."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"a finite number is needed, got {value}")
    return min(value, FOR_EVER_S)
