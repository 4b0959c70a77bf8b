"""Not collected by ``make test``: beside it on two cores, single nodes of the cluster do not answer in time.

CONQUIET_TORTURE=1 pytest tests/integration/cluster
"""

import os

collect_ignore_glob = [] if os.environ.get("CONQUIET_TORTURE") == "1" else ["test_*.py"]
