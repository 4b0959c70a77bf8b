"""Log lines with their facts: ``extra`` is where conquiet puts them, and the standard format leaves them out."""

import logging

from conquiet.kernel.redaction import printable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FactsFormatter(logging.Formatter):
    """Time, level, process, logger, message, then ``name=value`` for each fact."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line = super().format(record)
        return line + "".join(f" {name}={printable(value)}" for name, value in facts.items())


def set_up_logging(level: str) -> None:
    """Send log lines to stderr, unless the user's module brought handlers of its own later."""
    handler = logging.StreamHandler()
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
