"""``App.close()`` releases everything before it returns, and waits for no handler that it is called by."""

import asyncio

from conquiet import App
from conquiet.core.worker_pool import WorkerPool

NOWHERE = "redis://127.0.0.1:1/0"


class Pool:
    """A resource of the process."""


def app_with_resource() -> tuple[App, list[str]]:
    """Return an app with a resource whose clean-up takes a while, and the clean-ups that have ended."""
    app = App("shop", redis=NOWHERE)
    ended: list[str] = []

    async def make_pool():  # type: ignore[no-untyped-def]  # noqa: ANN202 - a factory
        yield Pool()
        await asyncio.sleep(0.05)
        ended.append("pool")

    app.provide(Pool, make_pool, scope="process")

    @app.handler("order.paid")
    async def book(order: dict, pool: Pool) -> None:  # type: ignore[type-arg]
        raise AssertionError

    return app, ended


async def test_close_returns_when_the_resources_of_the_process_are_cleaned_up() -> None:
    """Otherwise the program ends its loop, and with it a clean-up that runs in ``run()``."""
    app, ended = app_with_resource()
    running = asyncio.create_task(app.run())
    await asyncio.sleep(0)  # now it waits for its server
    async with app.registry.resources.open((Pool,)):
        pass

    await app.close()

    assert ended == ["pool"]
    await running


async def test_a_handler_of_another_worker_can_close_an_app_that_only_emits() -> None:
    app, ended = app_with_resource()

    async def handle(_message: str) -> None:
        async with app.lifespan(), app.registry.resources.open((Pool,)):
            pass

    pool = WorkerPool(1, handle, on_free=lambda: None)
    pool.start()
    pool.put(["message"])
    await pool.wait_idle()
    await pool.close()

    assert ended == ["pool"]
