"""What may be shown: URLs without their secrets, foreign text without its line breaks."""

from urllib.parse import urlsplit

_SHOWN = 120


def redact_url(url: str) -> str:
    """Return ``url`` fit for logs and screens: no user name, no password, no query.

    The query goes too: clients accept ``?password=…`` and more there. With an ``@`` behind the host only the scheme is
    left: then the "host" is most likely the beginning of a password with a slash in it.
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


def printable(text: object, *, limit: int = _SHOWN) -> str:
    r"""Return foreign text so that it cannot forge a log line: escaped and cut.

    A message id with a newline in it would otherwise write a line of its own.
    """
    shown = str(text)
    cut = shown if len(shown) <= limit else shown[:limit] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
