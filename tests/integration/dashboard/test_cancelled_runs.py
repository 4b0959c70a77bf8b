"""A bulk run that is cancelled leaves what it has not reached."""

from typing import Any

from tests.integration.dashboard.test_requests import open_client, post  # noqa: F401 - a fixture

from conquiet.testing import wait_until_async


async def test_a_cancelled_run_stops_and_leaves_the_rest(open_client: Any, add_dead: Any, raw: Any) -> None:  # noqa: F811
    add_dead("orders", 400)
    client = open_client()
    answer = await post(
        client, "/dead?stream=orders", "/dead/act", do="discard", scope="all", stream="orders", rate="100"
    )
    run = str(answer.url).partition("id=")[2].partition("&")[0]

    async def is_counted() -> bool:
        return 'data-state="counted"' in (await client.get(f"/run?id={run}")).text

    await wait_until_async(is_counted)
    fields = {"id": run, "stream": "orders", "do": "discard"}
    await post(client, f"/run?id={run}", "/run/confirm", **fields)
    await wait_until_async(lambda: raw.xlen("{orders}:dead") < 400)
    await post(client, f"/run?id={run}", "/run/cancel", **fields)

    assert 'data-state="cancelled"' in (await client.get(f"/run?id={run}")).text
    left = raw.xlen("{orders}:dead")
    assert 0 < left < 400
