"""Middlewares around every handler: ``async def middleware(ctx, call_next)``.

The first middleware added is the outermost. A middleware that does not await ``call_next(ctx)`` skips the handler, and
the message counts as handled. An error that it raises counts as the handler's error.
"""

from collections.abc import Awaitable, Callable, Sequence

from conquiet.processor.context import JobContext

Next = Callable[[JobContext], Awaitable[object]]
Middleware = Callable[[JobContext, Next], Awaitable[object]]


def wrapped(handler: Next, middlewares: Sequence[Middleware]) -> Next:
    """Return a callable that runs the middlewares around the handler. Without middlewares: the handler itself."""
    call = handler
    for middleware in reversed(middlewares):
        call = _around(middleware, call)
    return call


def _around(middleware: Middleware, inner: Next) -> Next:
    def call(ctx: JobContext) -> Awaitable[object]:
        return middleware(ctx, inner)

    return call
