"""Dashboards have Grafana's format, and Prometheus has data for each of their queries."""

import json
import re
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from oslo_config import cfg
from prometheus_client import CollectorRegistry, start_http_server

from compute_agent.conf import host as host_options
from compute_agent.conf import monitoring as monitoring_options
from compute_agent.conf import register_module
from compute_agent.fleet import revision
from compute_agent.loops.monitoring import CacheMonitoring
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.monitoring.readings import MonitorTarget
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlOptions
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.monitoring.counting import mount
from tests.compute_agent.usage.metered_host import MeteredHost
from tests.demo.system import SCRIPTS, CpuSets, System
from tests.monitoring.kit import DASHBOARDS, alerts, dashboard, queries, records
from tests.monitoring.pictures import VARIABLES, fill_in
from tests.monitoring.server import Prometheus
from tests.ports import free_port

SECONDS = 60


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_each_panel_has_a_description_and_overlaps_no_other(file: Path) -> None:
    document = dashboard(file)
    assert document["uid"] == f"placement-compute-{file.stem}"
    panels = document["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    for panel in panels:
        assert panel["title"], file
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
    for one, other in combinations([each["gridPos"] for each in panels], 2):
        across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
        assert not (across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"])
    names = {each["name"] for each in document["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(document))) <= names


@pytest.fixture(scope="module")
def running() -> Iterator[System]:
    """The demo's service and agent with their metrics, and a guest."""
    if not (SCRIPTS / "compute-agent").exists():
        pytest.skip("the distribution is not installed beside this Python")
    with System() as system:
        system.configure_service()
        with system.service_ini.open("a") as ini:
            ini.write("\n[metrics]\nenabled = true\n")
        system.manage("db", "sync")
        system.start_service()
        system.configure_agent(CpuSets.of_this_machine().options())
        with system.agent_ini.open("a") as ini:
            ini.write("\n[watermark:busy]\nmetric = cpu_usage\nthrottle_down = 99\nthrottle_up = 90\n")
            ini.write("\n[watermark:full]\nmetric = memory_usage\nevict = 99%\nmode = preview\n")
            ini.write("\n[interference:cpu]\nsignal = run_delay\n")
            ini.write(of_a_fleet(system.folder / "fleet"))
        system.start_agent()
        yield system


def of_a_fleet(folder: Path) -> str:
    """Return options of a host with settings from a folder."""
    signing = pytest.importorskip("compute_agent.fleet.signature")
    folder.mkdir()
    key = signing.new_key()
    content = revision.write(b"[DEFAULT]\ncpu_allocation_ratio = 4\n", "edge", 1, None)
    (folder / "edge.conf").write_bytes(signing.sign_revision(content, key))
    return f"\n[fleet]\ngroup = edge\nsource = {folder}\npublic_keys = {signing.public_key(key)}\n"


@pytest.fixture(scope="module")
def counters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of an exporter with invented counters of a processor and of groups, which may be missing here."""
    folder = tmp_path_factory.mktemp("counters")
    conf = cfg.ConfigOpts()
    for module in (host_options, monitoring_options):
        register_module(conf, module)
    conf([], default_config_files=[])
    conf.set_override("state_path", str(folder))
    conf.set_override("interval", "0.1", "monitoring")
    tree = mount(folder / "tree")
    tree.files.make_folder("a.class.LS")
    control = ResctrlHandle(
        files=tree.files, platform=tree.platform, codec=None, options=ResctrlOptions("a.")
    )
    registry = CollectorRegistry()
    guests = [MonitorTarget("one", "LS", "a.class.LS", name="web", cpu=0.5)]
    monitoring = CacheMonitoring(configuration(conf, control), lambda: guests, registry)
    host = MeteredHost(folder / "groups", registry=registry)
    host.add("one")
    host.limits = {"watermarks": {"one": {ThrottleControl(CPU_QUOTA): 1.5}}}
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    monitoring.start()
    try:
        yield port
    finally:
        monitoring.stop()
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def prometheus(running: System, counters: int, tmp_path: Path) -> Iterator[Prometheus]:
    service = running.url.removeprefix("http://")
    agents = [f"127.0.0.1:{running.agent_port}", f"127.0.0.1:{counters}"]
    server = Prometheus(tmp_path, {"placement": [service], "compute-agent": agents})
    try:
        yield server
    finally:
        server.close()


@pytest.mark.slow
def test_each_query_has_data(running: System, prometheus: Prometheus) -> None:
    wanted = {query for file in DASHBOARDS for _, query in queries(file)}
    empty = wanted
    deadline = time.monotonic() + SECONDS
    while empty and time.monotonic() < deadline:
        running.agent("guest", "list")
        running.providers()
        empty = {each for each in empty if not prometheus.ask(fill_in(each, VARIABLES, "1m"))}
        time.sleep(0.5)
    assert empty == set()
    rules = {rule["name"]: rule for rule in prometheus.rules()}
    assert rules.keys() == alerts().keys() | records().keys()
    assert {name for name, rule in rules.items() if rule["health"] != "ok"} == set()
    assert {name for name, rule in rules.items() if rule.get("state") == "firing"} == set()
