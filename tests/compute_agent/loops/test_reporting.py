"""Tests of reports to Placement, and of the pauses between them."""

import heapq
import json
import logging
import random
import re
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.loops.base import FIRST_PAUSE, pause
from compute_agent.loops.reports import ReportLoop, status_document
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import HostStateChanged, StartGuest
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.policy import POLICIES
from compute_agent.promises.facts import cards_of, held_devices
from compute_agent.report.answers import ConflictError, CredentialsError, PlacementError, UnavailableError
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import DisableCause
from tests.compute_agent.builders import hold_resources, make_pipeline, read_metric
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.loops.configurations import reporting
from tests.waits import wait_for

TOPOLOGY = machine(nodes=2, cores=4)
ROOT = "11111111-0000-4000-8000-000000000000"
NODES = ["11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"]
CONSUMER = "22222222-0000-4000-8000-000000000001"
TREE = ProviderTree(
    (
        ProviderNode("h", ROOT, None, cpus=TOPOLOGY.online),
        *(
            ProviderNode(
                f"h_{n.id}", NODES[n.id], ROOT, {"PCPU": ProviderInventory(2, max_unit=2)}, cpus=n.cpus
            )
            for n in TOPOLOGY.numa_nodes
        ),
    )
)
FLAT = ProviderTree((replace(TREE.root, inventories={"PCPU": ProviderInventory(4, max_unit=4)}),))
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({3, 7}))


class ReportingHost:
    """A report loop without its thread: tests make each report."""

    def __init__(self, client, keep_owned=lambda owned: None):
        self.client = client
        self.locate = dict
        self.driver = FakeDriver(TOPOLOGY.online)
        self.metrics = AgentMetrics()
        host_state = HostState(TOPOLOGY, SETS, TREE, POLICIES["topology-aware"])
        self.pipeline = make_pipeline(host_state, self.driver, self.metrics)
        self.pipeline.start()
        self.reporter = HostReporter(client, {}, keep_owned)
        # The interval is so long that each report during a test has another reason.
        self.loop = ReportLoop(
            reporting(client, 3600), self.reporter, self.pipeline, self.metrics, lambda: self.locate()
        )

    def run_guest(self, allocation):
        event = StartGuest(CONSUMER, "g", GuestSettings(), ("x",), allocation, time.monotonic())
        return self.pipeline.submit(event).result(10)

    def cpus(self):
        """The CPUs of the guest after the worker has handled all queued events."""
        self.pipeline.stop()
        return set(self.pipeline.guest_views()[0].assignment.cpus)

    def claim(self, provider, **resources):
        hold_resources(self.client, CONSUMER, {provider: resources})

    def use_tree(self, tree):
        """Give the host another provider tree, and report it."""
        event = HostStateChanged(replace(self.pipeline.host_state, tree=tree))
        self.pipeline.submit(event).result(10)
        return self.loop.report_now()

    def metric(self, name, **labels):
        return read_metric(self.metrics, name, **labels)


@pytest.fixture
def rig(client):
    rig = ReportingHost(client)
    yield rig
    if rig.pipeline.is_alive:
        rig.pipeline.stop()


def test_a_good_report_shows_in_status_and_metrics(rig):
    assert rig.loop.report_now()
    document = status_document(rig.loop.status)
    assert (document["placement"], document["last_error"], document["refused"]) == ("up", "", [])
    assert document["last_report_seconds_ago"] >= 0
    assert rig.metric("placement_up") == 1
    assert rig.metric("reports_total", outcome="ok") == 1


@pytest.mark.parametrize("error", [PlacementError("GET", "/", "no", status=500), ValueError("a defect")])
def test_ends_of_claims_are_read_after_a_report_that_failed(rig, monkeypatch, error):
    def fail(*arguments):
        raise error

    reads = []
    rig.loop._claim_ends = SimpleNamespace(read_ends=lambda client: reads.append(client) or True)
    assert rig.loop.report_now()
    monkeypatch.setattr(rig.reporter, "report_tree", fail)
    assert not rig.loop.report_now()
    assert reads == [rig.client] * 2


def test_an_error_with_ends_of_claims_fails_the_report_only(rig, caplog):
    rig.loop._claim_ends = SimpleNamespace(read_ends=lambda client: 1 / 0)
    assert not rig.loop.report_now()
    assert "Unexpected error while the claims that have an end time were read" in caplog.text
    assert rig.loop.status.last_error == ""


def test_devices_of_another_program_are_left_out_everywhere(rig):
    assert rig.loop.report_now()
    address, uuid = "0000:81:00.0", "11111111-0000-4000-8000-000000000009"
    rig.client.create_provider("33333333-0000-4000-8000-000000000001", f"h_{address}", ROOT)
    rig.reporter.forget_providers()
    gpu = {"CUSTOM_GPU": ProviderInventory(1)}
    device = ProviderNode(f"h_{address}", uuid, ROOT, gpu, device=address, device_class="CUSTOM_GPU")
    assert rig.use_tree(replace(TREE, nodes=(*TREE.nodes, device)))
    assert rig.pipeline.foreign_devices == {address}
    assert rig.pipeline.reported_tree.nodes == TREE.nodes
    assert held_devices(rig.pipeline.reported_tree, {uuid: {"CUSTOM_GPU": 1}}) == {}
    assert cards_of(rig.pipeline.reported_tree, list) == {}


def test_an_invalid_answer_costs_one_report(rig, monkeypatch):
    assert rig.loop.report_now()
    rig.reporter.forget_providers()
    request = rig.client.adapter.request

    def corrupted(url, method, **arguments):
        response = request(url, method, **arguments)
        if "/ext/v1/trees" in url:
            document = response.json()
            document["resource_providers"][0]["traits"].append(7)
            response._content = json.dumps(document).encode()
        return response

    with monkeypatch.context() as patch:
        patch.setattr(rig.client.adapter, "request", corrupted)
        assert not rig.loop.report_now()
    assert "resource_providers[0].traits" in rig.loop.status.last_error
    assert "is a number, not text" in rig.loop.status.last_error
    assert rig.loop.report_now()
    assert rig.loop.status.last_error == ""


def test_an_unexpected_error_is_logged_once_and_drops_the_cache(rig, monkeypatch, caplog):
    assert rig.loop.report_now()
    with monkeypatch.context() as patch:
        patch.setattr(rig.reporter, "take_listing", lambda: 1 / 0)
        assert not rig.loop.report_now()
        assert rig.reporter.reader.reported == {}
        assert not rig.loop.report_now()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors] == ["The report failed"]
    assert rig.loop.report_now()


def test_the_time_of_the_last_complete_report_is_a_metric(rig, live_placement, monkeypatch):
    before = rig.metric("last_report_timestamp_seconds")
    assert rig.loop.report_now()
    after = rig.metric("last_report_timestamp_seconds")
    assert after >= before
    live_placement.stop()
    assert not rig.loop.report_now()
    assert rig.metric("last_report_timestamp_seconds") == after


def test_an_absent_placement_is_logged_once_and_shown(rig, live_placement, caplog):
    live_placement.stop()
    assert not rig.loop.wait_for_first(0)
    with caplog.at_level(logging.WARNING, "compute_agent"):
        assert not rig.loop.report_now()
        assert not rig.loop.report_now()
    assert rig.loop.wait_for_first(0)
    assert caplog.text.count("Report to Placement failed") == 1
    assert status_document(rig.loop.status)["placement"] == "away"
    assert rig.metric("placement_up") == 0
    live_placement.start()
    assert rig.loop.report_now()
    assert rig.loop.status.last_error == ""


def test_a_peer_that_fails_in_several_ways_is_logged_once(rig, client, monkeypatch, caplog):
    def fail(reason):
        def follow(*_):
            raise UnavailableError("GET", "/ext/v1", reason)

        monkeypatch.setattr(rig.reporter, "report_tree", follow)
        assert not rig.loop.report_now()

    with caplog.at_level(logging.INFO, "compute_agent"):
        for reason in ("reset", "refused", "refused", "reset"):
            fail(reason)
    told = [
        each for each in caplog.records if re.search("Reports? to Placement (still )?fail", each.getMessage())
    ]
    assert [each.levelname for each in told] == ["WARNING", "INFO", "INFO"]
    assert "reset" in rig.loop.status.last_error


def test_a_refused_change_shows_in_status_and_metrics(rig, client):
    client.create_provider("33333333-0000-4000-8000-000000000001", "h", None)
    assert not rig.loop.report_now()
    refused = status_document(rig.loop.status)["refused"]
    assert refused[0].startswith(
        f"CreateProvider h ({ROOT}): the name h belongs to the provider 33333333-0000-4000-8000-000000000001"
    )
    assert rig.metric("refused_changes") == len(refused)


def test_a_disk_that_is_full_stops_the_report_and_is_shown(client):
    def full(owned):
        raise OSError(28, "No space left on device")

    rig = ReportingHost(client, full)
    assert not rig.loop.report_now()
    assert "No space left" in rig.loop.status.last_error
    assert client.providers_in_tree(ROOT) == []
    rig.pipeline.stop()


class TestAllocations:
    """Guests get CPUs according to their allocations in Placement."""

    @pytest.fixture
    def rig(self, rig):
        rig.loop.report_now()
        return rig

    def test_a_claim_made_after_the_start_is_honoured(self, rig):
        assert rig.run_guest({}).assignment.cpus == {3, 7}
        rig.claim(NODES[1], PCPU=1)
        rig.loop.report_now()
        assert rig.cpus() == {5}

    def test_a_move_to_another_node_is_followed(self, rig):
        rig.claim(NODES[0], PCPU=2)
        rig.run_guest({NODES[0]: {"PCPU": 2}})
        rig.claim(NODES[1], PCPU=2)
        rig.loop.report_now()
        assert rig.cpus() == {5, 6}

    def test_an_allocation_that_is_on_its_way_between_two_requests_is_not_missed(self, rig, monkeypatch):
        rig.claim(NODES[0], PCPU=2)
        rig.run_guest({NODES[0]: {"PCPU": 2}})
        monkeypatch.setattr(rig.client, "provider_allocations", lambda uuid: {})
        rig.loop.report_now()
        assert rig.cpus() == {1, 2}

    def test_guests_keep_their_cpus_while_placement_is_away(self, rig, live_placement):
        rig.claim(NODES[0], PCPU=2)
        rig.run_guest({NODES[0]: {"PCPU": 2}})
        live_placement.stop()
        assert not rig.loop.report_now()
        assert rig.cpus() == {1, 2}

    def test_an_unchanged_allocation_costs_no_event(self, rig):
        rig.claim(NODES[0], PCPU=2)
        rig.run_guest({NODES[0]: {"PCPU": 2}})
        rig.loop.report_now()
        rig.pipeline.stop()
        assert rig.metric("events_total", event="AllocationsRead") is None


def test_a_new_client_is_used_from_the_next_report_on(rig, client):
    class Gone:
        def forget_extensions(self):
            """Send no request."""

        def __getattr__(self, name):
            def fail(*_):
                raise UnavailableError("GET", "/", "gone")

            return fail

    rig.loop.reload(reporting(Gone(), 3600))
    assert not rig.loop.report_now()
    rig.loop.reload(reporting(client, 3600))
    assert rig.loop.report_now()


def test_the_loop_reports_at_once_and_when_woken(rig, live_placement):
    rig.loop.start()
    wait_for(lambda: rig.loop.status.up is not None)
    assert rig.loop.status.up
    live_placement.requests.clear()
    rig.loop.wake()
    wait_for(lambda: live_placement.requests)
    assert live_placement.requests[0] == ("GET", f"/ext/v1/trees/{ROOT}")
    rig.loop.stop()


class TestReshape:
    """The loop finds that the provider tree needs a reshape."""

    @pytest.fixture
    def rig(self, rig, client):
        """A host that was reported with a flat tree, with a consumer that has allocations of its root."""
        HostReporter(client, {}, lambda owned: None).report_tree(FLAT)
        rig.claim(ROOT, PCPU=2)
        return rig

    def test_a_reshape_is_made_at_the_start(self, rig, client):
        assert rig.loop.report_now()
        assert client.get_allocations(CONSUMER).resources == {NODES[0]: {"PCPU": 2}}

    def test_a_later_reshape_is_reported_and_waits_for_the_command(self, rig, client):
        assert rig.use_tree(FLAT)
        assert not rig.use_tree(TREE)
        assert "guests that hold what moves: 1" in status_document(rig.loop.status)["refused"][0]
        assert client.get_allocations(CONSUMER).resources == {ROOT: {"PCPU": 2}}
        assert rig.loop.reshape(dry_run=True).moves
        assert client.get_allocations(CONSUMER).resources == {ROOT: {"PCPU": 2}}
        assert rig.loop.reshape(dry_run=False).moves
        assert client.get_allocations(CONSUMER).resources == {NODES[0]: {"PCPU": 2}}
        assert rig.loop.status.refusals == ()

    @pytest.mark.parametrize(
        "error", [ConflictError("POST", "/reshaper", "taken", status=409), DriverError("libvirtd is away")]
    )
    def test_a_failed_reshape_is_a_refusal_and_is_tried_again(self, rig, client, monkeypatch, error):
        def fail(*_):
            raise error

        if isinstance(error, DriverError):
            rig.locate = fail
        else:
            monkeypatch.setattr(client, "send_reshape", fail)
        assert not rig.loop.report_now()
        assert str(error) in status_document(rig.loop.status)["refused"][0]
        assert rig.loop.status.up
        assert client.get_allocations(CONSUMER).resources == {ROOT: {"PCPU": 2}}
        monkeypatch.undo()
        rig.locate = dict
        assert rig.loop.report_now()
        assert client.get_allocations(CONSUMER).resources == {NODES[0]: {"PCPU": 2}}

    def test_allocations_are_read_although_a_reshape_is_not_allowed(self, rig, client, monkeypatch):
        def fail(body):
            raise CredentialsError("POST", "/reshaper", "Policy does not allow", status=403)

        monkeypatch.setattr(client, "send_reshape", fail)
        rig.run_guest({})
        assert not rig.loop.report_now()
        assert "Policy does not allow" in status_document(rig.loop.status)["refused"][0]
        assert rig.cpus() == {1, 2}


def test_the_scheduling_switch_waits_for_placement(rig, client, live_placement):
    rig.loop.report_now()
    live_placement.stop()
    rig.loop.switch_scheduling(DisableCause.WATERMARK, True)
    assert not rig.loop.report_now()
    live_placement.start()
    assert rig.loop.report_now()
    assert "COMPUTE_STATUS_DISABLED" in client.get_traits(ROOT)[0]
    rig.loop.switch_scheduling(DisableCause.WATERMARK, False)
    assert rig.loop.report_now()
    assert client.get_traits(ROOT)[0] == set()


def test_new_guests_are_kept_away_even_where_the_tree_is_refused(rig, client):
    rig.loop.report_now()
    client.create_provider("33333333-0000-4000-8000-000000000001", "other", None)
    nodes = tuple(replace(node, name="other" if node.uuid == ROOT else node.name) for node in TREE.nodes)
    rig.pipeline.submit(HostStateChanged(replace(rig.pipeline.host_state, tree=ProviderTree(nodes)))).result(
        10
    )
    rig.loop.switch_scheduling(DisableCause.WATERMARK, True)
    assert not rig.loop.report_now()
    assert "COMPUTE_STATUS_DISABLED" in client.get_traits(ROOT)[0]


HOSTS, INTERVAL, LONGEST = 5000, 60.0, 60.0


@pytest.mark.parametrize(("drawn", "part"), [(0.0, 0.5), (1.0, 1.0)])
def test_pauses_grow_up_to_the_longest(drawn, part):
    pauses = [pause(failures, INTERVAL, 300, lambda: drawn) for failures in range(1, 12)]
    assert pauses[:3] == [part * FIRST_PAUSE, part * 2 * FIRST_PAUSE, part * 4 * FIRST_PAUSE]
    assert pauses[-1] == pause(10**6, INTERVAL, 300, lambda: drawn) == part * 300


def test_intervals_differ_by_a_tenth_at_most_and_not_on_average():
    rng = random.Random(1)
    pauses = [pause(0, INTERVAL, LONGEST, rng.random) for _ in range(10_000)]
    assert min(pauses) >= 54
    assert max(pauses) <= 66
    assert sum(pauses) / len(pauses) == pytest.approx(INTERVAL, rel=0.01)


def attempts(starts, away, until, seed=1):
    """The number of requests of all hosts in each second. The service is unavailable between two given
    times.
    """
    rng, counts = random.Random(seed), Counter()
    due = [(start, host, 0) for host, start in enumerate(starts)]
    heapq.heapify(due)
    while due[0][0] < until:
        now, host, failures = heapq.heappop(due)
        counts[int(now)] += 1
        failures = failures + 1 if away[0] <= now < away[1] else 0
        heapq.heappush(due, (now + pause(failures, INTERVAL, LONGEST, rng.random), host, failures))
    return counts


@pytest.mark.parametrize(("seconds", "most"), [(3, 3), (60, 6), (1800, 3)])
def test_hosts_do_not_come_back_together(seconds, most):
    rng = random.Random(2)
    starts = [rng.uniform(0, INTERVAL) for _ in range(HOSTS)]
    back = 300 + seconds
    counts = attempts(starts, (300, back), back + 600)
    even = HOSTS / INTERVAL  # 83 in a second
    after = [counts[second] for second in range(back, back + 600)]
    assert max(after) < most * even
    assert max(after[300:]) < 3 * even


def test_hosts_that_were_started_at_once_drift_apart():
    counts = attempts([0.0] * HOSTS, (0, 0), 3600)
    assert counts[0] == HOSTS
    assert max(counts[second] for second in range(3000, 3600)) < 3 * HOSTS / INTERVAL
