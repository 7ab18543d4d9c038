"""Dashboards with the metrics of an agent on a real kernel: each panel of a host has data, and is drawn.

With PLACEMENT_PICTURES=doc/_static the pictures of the documentation are written.
"""

import os
import time
from pathlib import Path

import pytest

from tests.monitoring.kit import DASHBOARDS
from tests.monitoring.pictures import VARIABLES, draw_dashboard
from tests.monitoring.server import Prometheus
from tests.vm import machine, relay

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=1")
DRAWN = ("host", "guest", "caches")
"""Names of the dashboards that have data from one host."""


def test_dashboards_show_a_busy_host(share, placement, tmp_path):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    (tmp_path / "prometheus").mkdir()
    with relay.running() as port:
        server = Prometheus(tmp_path / "prometheus", {"compute-agent": [f"127.0.0.1:{port}"]})
        try:
            totals = machine.run_tests(
                "tests/vm/inside_dashboards.py",
                share,
                *SMP,
                *placement,
                *("--env", f"RELAY=http://{machine.HOST}:{port}"),
                timeout=2400,
            )
            until = time.time()
            assert (totals["tests"], totals["skipped"]) == (1, 0)
            # The boot of the machine is not shown.
            (first,) = server.ask("min_over_time(timestamp(compute_agent_placement_up)[1h:5s])")
            since = float(first["value"][1])
            folder = Path(os.environ.get("PLACEMENT_PICTURES", tmp_path))
            empty = {}
            for file in DASHBOARDS:
                if file.stem in DRAWN:
                    picture, empty[file.stem] = draw_dashboard(file, server.url, since, until, VARIABLES)
                    (folder / f"dashboard-{file.stem}.svg").write_text(picture)
        finally:
            server.close()
    assert empty == {name: [] for name in DRAWN}
