"""Pages in a real Chromium: no console error, live without a reload, keyboard, phone, no script, hostile names."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
import redis as redis_py
from playwright.async_api import Browser, Page, expect
from tests.integration.dashboard.conftest import AddDead, Serve
from tests.redis_clients import RawRedis

from conquiet.redis_transport.liveness import liveness_key, registry_key
from conquiet.redis_transport.worker_reports import deploys_key, workers_key
from conquiet.testing import wait_until_async
from conquiet.testing.redis import RedisServer

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("browser")]

PATHS = (
    "/",
    "/doctor",
    "/stream?stream=orders",
    "/stream?stream=orders&span=weeks",
    "/pending?stream=orders&group=processor",
    "/jobs",
    "/jobs?stream=orders&phase=dead",
    "/message?stream=orders&id=paid-0",
    "/dead",
    "/dead?stream=orders",
    "/schedules",
    "/workers",
    "/runs",
    "/audit",
)


LONG_NAME = "a-stream-with-a-very-long-name-" * 6


async def test_each_page_renders_without_errors_and_fits_a_phone(page: Page, serve: Serve, add_dead: AddDead) -> None:
    add_dead("orders", 3)
    add_dead(LONG_NAME, 3, event="an.event.with.a.long.name" * 4, error="shop." * 30 + "E")
    served = serve()

    for path in (*PATHS, f"/stream?stream={LONG_NAME}", f"/dead?stream={LONG_NAME}"):
        await page.set_viewport_size({"width": 1280, "height": 800})
        answer = await page.goto(served.url + path)
        assert answer is not None
        assert answer.status == 200, path
        await expect(page.locator("h1")).to_be_visible()
        assert await page.title() != ""
        await page.set_viewport_size({"width": 360, "height": 700})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, path
    await page.goto(f"{served.url}/dead?stream=orders")
    await page.click("tbody a >> text=paid-0")
    await expect(page.locator(".story")).to_contain_text("Dead")


async def test_live_values_change_without_a_reload(page: Page, serve: Serve, raw: RawRedis) -> None:
    raw.xgroup_create("orders", "processor", "0", mkstream=True)
    served = serve()
    await page.goto(served.url)
    await page.evaluate("window.stillHere = true")
    waiting = page.locator("tbody tr").first.locator("td").nth(3)
    await expect(waiting).to_have_text("0")

    pipe = raw.pipeline(transaction=False)
    for _ in range(1_234):
        pipe.xadd("orders", {"data": "{}"})
    pipe.execute()

    await expect(waiting).to_have_text("1\u202f234")
    await expect(page.locator("#no-worker")).to_be_visible()
    raw.xadd("emails", {"data": "{}"})
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert await page.evaluate("window.stillHere")


async def test_focus_and_ticks_survive_a_live_update(page: Page, serve: Serve, add_dead: AddDead) -> None:
    add_dead("orders", 2)
    served = serve()
    await page.goto(f"{served.url}/dead")
    link = page.locator("tbody a").first
    await link.focus()

    add_dead("orders", 3)

    await expect(page.locator("tbody td")).to_have_text("5")
    assert await page.evaluate("document.activeElement.textContent") == "orders"


@pytest.mark.parametrize("change", ["a row before it goes", "a row before it comes", "a notice comes"])
async def test_focus_survives_an_update_that_changes_what_is_around(
    page: Page, serve: Serve, raw: RawRedis, change: str
) -> None:
    """An element that is replaced or moved loses the focus, and with it a keyboard user the place."""
    for stream in ("b-orders", "d-orders"):
        raw.xadd(stream, {"data": "{}"})
    served = serve()
    await page.goto(served.url)
    await page.locator("tbody a >> text=d-orders").focus()

    if change == "a row before it goes":
        raw.delete("b-orders")
        await expect(page.locator("tbody tr")).to_have_count(1)
    elif change == "a row before it comes":
        raw.xadd("a-orders", {"data": "{}"})
        await expect(page.locator("tbody tr")).to_have_count(3)
    else:
        raw.xgroup_create("b-orders", "processor", "0")
        await expect(page.locator("#no-worker")).to_be_visible()

    assert await page.evaluate("document.activeElement.textContent") == "d-orders"


async def test_a_worker_killed_on_this_machine_turns_red_at_once(
    page: Page, serve: Serve, raw: RawRedis, start_worker: Callable[[], Any]
) -> None:
    """Within two seconds on a machine without other work: its liveness key is still there, its process is not."""
    served = serve()
    worker = start_worker()
    await page.goto(f"{served.url}/workers")
    row = page.locator("tr[data-worker]")
    await expect(row).to_have_attribute("data-state", "live")
    await expect(row).to_contain_text(str(worker.pid))
    name = await row.get_attribute("data-worker")
    key = liveness_key("orders", "processor", str(name))
    raw.pexpire(key, 3_600_000)  # it would expire in 15 s, so another fact is seen

    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()

    await expect(row).to_have_attribute("data-state", "dead")
    await expect(row.locator(".badge.bad")).to_have_text("✕ dead")
    await expect(row).to_contain_text("its process ended")
    await expect(row).to_contain_text(str(worker.pid))
    assert raw.exists(key)


async def test_a_worker_of_another_machine_turns_red_when_its_liveness_ends(
    page: Page, serve: Serve, raw: RawRedis
) -> None:
    raw.xgroup_create("orders", "processor", "0", mkstream=True)
    raw.xgroup_createconsumer("orders", "processor", "far-1")
    raw.sadd(registry_key("orders", "processor"), "far-1")
    key = liveness_key("orders", "processor", "far-1")
    raw.set(key, "another machine/1/x", px=3_600_000)
    served = serve()
    await page.goto(f"{served.url}/workers")
    row = page.locator("tr[data-worker]")
    await expect(row).to_have_attribute("data-state", "live")

    raw.delete(key)

    await expect(row).to_have_attribute("data-state", "dead")
    await expect(row).to_contain_text("its liveness ended")


async def test_a_filter_and_a_bulk_replay_work_to_the_end(
    page: Page, serve: Serve, add_dead: AddDead, raw: RawRedis, log_in: Callable[[Any], Any], token: str
) -> None:
    add_dead("orders", 300, event="paid", error="shop.CardDeclined")
    add_dead("orders", 20, event="mailed", error="OSError")
    served = serve(token)
    await log_in(served)
    await page.goto(f"{served.url}/dead?stream=orders")

    await page.fill("input[name=error]", "CardDeclined")
    await page.click("button:has-text('Filter')")
    await page.select_option("select[name=scope]", "all")
    await page.click("button:has-text('Replay')")

    await expect(page.locator("#run-state")).to_have_attribute("data-state", "counted")
    await expect(page.locator("#confirm")).to_have_text("Replay 300")
    assert raw.xlen("{orders}:dead") == 320  # a dry run
    await page.click("#confirm")
    await expect(page.locator("#run-state")).to_have_attribute("data-state", "done")
    assert raw.xlen("{orders}:dead") == 20
    assert raw.xlen("orders") == 300
    await page.goto(f"{served.url}/audit")
    await expect(page.locator("tbody")).to_contain_text("replay of 300 dead letters started")


async def test_selected_dead_letters_are_discarded_by_keyboard_alone(
    page: Page, serve: Serve, add_dead: AddDead, raw: RawRedis, token: str
) -> None:
    add_dead("orders", 3)
    served = serve(token)
    await page.goto(f"{served.url}/login")
    await page.wait_for_function("document.activeElement.id === 'token'")
    await page.keyboard.type(token)
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=Log out")
    await page.goto(f"{served.url}/dead?stream=orders")

    await press_until(page, "Tab", "document.activeElement.getAttribute('aria-label') === 'Select paid-2'")
    await page.keyboard.press("Space")
    await press_until(page, "Shift+Tab", "document.activeElement.textContent === 'Discard'")
    await page.keyboard.press("Enter")

    await expect(page.locator(".notice.good")).to_contain_text("1 of 1 dead letters of orders discarded")
    assert raw.xlen("{orders}:dead") == 2


async def press_until(page: Page, key: str, condition: str) -> None:
    for _ in range(80):
        await page.keyboard.press(key)
        if await page.evaluate(condition):
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"{key} never reached {condition}")


async def test_pages_can_be_read_without_a_script(browser: Browser, serve: Serve, add_dead: AddDead) -> None:
    add_dead("orders", 2)
    served = serve()
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()

    await page.goto(served.url)
    assert "orders" in await page.inner_text("tbody")
    await page.click("tbody a >> text=orders")
    assert "Groups" in await page.inner_text("main")
    await page.goto(f"{served.url}/dead?stream=orders")
    assert "paid-1" in await page.inner_text("main")
    await context.close()


EVIL = (
    "<script>window.hacked=1</script>",
    "\"><img src=x onerror='window.hacked=1'>",
    "'><svg/onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{ 7*7 }}${7*7}",
    "</title></textarea></style><script>window.hacked=1</script>",
    "\u202e<b>evil</b>\x00\r\n\r\ndata: x",
)


async def test_hostile_names_errors_and_payloads_stay_inert(
    page: Page, serve: Serve, add_dead: AddDead, raw: RawRedis, log_in: Callable[[Any], Any], token: str
) -> None:
    names = [
        "s-" + "".join(one for one in evil if one.isprintable()).translate({ord("{"): "(", ord("}"): ")"})
        for evil in EVIL
    ]
    for name in names:
        raw.xgroup_create(name, "processor", "0", mkstream=True)
    for evil in EVIL:
        add_dead(names[0], 1, event=evil, error=evil, text=evil, traceback=evil, data={"note": evil})
    served = serve(token, reveal=True)
    await log_in(served)

    await page.goto(served.url)
    await expect(page.locator("tbody tr")).to_have_count(len(EVIL))
    for path in ("/", "/jobs", "/dead", *(f"/stream?{query(name)}" for name in names)):
        await page.goto(served.url + path)
        await assert_inert(page)
    for path in (f"/dead?{query(names[0])}", f"/jobs?{query(names[0])}&phase=dead"):
        await page.goto(served.url + path)
        await assert_inert(page)
        assert await page.locator("main tbody:last-of-type tr").count() >= len(EVIL)
    for evil in filter(str.isprintable, EVIL):  # an id with control characters is refused
        await page.goto(f"{served.url}/message?{query(names[0])}&{urlencode({'id': f'{evil}-0'})}")
        await assert_inert(page)
    dead: Any = raw.xrange(f"{{{names[0]}}}:dead")
    for dead_id, _ in dead:
        await page.goto(f"{served.url}/dead/show?{query(names[0])}&id={dead_id.decode()}")
        await expect(page.locator("pre").last).to_contain_text("note")
        await expect(page.locator("textarea")).to_have_value(re.compile("note"))
        await assert_inert(page)


async def test_hostile_groups_workers_and_records_stay_inert(page: Page, serve: Serve, raw: RawRedis) -> None:
    """Any client that can write to Redis can write these."""
    for evil in EVIL:
        facts = dict.fromkeys(("host", "version", "reason", "conquiet"), evil) | {"ready": False, "at_ms": 1}
        name = evil.replace("\x00", "")
        raw.xgroup_create("orders", evil, "0", mkstream=True)
        raw.xgroup_createconsumer("orders", evil, evil)
        raw.xadd("orders", {"data": "{}"})
        raw.xreadgroup(evil, evil, {"orders": ">"}, count=1)
        raw.set(liveness_key("orders", evil, evil), evil, px=3_600_000)
        raw.sadd(registry_key("orders", evil), evil)
        raw.hset(workers_key("orders", evil), evil, json.dumps(facts))
        raw.zadd(deploys_key("orders"), {name: time.time()})
        raw.xadd("conquiet:audit", dict.fromkeys(("user", "action", "target", "detail", "client"), evil))
    served = serve()

    for path in ("/", "/workers", "/audit", "/stream?stream=orders", "/runs"):
        await page.goto(served.url + path)
        await expect(page.locator("h1")).to_be_visible()
        await assert_inert(page)
    await page.goto(f"{served.url}/workers")
    await expect(page.locator("tr[data-worker]")).to_have_count(len(EVIL))
    for evil in EVIL:
        await page.goto(f"{served.url}/pending?{urlencode({'stream': 'orders', 'group': evil})}")
        await assert_inert(page)


async def assert_inert(page: Page) -> None:
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main b:has-text('evil'), main img, main script").count() == 0


def query(stream: str) -> str:
    return urlencode({"stream": stream})


async def test_a_redis_that_goes_away_is_shown_and_comes_back(
    page: Page, serve: Serve, private_redis: Callable[..., RedisServer]
) -> None:
    server = private_redis()
    with redis_py.Redis.from_url(server.url) as client:
        client.xadd("orders", {"data": "{}"})
    served = serve(redis_url=server.url, timeout_s=1.0)
    await page.goto(served.url)
    await expect(page.locator("tbody")).to_contain_text("orders")

    server.kill()
    await expect(page.locator("#live")).to_contain_text("Redis is unavailable")
    server.restart()
    with redis_py.Redis.from_url(server.url) as client:
        await wait_until_async(lambda: bool(client.ping()))
        client.xadd("emails", {"data": "{}"})
    await expect(page.locator("tbody")).to_contain_text("emails")
