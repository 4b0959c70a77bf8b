"""Requests without a browser: no payload in any response, rights per stream, bulk runs that are killed."""

import asyncio
import html
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from httpx import AsyncClient
from tests.integration.dashboard.conftest import AddDead, OpenClient
from tests.redis_clients import RawRedis

from conquiet.dashboard import EVERYTHING, Access, Dashboard
from conquiet.dashboard.explanations import explain
from conquiet.processor import Emitted
from conquiet.testing import wait_until_async

SECRET = "payload-7f3a9c"

Emit = Callable[..., Awaitable[Emitted]]


async def post(client: AsyncClient, page: str, path: str, **fields: str) -> Any:
    """Send a form as the page would: with its token."""
    token = re.search(r'name="csrf" value="(\w+)"', (await client.get(page)).text)
    assert token is not None
    return await client.post(path, data={"csrf": token[1], **fields})


async def read_live(app: Dashboard, path: str, query: str) -> str:
    """Return the first event of a live page: the browser gets it without a further request."""
    sent, is_over = bytearray(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()  # the browser stays
        raise AssertionError

    async def send(message: Any) -> None:
        sent.extend(message.get("body", b""))
        if b"\n\n" in bytes(sent).partition(b"event: page")[2]:
            is_over.set()

    head = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": ""}
    request = {"query_string": query.encode(), "headers": [(b"host", b"127.0.0.1")], "client": None}
    task = asyncio.create_task(app({**head, **request, "scheme": "http", "server": None}, receive, send))
    await asyncio.wait_for(is_over.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return sent.decode()


async def test_no_byte_of_a_payload_is_in_any_response(
    open_client: OpenClient, add_dead: AddDead, emit: Emit, raw: RawRedis
) -> None:
    add_dead("orders", 5, data={"note": SECRET, "email": SECRET})
    raw.xadd("orders", {"data": json.dumps({"event": "x", "data": SECRET})})
    await emit("paid", {"note": SECRET}, id="late-1", delay_s=3_600.0)
    await emit("paid", {"note": SECRET}, id="now-1")
    client = open_client()
    transport: Any = client._transport
    app = transport.app

    pages = [route.path for route in app.routes if "GET" in route.methods and "{" not in route.path]
    dead_id = raw.xrevrange("{orders}:dead", count=1)[0][0].decode()
    queries: tuple[dict[str, str], ...] = (
        {"stream": "orders", "group": "processor"},
        {"stream": "orders", "id": dead_id},
        {"stream": "orders", "id": "now-1"},
        {"stream": "orders", "phase": "delayed"},
        {"stream": "orders", "phase": "dead"},
        {},
    )
    read_at_all = ""
    for path in pages:
        for query in map(urlencode, queries):
            if path.startswith("/live"):
                text = await read_live(app, path, query)
            else:
                text = (await client.get(f"{path}?{query}")).text
            assert SECRET not in text, path
            read_at_all += text if path.startswith("/live") else ""
    assert len(pages) > 20
    assert all(name in read_at_all for name in ("paid-4", "late-1", "now-1"))  # their messages were shown


async def test_a_payload_is_revealed_by_setting_right_and_redaction_together(
    open_client: OpenClient, add_dead: AddDead
) -> None:
    add_dead("orders", 1, data={"note": SECRET, "email": "jane@example.org"})
    shown = open_client(reveal=True)
    hidden = open_client(reveal=True, authorize=lambda _: Access("bob", {"view", "replay"}))
    own = open_client(reveal=True, redact=lambda stream, event, payload: {"only": stream + event})

    async def shown_by(client: AsyncClient) -> str:
        page = (await client.get("/dead?stream=orders")).text
        link = re.search(r'href="(/dead/show\?[^"]+)"', page)
        assert link is not None
        return (await client.get(link[1].replace("&amp;", "&"))).text

    assert SECRET in await shown_by(shown)
    assert "jane@example.org" not in await shown_by(shown)
    assert SECRET not in await shown_by(hidden)
    assert SECRET not in await shown_by(own)
    assert "orderspaid" in await shown_by(own)


@pytest.mark.parametrize(("path", "do"), [("/dead/act", "cancel"), ("/jobs/act", "replay"), ("/run/cancel", "view")])
async def test_a_form_with_an_action_of_another_page_is_refused(
    open_client: OpenClient, add_dead: AddDead, path: str, do: str
) -> None:
    add_dead("orders", 1)
    client = open_client(authorize=lambda _: Access("ann", EVERYTHING))

    refused = await post(client, "/dead?stream=orders", path, do=do, stream="orders", id="1-1")

    assert refused.status_code == 400
    assert "Nothing was changed" in refused.text


async def test_rights_hold_for_the_very_action_and_stream(
    open_client: OpenClient, add_dead: AddDead, raw: RawRedis
) -> None:
    add_dead("orders", 1)
    add_dead("emails", 1)
    client = open_client(authorize=lambda _: Access("ann", {"view:orders*", "replay:orders*"}))

    assert "emails" not in (await client.get("/")).text
    assert (await client.get("/stream?stream=emails")).status_code == 404
    assert (await client.get("/dead?stream=emails")).status_code == 404
    page = "/dead?stream=orders"
    assert (await post(client, page, "/dead/act", do="replay", scope="all", stream="emails")).status_code == 403
    assert (await post(client, page, "/dead/act", do="discard", scope="all", stream="orders")).status_code == 403
    done = await post(client, page, "/dead/act", do="replay", scope="all", stream="orders")
    assert done.status_code == 200
    assert raw.xlen("{emails}:dead") == 1


async def test_actions_are_recorded_before_and_after(open_client: OpenClient, add_dead: AddDead, raw: RawRedis) -> None:
    add_dead("orders", 1)
    client = open_client()

    await post(client, "/stream?stream=orders", "/stream/pause", stream="orders")

    entries = [fields for _, fields in raw.xrange("conquiet:audit")]
    assert [(one[b"user"], one[b"action"], one[b"target"]) for one in entries] == [(b"ann", b"pause", b"orders")] * 2
    assert entries[1][b"detail"] == b"stream orders is paused"
    assert raw.hkeys("{orders}:paused") == [b"*"]
    await post(client, "/stream?stream=orders", "/stream/resume", stream="orders")
    assert raw.hkeys("{orders}:paused") == []


async def test_many_streams_cost_few_commands_while_the_doctor_examines(open_client: OpenClient, raw: RawRedis) -> None:
    pipe = raw.pipeline(transaction=False)
    for number in range(1_000):
        pipe.xgroup_create(f"stream-{number:04}", "processor", "0", mkstream=True)
    pipe.execute()
    client = open_client()
    assert "Being examined" in (await client.get("/")).text  # sparklines and keys are known after the first page

    with raw.monitor() as monitor:
        began = time.monotonic()
        for _ in range(3):
            await asyncio.sleep(1.0)  # no race: the last reading must be old enough to be read again
            text = (await client.get("/")).text
        raw.echo("the end")
        sent = 0
        for command in monitor.listen():
            if "the end" in command["command"]:
                break
            sent += command["client_type"] != "lua"
        took_s = time.monotonic() - began
    assert "1\u202f000" in text
    assert "Being examined" in text
    assert 0 < sent < 50 * took_s
    assert text.count("<tr id=") == 50


async def test_a_page_of_many_dead_letters_reads_the_newest_only(
    open_client: OpenClient, add_dead: AddDead, raw: RawRedis
) -> None:
    add_dead("orders", 5_000)
    client = open_client()

    text = (await client.get("/dead?stream=orders")).text

    assert "The newest 500 of 5\u202f000" in text
    assert "Show the newest 5\u202f000" in text
    assert "paid-4999" in text
    older = re.search(r'href="(/dead\?[^"]*before=[^"]+)"', text)
    assert older is not None
    second = (await client.get(older[1].replace("&amp;", "&"))).text
    assert "paid-4949" in second
    assert "paid-4999" not in second.partition('id="acts"')[2]


async def test_causes_beyond_the_newest_are_looked_at_page_by_page(
    open_client: OpenClient, add_dead: AddDead, raw: RawRedis
) -> None:
    add_dead("orders", 10, error="OldError")
    add_dead("orders", 5_000, error="NewError")
    client = open_client()

    whole = (await client.get("/dead?stream=orders&sample=5000")).text
    assert "The newest 5\u202f000 of 5\u202f010" in whole
    assert "OldError" not in whole
    link = re.search(r'href="(/dead\?[^"]*causes_before=[^"]+)"', whole)
    assert link is not None
    older = (await client.get(link[1].replace("&amp;", "&"))).text

    causes = older.partition("What they died of")[2].partition("Newest</h2>")[0]
    assert "OldError" in causes
    assert "NewError" not in causes
    assert "The next 10 before" in older
    assert "Back to the newest" in older


async def test_a_dead_letter_is_edited_and_retried_and_hidden_values_stay(
    open_client: OpenClient, add_dead: AddDead, raw: RawRedis
) -> None:
    add_dead("orders", 1, data={"n": 1, "card": SECRET})
    client = open_client(reveal=True)
    dead_id = raw.xrevrange("{orders}:dead", count=1)[0][0].decode()
    path = f"/dead/show?stream=orders&id={dead_id}"
    page = (await client.get(path)).text
    assert "Edit and retry" in page
    assert SECRET not in page

    answer = await post(client, path, "/dead/edit", stream="orders", id=dead_id, data='{"n": 2, "card": "•••"}')

    assert "is retried with the new data" in answer.text
    ((_, fields),) = raw.xrange("orders")
    assert json.loads(fields[b"data"])["data"] == {"n": 2, "card": SECRET}
    assert raw.xlen("{orders}:dead") == 0
    audit = b" ".join(value for _, entry in raw.xrange("conquiet:audit") for value in entry.values())
    assert b"edit" in audit
    assert b'"n"' not in audit


async def test_nothing_is_edited_without_the_right_or_what_may_be_seen(
    open_client: OpenClient, add_dead: AddDead, raw: RawRedis
) -> None:
    add_dead("orders", 1, data={"n": 1})
    dead_id = raw.xrevrange("{orders}:dead", count=1)[0][0].decode()
    path, fields = f"/dead/show?stream=orders&id={dead_id}", {"stream": "orders", "id": dead_id, "data": '{"n": 2}'}
    no_right = open_client(reveal=True, authorize=lambda _: Access("bob", {"view", "reveal", "replay"}))
    not_revealed = open_client(authorize=lambda _: Access("ann", {"view", "edit", "replay"}))
    bad = open_client(reveal=True)

    assert "Edit and retry" not in (await no_right.get(path)).text
    assert (await post(no_right, path, "/dead/edit", **fields)).status_code == 403
    assert "Edit and retry" not in (await not_revealed.get(path)).text
    assert (await post(not_revealed, path, "/dead/edit", **fields)).status_code == 409
    assert (await post(bad, path, "/dead/edit", **fields | {"data": "no json"})).status_code == 409
    assert (await post(bad, path, "/dead/edit", **fields | {"data": "[1]"})).status_code == 409
    assert raw.xlen("{orders}:dead") == 1
    assert raw.xlen("orders") == 0


@pytest.fixture
async def emit(redis_url: str) -> AsyncIterator[Emit]:
    """``emit("mail.send", id=…, delay_s=…)``: a message of the stream ``orders``, which a group reads."""
    import redis.asyncio

    from conquiet.processor import Emitter

    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as own:
        await own.xgroup_create("orders", "processor", "0", mkstream=True)
        yield Emitter(own, "orders").emit


async def test_jobs_are_listed_by_state_and_found_by_id(open_client: OpenClient, emit: Emit) -> None:
    await emit("mail.send", {"note": SECRET}, id="late-1", delay_s=3_600.0)
    await emit("mail.send", {"note": SECRET}, id="now-1")
    client = open_client()

    assert "now-1" in (await client.get("/jobs?stream=orders&phase=waiting")).text
    assert "late-1" not in (await client.get("/jobs?stream=orders&phase=waiting")).text
    delayed = (await client.get("/jobs?stream=orders&phase=delayed&event=mail.send")).text
    assert "late-1" in delayed
    assert "No delayed job matches" in (await client.get("/jobs?stream=orders&phase=delayed&event=other")).text
    life = (await client.get("/message?stream=orders&id=late-1")).text
    assert "Emitted" in life
    assert "delayed" in life
    assert "Nothing is known" in (await client.get("/message?stream=orders&id=unknown")).text
    assert SECRET not in delayed + life


async def test_a_job_is_run_now_or_cancelled(open_client: OpenClient, emit: Emit, raw: RawRedis) -> None:
    for name in ("a", "b", "c"):
        await emit("mail.send", {}, id=name, delay_s=3_600.0)
    client = open_client()
    page = "/jobs?stream=orders&phase=delayed"

    await post(client, page, "/jobs/act", do="run-now", scope="selected", stream="orders", phase="delayed", job="a")
    answer = await post(
        client, page, "/jobs/act", do="cancel", scope="selected", stream="orders", phase="delayed", job="b"
    )

    assert "1 cancelled" in answer.text
    assert raw.xlen("orders") == 1
    assert raw.zcard("{orders}:delayed") == 1


async def test_all_jobs_that_match_are_cancelled_after_a_dry_run(
    open_client: OpenClient, emit: Emit, raw: RawRedis
) -> None:
    for number in range(150):
        await emit("mail.send" if number % 3 else "other", {}, id=str(number), delay_s=3_600.0)
    client = open_client()
    fields = {"do": "cancel", "scope": "all", "stream": "orders", "phase": "delayed", "event": "mail.send"}
    answer = await post(client, "/jobs?stream=orders&phase=delayed", "/jobs/act", **fields)
    run = str(answer.url).partition("id=")[2].partition("&")[0]

    async def is_in(state: str) -> bool:
        return f'data-state="{state}"' in (await client.get(f"/run?id={run}")).text

    await wait_until_async(lambda: is_in("counted"))
    assert "Cancel 100" in (await client.get(f"/run?id={run}")).text
    assert raw.zcard("{orders}:delayed") == 150
    await post(client, f"/run?id={run}", "/run/confirm", id=run, stream="orders", do="cancel")
    await wait_until_async(lambda: is_in("done"))
    assert raw.zcard("{orders}:delayed") == 50


async def test_retrying_jobs_are_counted_apart_from_delayed_ones(
    open_client: OpenClient, emit: Emit, raw: RawRedis
) -> None:
    await emit("mail.send", {"attempt": 5}, id="late-1", delay_s=3_600.0)
    retry = {"v": 1, "event": "mail.send", "id": "again-1", "attempt": 2, "data": {"attempt": 1}}
    raw.zadd("{orders}:delayed", {json.dumps(retry, separators=(",", ":")): 4_000_000_000_000})
    raw.zadd("{orders}:delayed", {json.dumps(retry | {"id": "again-2"}, separators=(",", ":")): 4_000_000_000_000})
    client = open_client()

    overview, jobs = (await client.get("/")).text, (await client.get("/jobs")).text

    assert shown_by("delayed", overview)[:2] == ["1", "1"]  # the tile, and the stream
    assert shown_by("retrying", overview)[:2] == ["2", "2"]
    assert shown_by("delayed", jobs) == ["1"]
    assert shown_by("retrying", jobs) == ["2"]


def shown_by(name: str, text: str) -> list[str]:
    """Return the numbers of a page that have this explanation."""
    meaning = re.escape(html.escape(explain(name, "").partition(" Printed by")[0], quote=True))
    return re.findall(rf'title="{meaning}[^"]*">(?:<dt>[^<]*</dt><dd>)?([^<]*)<', text)


async def test_jobs_are_found_by_their_key(open_client: OpenClient, emit: Emit) -> None:
    await emit("mail.send", {}, id="a", key="customer-1", delay_s=3_600.0)
    await emit("mail.send", {}, id="b", key="customer-2", delay_s=3_600.0)
    client = open_client()

    found = (await client.get("/jobs?stream=orders&phase=delayed&key=customer-2")).text

    rows = found.partition("<tbody>")[2]
    assert ">b</a>" in rows
    assert ">a</a>" not in rows
    assert "customer-2" in rows


async def test_a_job_behind_its_key_has_a_page_and_is_cancelled_there(open_client: OpenClient, emit: Emit) -> None:
    for name in ("a-1", "a-2"):
        await emit("paid", id=name, key="customer-7")
    client = open_client()
    page = "/message?stream=orders&id=a-2"

    shown = await client.get(page)
    await post(client, page, "/jobs/act", stream="orders", job="a-2", do="cancel", scope="selected")

    assert (shown.status_code, "○ behind" in shown.text, "Cancel job" in shown.text) == (200, True, True)
    assert "○ cancelled" in (await client.get(page)).text


@pytest.mark.parametrize("wrong", ["1-2-3", "-", "9" * 40 + "-0", "\u0661-\u0661", "x"])
async def test_an_id_in_an_address_that_is_none_shows_the_newest_page(
    open_client: OpenClient, add_dead: AddDead, raw: RawRedis, wrong: str
) -> None:
    """The server would refuse it."""
    add_dead("orders", 1)
    raw.xadd("conquiet:audit", {"user": "user-of-the-audit", "action": "replay"})
    dead_id = raw.xrevrange("{orders}:dead", count=1)[0][0].decode()
    client = open_client()

    audit = await client.get("/audit?" + urlencode({"before": wrong}))
    dead = await client.get("/dead?" + urlencode({"stream": "orders", "before": wrong}))

    assert "user-of-the-audit" in audit.text
    assert dead_id in dead.text
