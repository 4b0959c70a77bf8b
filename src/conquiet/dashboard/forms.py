"""Parse URL-encoded forms. The parser of starlette would need one more dependency."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from conquiet.dashboard.security import MOST_BODY

if TYPE_CHECKING:
    from starlette.requests import Request

_MOST_FIELDS: Final = 2_000
_MOST_TEXT: Final = 1_000
_KIND: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form, in their order."""

    pairs: tuple[tuple[str, str], ...]

    def text(self, name: str, default: str = "") -> str:
        """Return the first value of a name, truncated to 1,000 characters."""
        return next((value[:_MOST_TEXT] for known, value in self.pairs if known == name), default)

    def whole(self, name: str) -> str:
        """Return the first value of a name without truncation, for a field of many lines."""
        return next((value for known, value in self.pairs if known == name), "")

    def texts(self, name: str) -> list[str]:
        """Return all values of a name."""
        return [value[:_MOST_TEXT] for known, value in self.pairs if known == name]


async def read_form(request: "Request") -> Form:
    """Return the form of a request; an empty form if the body is not a readable form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _KIND:
        return Form(())
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:  # more than Content-Length
            return Form(())
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return Form(())
    return Form(tuple(pairs))
