"""``conquiet enqueue``: add payloads to a stream."""

from typing import Annotated

import typer

from conquiet.cli.connections import open_redis
from conquiet.cli.line_batcher import LineBatcher
from conquiet.cli.output import print_result, progress
from conquiet.cli.payload_input import read_payloads, report_partial_failure
from conquiet.cli.settings import AsJson, RedisUrl


def enqueue(
    stream: Annotated[str, typer.Argument(help="Key of the stream; created if it does not exist.")],
    payload: Annotated[
        str, typer.Argument(help="A JSON object, @file of JSON lines, or - for stdin.", metavar="JSON|@FILE|-")
    ],
    redis_url: RedisUrl = "",
    as_json: AsJson = False,
) -> None:
    """Add JSON objects to a stream in atomic batches of up to 500.

    A batch that is not full is sent after 0.2 s. An invalid line ends the command: all lines before it are enqueued,
    and the error names the line. The command always reports how many payloads are enqueued.

    Exit codes: 0 all enqueued, 1 a line was refused, 2 no server, wrong key, or no JSON object.

    Examples:
        conquiet enqueue orders '{"order": 1, "cents": 995}'

        conquiet enqueue orders @orders.jsonl

        generate-orders | conquiet enqueue orders -
    """
    from conquiet.errors import PayloadError
    from conquiet.management.enqueue import BATCH, enqueue_batches

    ids: list[str] = []
    with (
        open_redis(redis_url) as server,
        progress("enqueued") as show_completed,
        report_partial_failure("enqueued", lambda: len(ids), noun=" payloads", refusal=PayloadError),
    ):
        for batch in enqueue_batches(server, stream, LineBatcher(read_payloads(payload), size=BATCH).batches()):
            ids += batch
            show_completed(len(ids))
    sentence = ids[0] if len(ids) == 1 else f"{len(ids)} enqueued in {stream}"
    print_result({"stream": stream, "enqueued": len(ids), "ids": ids}, sentence, as_json=as_json)
