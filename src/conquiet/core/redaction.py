"""Make text safe to show: URLs without secrets, foreign text without line breaks."""

import re
from urllib.parse import urlsplit

_SHOWN = 120

# Up to the last @ before a space or a quote: a password may contain an unescaped @ or slash.
_USER_INFO = re.compile(r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s'\"<>]*@")
_SECRET = r"(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|access[_-]?key)"  # noqa: S105 - names of secrets
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)  # most texts have none, and this check is ten times as fast
_NAMED_SECRET = re.compile(
    rf"(?P<name>[\w-]*{_SECRET}['\"]?\s*[=:]\s*)"
    r"(?!(?-i:YES|NO)\b)(?:'[^']*'|\"[^\"]*\"|[^\s,;&'\")}\]]+)",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(r"(?P<kind>\b(?:bearer|basic)\s+)[A-Za-z0-9+/_.=~-]{8,}", re.IGNORECASE)


def redact_url(url: str) -> str:
    """Return ``url`` without user name, password and query, for logs and screens.

    The query may hold a secret too: clients accept ``?password=…``. If an ``@`` follows the host, only the scheme is
    returned: the "host" is then most likely the beginning of a password that contains a slash.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "<url that cannot be parsed>"
    if not parts.scheme:
        return "<url without a scheme>"
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return f"{parts.scheme}://***"
    secret = "***@" if "@" in parts.netloc else ""
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    netloc = f"{secret}{host}" + (f":{port}" if port is not None else "")
    return f"{parts.scheme}://{netloc}{parts.path}"


def scrub_credentials(text: str) -> str:
    """Return ``text`` with ``***`` in place of the credentials it quotes.

    Credentials are the part before the ``@`` of a URL, the value after ``password=``, ``token:`` and similar names, and
    the text after ``Bearer`` or ``Basic``. Other secrets are not recognised.
    """
    if "://" in text:
        text = _USER_INFO.sub(r"\g<scheme>***@", text)
    text = _AUTHORIZATION.sub(r"\g<kind>***", text)
    return _NAMED_SECRET.sub(r"\g<name>***", text) if _SECRET_NAME.search(text) else text


def printable(text: object, *, limit: int = _SHOWN) -> str:
    r"""Return foreign text escaped and truncated, so that it cannot forge a log line.

    Without this, a message id that contains a newline would write a second line.
    """
    shown = str(text)
    cut = shown if len(shown) <= limit else shown[:limit] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
