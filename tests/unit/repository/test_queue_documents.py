"""Facts that only a document can hold: duties of the user, precedence of seeds, required server features."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def words_of(name: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / "docs" / name).read_text(encoding="utf-8"))


@pytest.mark.spec("RS-002.3", "RS-002.7", "RS-002.12", "RS-004.3")
@pytest.mark.parametrize(
    "duty",
    [
        "A handler must be idempotent",
        "Do not rely on message order for correctness",
        "Do not assume that processing is unique, ordered or exactly-once",
        "Consumer names must be unique per active process",
    ],
)
def test_the_users_duties_are_written_down(duty: str) -> None:
    assert duty in words_of("queue.md")


@pytest.mark.spec("RS-000.1")
def test_the_low_level_seed_outranks_the_package_seed() -> None:
    assert "000 beats 001, and 001 beats 003" in words_of("decisions/README.md")


@pytest.mark.spec("RS-000.3")
def test_only_documented_commands_that_every_supported_server_has_are_sent() -> None:
    """Redis 6.2 has all of these; nothing of a newer server, no DEBUG, no undocumented option."""
    documented = {
        "ASKING", "CLIENT", "DEL", "EVAL", "EXISTS", "EXPIRE", "GET", "HDEL", "HINCRBY", "HSET", "INFO", "PTTL", "SADD",
        "SET", "SISMEMBER", "SRANDMEMBER", "SREM", "TIME", "XACK", "XADD", "XCLAIM", "XDEL", "XGROUP", "XINFO", "XLEN",
        "XPENDING", "XRANGE", "XREADGROUP", "XTRIM", "ZADD", "ZCARD", "ZREMRANGEBYRANK", "ZREVRANGE",
    }  # fmt: skip
    sent: set[str] = set()
    source = ROOT / "src" / "conquiet"
    for path in [*source.glob("queue/*.py"), *source.glob("redis_transport/*.py")]:
        code = path.read_text(encoding="utf-8")
        sent |= set(re.findall(r"(?:pack|pack_prefix)\(\s*\"([A-Z]+)\"", code))
        sent |= set(re.findall(r"redis\.p?call\(['\"]([A-Z]+)", code))

    assert sent == documented
