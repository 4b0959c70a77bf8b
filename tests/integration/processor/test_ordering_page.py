"""The code of docs/ordering.md, run from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from conquiet.processor import Layout
from conquiet.processor.keys import keys_of

PAGE = Path(__file__).parents[3] / "docs" / "ordering.md"


async def test_the_examples_of_the_page_run(
    redis_url: str, key_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = f"{key_prefix}payments"
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    client: Any = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    names: dict[str, Any] = {"redis": client}
    exec(compile(code.replace('"payments"', repr(stream)), "docs/ordering.md", "exec"), names)

    await names["example"]()
    await names["partitioned_example"]()

    assert capsys.readouterr().out == "1\n"
    assert await client.llen(keys_of(stream).waiting("account-7")) == 2  # behind the first: it stays in its partition
    assert await names["payments"].as_stream.layout() == Layout(32, previous=1)
    for one in (names["processor"], names["payments"]):
        await one.close()
    await client.aclose()
