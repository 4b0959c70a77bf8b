"""Compare the versions of servers."""


def release_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (10, 11) of ``10.11.6-MariaDB``."""
    return tuple(int(part) for part in version.partition("-")[0].split(".")[:2] if part.isdecimal())
