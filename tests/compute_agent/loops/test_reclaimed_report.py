"""Tests of offers of reclaimed resources with the real Placement service."""

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.memory import with_offers
from compute_agent.loops.reports import ReportLoop
from compute_agent.model.resource import RECLAIMED_VCPU
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.policy import POLICIES
from compute_agent.report.plan import to_api
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.builders import make_pipeline
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine

ROOT = "5b0c0000-0000-4000-8000-000000000001"
TOPOLOGY = machine(nodes=2, cores=4)
SETS = resolve_cpu_sets(CpuOptions(cpu_shared_set="1-3,5-7"), TOPOLOGY)
TREE = derive_provider_tree(TOPOLOGY, SETS, InventorySettings(reclaimed=True), ROOT, "offering")
ZONES = [node.uuid for node in TREE.providers_of(RECLAIMED_VCPU)]


class ReclaimReporting:
    def __init__(self, client):
        self.client, self.offers = client, {}
        driver = FakeDriver(TOPOLOGY.online)
        host_state = HostState(TOPOLOGY, SETS, TREE, POLICIES["topology-aware"])
        metrics = AgentMetrics()
        pipeline = make_pipeline(host_state, driver, metrics)
        pipeline.start({})
        self.pipeline = pipeline
        self.reporter = HostReporter(client, {}, lambda owned: None)
        self.loop = ReportLoop(
            self.reporter,
            client,
            pipeline,
            metrics,
            60,
            300,
            additions=(self.add_to_tree,),
        )

    def add_to_tree(self, tree):
        return with_offers(tree, self.offers)

    def reserved(self):
        reported = self.reporter.read_reported(ROOT)
        return [reported[uuid].inventories[RECLAIMED_VCPU].reserved for uuid in ZONES]


@pytest.fixture
def rig(client):
    rig = ReclaimReporting(client)
    yield rig
    rig.pipeline.stop()


def test_reserved_follows_the_offers_and_no_other_program_can_lower_it(rig):
    assert rig.loop.report_now()
    assert rig.reserved() == [3, 3]
    rig.offers = {ZONES[0]: 2}
    assert rig.loop.report_now()
    assert rig.reserved() == [1, 3]
    sent = rig.loop.status.sent
    assert rig.loop.report_now()
    assert rig.loop.status.sent == sent  # no write without a difference
    rig.offers = {}
    assert rig.loop.report_now()
    assert rig.reserved() == [3, 3]
    assert rig.loop.status.adjustments == ()
    record = rig.reporter.read_reported(ROOT)[ZONES[0]]
    lowered = {**to_api(record.inventories[RECLAIMED_VCPU]), "reserved": 0}
    body = {"resource_provider_generation": record.generation, "inventories": {RECLAIMED_VCPU: lowered}}
    rig.client.send_request("PUT", f"/resource_providers/{ZONES[0]}/inventories", body)
    assert rig.loop.report_now()
    assert rig.reserved() == [3, 3]
