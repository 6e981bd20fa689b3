"""Ways to load that tests of fetching are parametrized with."""

import pytest

FORKSERVER = pytest.param({"start_method": "forkserver", "persistent_workers": True}, id="forkserver")
FORK = pytest.param({"start_method": "fork"}, id="fork")
THREAD = pytest.param({"worker_type": "thread"}, id="thread")
PROCESSES = [FORKSERVER, FORK]
WORKERS = [*PROCESSES, THREAD]
