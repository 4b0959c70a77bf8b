"""Serve a web application for development: ASGI by uvicorn, WSGI such as Flask by werkzeug.

python -m conquiet.cli.dev.web shop:api 8000 reload
"""

import sys
from typing import Any

from conquiet.cli.errors import CommandError, fix_of, report_error
from conquiet.cli.worker.worker_loader import load_object
from conquiet.core.functions import is_coroutine_function
from conquiet.errors import ConquietError

_HOST = "127.0.0.1"


def is_asgi(application: Any) -> bool:
    """Return whether an application is called with scope, receive and send, not with environ and start_response."""
    return not hasattr(application, "wsgi_app") and is_coroutine_function(getattr(application, "__call__", application))  # noqa: B004


def main(target: str, port: int, *, reload: bool) -> int:
    """Serve until a signal; return an exit code."""
    try:
        application = load_object(target)
        if is_asgi(application):
            import uvicorn

            uvicorn.run(target if reload else application, host=_HOST, port=port, reload=reload)
        else:
            from werkzeug.serving import run_simple

            run_simple(_HOST, port, application, use_reloader=reload, threaded=True)
    except (CommandError, ConquietError, ImportError) as error:
        report_error(f"{target} cannot be served: {error}", fix_of(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), reload=sys.argv[3] == "reload"))
