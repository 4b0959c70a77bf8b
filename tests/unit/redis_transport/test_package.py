"""Only ``redis_transport`` and ``testing`` call commands of redis-py's clients.

The import contract cannot see such a call: a client is a value. A raw call raises redis-py's errors, and no package
above the transport handles those.
"""

import ast
from pathlib import Path

import pytest
import redis
import redis.commands

PACKAGE = Path(__file__).resolve().parents[3] / "src" / "conquiet"
EXEMPT = {"redis_transport", "testing"}
COMMANDS = {
    name
    for name in (*dir(redis.commands.CoreCommands), "execute_command", "pipeline", "transaction")
    if not name.startswith("_")
}
CLIENTS = ("client", "redis", "pipe", "pipeline")
# redis-py's names that nothing else has, so that the name of the client does not matter.
TELLING = {name for name in COMMANDS if name[:2] in {"zr", "zs", "hs", "hm"} or name[0] == "x"} | {
    "eval", "evalsha", "execute_command", "hdel", "hget", "hgetall", "hincrby", "mget", "pexpire", "pttl", "sadd",
    "sismember", "smembers", "srem", "zadd", "zcard", "zcount",
}  # fmt: skip


def raw_calls(source: str) -> list[str]:
    """Return the calls of redis-py commands in a module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COMMANDS:
            owner = ast.unparse(node.func.value)
            last = owner.rsplit(".", 1)[-1].partition("(")[0].strip("_")
            if node.func.attr in TELLING or last.endswith(CLIENTS):
                found.append(f"{node.lineno}: {owner}.{node.func.attr}")
    return found


@pytest.mark.parametrize(
    "line",
    [
        "client.get('a')",
        "await self._client.hgetall('a')",
        "x.execute_command('TIME')",
        "self._topology.client(s).ping()",
    ],
)
def test_a_raw_call_is_found(line: str) -> None:
    assert raw_calls(f"async def f():\n    {line}")


def test_no_package_above_the_transport_calls_redis_py() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{call}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in EXEMPT
        for call in raw_calls(path.read_text(encoding="utf-8"))
    }

    assert found == set()
