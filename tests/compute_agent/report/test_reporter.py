"""Tests of reports to the real service."""

from dataclasses import replace

import pytest
import requests

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.report.answers import (
    ConcurrentUpdateError,
    NotFoundError,
    PlacementError,
    UnavailableError,
)
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import CreateTrait, SetTraits
from compute_agent.report.reporter import MAX_ATTEMPTS
from compute_agent.report.reshape import ReshapePlan
from tests.compute_agent.builders import hold_resources, load_options, release_resources
from tests.compute_agent.report.trees import DISK, NODE_0, PCPU, ROOT, Memory, numa_tree
from tests.placement.running import application

CONSUMER = "22222222-0000-4000-8000-000000000001"


def flat_tree():
    return ProviderTree(
        (ProviderNode("h", ROOT, None, {"DISK_GB": DISK, "PCPU": PCPU}, frozenset({"COMPUTE_NODE"})),)
    )


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture(params=["whole trees", "ordinary requests"])
def client(request, client, monkeypatch):
    """A client of a service that accepts whole trees in one request, and of one that does not."""
    if request.param == "ordinary requests":
        monkeypatch.setattr(client, "has_trees", lambda: False)
    return client


def idle(client):
    """The requests of a report without changes."""
    return [("GET", f"/ext/v1/trees/{ROOT}" if client.has_trees() else "/resource_providers")]


def test_a_host_is_reported_once_and_then_nothing_is_written(client, memory, live_placement):
    reporter = memory.reporter(client)
    assert reporter.report_tree(numa_tree()).sent == 6
    live_placement.writes()
    assert reporter.report_tree(numa_tree()).sent == 0
    assert live_placement.requests == idle(client)
    assert client.get_inventories(NODE_0)[0]["PCPU"]["total"] == 4
    assert client.get_traits(ROOT)[0] == {"COMPUTE_NODE"}


def test_a_restarted_agent_writes_nothing(client, memory, live_placement):
    memory.reporter(client).report_tree(numa_tree())
    live_placement.writes()
    assert memory.reporter(client).report_tree(numa_tree()).sent == 0
    assert live_placement.writes() == []


def test_only_the_provider_that_differs_is_written(client, memory, live_placement):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    live_placement.writes()
    assert reporter.report_tree(numa_tree(VCPU=ProviderInventory(2, max_unit=2))).sent == 1
    assert live_placement.writes() == [("PUT", f"/resource_providers/{NODE_0}/inventories")]


def test_additions_of_operators_stay_and_former_parts_of_the_agent_go(client, memory):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree(VCPU=PCPU))
    client.create_trait("CUSTOM_RACK_7")
    client.create_resource_class("CUSTOM_FPGA")
    inventories, generation = client.get_inventories(NODE_0)
    generation = client.set_inventories(NODE_0, {**inventories, "CUSTOM_FPGA": {"total": 1}}, generation)
    client.set_traits(NODE_0, frozenset({"HW_NUMA_ROOT", "CUSTOM_RACK_7"}), generation)

    assert reporter.report_tree(numa_tree()).sent == 1
    assert client.get_inventories(NODE_0)[0].keys() == {"PCPU", "CUSTOM_FPGA"}
    assert client.get_traits(NODE_0)[0] == {"HW_NUMA_ROOT", "CUSTOM_RACK_7"}


def test_values_of_operators_are_logged_once_and_kept(client, memory, caplog):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    inventories, generation = client.get_inventories(NODE_0)
    client.set_inventories(NODE_0, {"PCPU": {**inventories["PCPU"], "reserved": 1}}, generation)
    for _ in range(2):
        assert reporter.report_tree(numa_tree()).sent == 0
    assert caplog.text.count("reserved of PCPU was set to 1 through the API and stays") == 1
    assert client.get_inventories(NODE_0)[0]["PCPU"]["reserved"] == 1


def with_attributes(tree, **attributes):
    return replace(tree, nodes=(*tree.nodes[:-1], replace(tree.nodes[-1], attributes=attributes)))


def test_attributes_are_reported_and_those_of_others_stay(client, memory, live_placement):
    reporter = memory.reporter(client)
    first = with_attributes(numa_tree(), memory_tier=4, cpu_capacity=0.5)
    assert reporter.report_tree(first).sent == 7
    live_placement.writes()
    assert reporter.report_tree(first).sent == 0
    assert live_placement.requests == idle(client)
    found, generation = client.get_attributes(NODE_0)
    assert found == {"memory_tier": 4, "cpu_capacity": 0.5}
    client.set_attributes(NODE_0, {"price": 7, "memory_tier": 9}, generation)
    assert reporter.report_tree(with_attributes(numa_tree(), memory_tier=5)).sent == 1
    assert client.get_attributes(NODE_0)[0] == {"price": 7, "memory_tier": 5}


def test_extensions_are_asked_for_once_until_everything_is_read_again(
    client, memory, live_placement, monkeypatch
):
    respond, asked = client.adapter.request, []

    def stock(url, method, **options):
        if url.startswith("/ext/"):
            asked.append(url)
            url = "/no" + url
        return respond(url, method, **options)

    monkeypatch.setattr(client.adapter, "request", stock)
    reporter = memory.reporter(client)
    assert reporter.report_tree(with_attributes(numa_tree(), memory_tier=4)).sent == 6
    assert reporter.report_tree(with_attributes(numa_tree(), memory_tier=5)).sent == 0
    assert asked == ["/ext/v1"]
    reporter.forget_providers()
    assert reporter.report_tree(with_attributes(numa_tree(), memory_tier=5)).sent == 0
    assert asked == ["/ext/v1", "/ext/v1"]


def test_a_change_behind_our_back_is_repaired(client, memory):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    client.set_traits(ROOT, frozenset(), client.get_traits(ROOT)[1])
    assert reporter.report_tree(numa_tree()).sent == 1
    assert client.get_traits(ROOT)[0] == {"COMPUTE_NODE"}


def test_a_conflict_is_read_again_and_retried(client, memory, monkeypatch):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    send, interfere = client.set_inventories, [True, True]

    def interfering(uuid, inventories, generation):
        if interfere.pop() if interfere else False:
            traits, current = client.get_traits(uuid)
            client.set_traits(uuid, traits ^ {"COMPUTE_NODE"}, current)
        return send(uuid, inventories, generation)

    monkeypatch.setattr(client, "set_inventories", interfering)
    assert reporter.report_tree(numa_tree(VCPU=PCPU)).refusals == ()
    assert client.get_inventories(NODE_0)[0].keys() == {"PCPU", "VCPU"}
    assert client.get_traits(NODE_0)[0] == {"HW_NUMA_ROOT"}


def test_a_provider_that_changes_while_it_is_read_is_read_again(client, memory, monkeypatch):
    memory.reporter(client).report_tree(numa_tree())
    read, interfere = client.get_inventories, [True, True]

    def interfering(uuid):
        answer = read(uuid)
        if interfere.pop() if interfere else False:
            traits, current = client.get_traits(uuid)
            client.set_traits(uuid, traits ^ {"COMPUTE_NODE"}, current)
        return answer

    monkeypatch.setattr(client, "get_inventories", interfering)
    found = memory.reporter(client).read_reported(ROOT)
    assert {uuid: found[uuid].generation for uuid in found} == {
        uuid: read(uuid)[1] for uuid in (ROOT, NODE_0)
    }


def test_after_four_conflicts_it_is_left_for_the_next_time(client, memory, monkeypatch):
    attempts = []

    def conflict(*_):
        attempts.append(1)
        raise ConcurrentUpdateError("PUT", "/x", "conflict", status=409)

    monkeypatch.setattr(client, "set_inventories", conflict)
    monkeypatch.setattr(client, "write_tree", conflict)
    with pytest.raises(ConcurrentUpdateError):
        memory.reporter(client).report_tree(numa_tree())
    assert len(attempts) == MAX_ATTEMPTS


def test_capacity_in_use_is_neither_removed_nor_counted_twice(client, memory):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    hold_resources(client, CONSUMER, {NODE_0: {"PCPU": 2}})
    report = reporter.report_tree(flat_tree())
    assert len(report.refusals) == 2
    assert "in use" in report.refusals[0].reason.lower() or "allocations" in report.refusals[0].reason.lower()
    assert "PCPU" in report.refusals[1].reason
    assert client.get_inventories(ROOT)[0].keys() == {"DISK_GB"}
    assert client.get_inventories(NODE_0)[0]["PCPU"]["total"] == 4

    release_resources(client, CONSUMER)
    assert reporter.report_tree(flat_tree()).refusals == ()
    assert client.get_inventories(ROOT)[0].keys() == {"DISK_GB", "PCPU"}
    assert [provider.uuid for provider in client.providers_in_tree(ROOT)] == [ROOT]


def test_a_name_that_is_taken_is_refused_with_all_below_it(client, memory):
    client.create_provider("33333333-0000-4000-8000-000000000001", "h", None)
    report = memory.reporter(client).report_tree(numa_tree())
    assert report.sent == 0
    assert len(report.refusals) == 6
    assert "h" in report.refusals[0].reason


def test_a_wrong_answer_is_not_kept_though_nothing_changes_on_the_server(client, memory, monkeypatch):
    """The server's answer names a trait that the server does not have, instead of a trait of the host."""
    assert not memory.reporter(client).report_tree(numa_tree()).refusals
    reporter = memory.reporter(client)
    request = client.adapter.request

    def corrupted(url, method, **arguments):
        response = request(url, method, **arguments)
        if url != "/traits":
            response._content = response.content.replace(b"HW_NUMA_ROOT", b"CUSTOM_NEVER_WAS")
        return response

    with monkeypatch.context() as patch:
        patch.setattr(client.adapter, "request", corrupted)
        reporter.read_reported(ROOT)
    assert [type(refusal.action) for refusal in reporter.report_tree(numa_tree()).refusals] == [SetTraits]
    assert not reporter.report_tree(numa_tree()).refusals
    assert client.get_traits(NODE_0)[0] == {"HW_NUMA_ROOT"}


def test_an_emptied_server_gets_everything_again(client, memory):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    client.delete_provider(NODE_0)
    client.delete_provider(ROOT)
    assert reporter.report_tree(numa_tree()).sent == 6


def test_an_absent_server_is_an_error_and_then_all_is_caught_up(client, memory, live_placement):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree())
    live_placement.stop()
    with pytest.raises(UnavailableError, match=r"/resource_providers|/ext/v1/trees"):
        reporter.report_tree(numa_tree(VCPU=PCPU))
    live_placement.start()
    assert reporter.report_tree(numa_tree(VCPU=PCPU)).sent == 1


def test_memory_is_kept_before_anything_is_sent(client, memory, monkeypatch):
    """After a crash between two requests, Placement has nothing that the agent does not know as its own."""
    for method in ("set_traits", "write_tree"):
        monkeypatch.setattr(client, method, lambda *_: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        memory.reporter(client).report_tree(numa_tree())
    assert memory.owned[NODE_0].classes == {"PCPU"}
    assert memory.owned[ROOT].traits == {"COMPUTE_NODE"}


class TestStockServer:
    """The server has no resource classes for cache ways (LLC) and memory bandwidth (MBA)."""

    @pytest.fixture
    def placement_application(self, sqlite_url):
        return application(sqlite_url, placement={"additional_resource_classes": []})

    def test_custom_classes_stand_for_llc_and_mba(self, client, memory):
        tree = numa_tree(LLC=ProviderInventory(10, max_unit=10), MBA=ProviderInventory(100, max_unit=100))
        memory.reporter(client).report_tree(tree)
        assert client.get_inventories(NODE_0)[0].keys() == {"PCPU", "CUSTOM_LLC", "CUSTOM_MBA"}


def test_a_server_that_knows_llc_and_mba_gets_them(client, memory):
    memory.reporter(client).report_tree(numa_tree(LLC=ProviderInventory(10, max_unit=10)))
    assert client.get_inventories(NODE_0)[0].keys() == {"PCPU", "LLC"}


@pytest.mark.parametrize("gone", [False, True])
def test_a_provider_that_goes_while_a_reshape_is_planned_holds_nothing(
    client, memory, live_placement, monkeypatch, gone
):
    memory.reporter(client).report_tree(numa_tree())
    hold_resources(client, CONSUMER, {NODE_0: {"PCPU": 1}})

    def removed(uuid):
        raise NotFoundError("GET", f"/resource_providers/{uuid}/allocations", "gone", status=404)

    if gone:  # only requests for each provider can find that
        monkeypatch.setattr(client, "has_trees", lambda: False)
        monkeypatch.setattr(client, "provider_allocations", removed)
    plan = memory.reporter(client).plan_reshape(flat_tree(), {}, {})
    assert isinstance(plan, ReshapePlan)
    assert plan.allocations.keys() == (set() if gone else {CONSUMER})


class TestWholeTrees:
    """A report that sends whole trees has the same effect as ordinary requests, with fewer requests."""

    @pytest.fixture
    def client(self, write_ini):
        return PlacementClient.from_conf(load_options(write_ini()))

    def test_a_host_is_made_in_one_request(self, client, memory, live_placement):
        memory.reporter(client).report_tree(numa_tree(CUSTOM_FPGA=PCPU))
        assert live_placement.writes() == [
            ("PUT", "/resource_classes/CUSTOM_FPGA"),
            ("POST", "/ext/v1/trees"),
        ]

    def test_changes_are_read_in_one_request(self, client, memory, live_placement):
        reporter = memory.reporter(client)
        reporter.report_tree(numa_tree())
        reporter.report_tree(numa_tree())
        hold_resources(client, CONSUMER, {NODE_0: {"PCPU": 1}})
        live_placement.writes()
        assert reporter.report_tree(numa_tree()).sent == 0
        assert live_placement.requests == idle(client)
        assert reporter.take_listing().held == {ROOT: {}, NODE_0: {CONSUMER: {"PCPU": 1}}}
        assert reporter.take_listing() is None

    def test_an_answer_that_got_lost_is_no_obstacle(self, client, memory, monkeypatch):
        write = client.write_tree

        def lost(providers):
            write(providers)
            raise UnavailableError("POST", "/ext/v1/trees", "no answer")

        monkeypatch.setattr(client, "write_tree", lost)
        reporter = memory.reporter(client)
        with pytest.raises(UnavailableError):
            reporter.report_tree(numa_tree())
        assert reporter.report_tree(numa_tree()).sent == 0

    def test_an_answer_without_a_provider_is_an_error(self, client, memory, monkeypatch):
        send = client.send_request

        def shortened(method, url, *arguments, **options):
            answer = send(method, url, *arguments, **options)
            if url == "/ext/v1/trees":
                answer["resource_providers"].pop()
            return answer

        monkeypatch.setattr(client, "send_request", shortened)
        reporter = memory.reporter(client)
        with pytest.raises(PlacementError, match="the answer lacks the providers"):
            reporter.report_tree(numa_tree())
        assert reporter.report_tree(numa_tree()).sent == 0

    @pytest.mark.parametrize("status", [403, 404, 405, 413])
    def test_where_trees_are_not_let_through_ordinary_requests_are(self, client, memory, monkeypatch, status):
        respond = client.adapter.request

        def not_let_through(url, method, **options):
            if url.startswith("/ext/v1/trees") and (method == "POST" or status in (403, 404)):
                refusal = requests.Response()
                refusal.status_code = status
                return refusal
            return respond(url, method, **options)

        monkeypatch.setattr(client.adapter, "request", not_let_through)
        reporter = memory.reporter(client)
        assert reporter.report_tree(numa_tree()).sent == 6
        assert reporter.report_tree(numa_tree()).sent == 0
        assert client.get_inventories(NODE_0)[0]["PCPU"]["total"] == 4

    def test_a_service_that_was_replaced_by_one_without_trees_is_reported_to(
        self, client, memory, monkeypatch
    ):
        reporter = memory.reporter(client)
        reporter.report_tree(numa_tree())
        respond = client.adapter.request

        def stock(url, method, **options):
            return respond(url.replace("/ext/", "/no/"), method, **options)

        monkeypatch.setattr(client.adapter, "request", stock)
        assert reporter.report_tree(numa_tree(VCPU=PCPU)).sent == 1
        assert reporter.report_tree(numa_tree()).sent == 1

    def test_a_name_that_cannot_be_made_is_refused_and_all_else_is_reported(
        self, client, memory, monkeypatch
    ):
        def refused(name):
            raise PlacementError("PUT", f"/traits/{name}", "no such name", status=400)

        monkeypatch.setattr(client, "create_trait", refused)
        tree = numa_tree()
        tree = replace(tree, nodes=(replace(tree.root, traits=frozenset({"CUSTOM_X"})), *tree.nodes[1:]))
        report = memory.reporter(client).report_tree(tree)
        assert {type(each.action) for each in report.refusals} == {CreateTrait, SetTraits}
        assert client.get_inventories(NODE_0)[0]["PCPU"]["total"] == 4

    def test_two_agents_of_one_host_do_not_undo_each_other(self, client, memory):
        first, second = memory.reporter(client), Memory().reporter(client)
        first.report_tree(numa_tree())
        second.report_tree(numa_tree())
        second.report_tree(numa_tree(VCPU=PCPU))
        assert first.report_tree(numa_tree()).refusals == ()
        assert client.get_inventories(NODE_0)[0].keys() == {"PCPU", "VCPU"}

    def test_the_root_of_nova_is_in_no_write(self, client, memory, live_placement, monkeypatch):
        client.create_provider(ROOT, "h", None)
        bodies, write = [], client.write_tree
        monkeypatch.setattr(client, "write_tree", lambda body: (bodies.append(body), write(body))[1])
        beside = replace(numa_tree(), beside=True)
        assert memory.reporter(client).report_tree(beside).refusals == ()
        assert [[each["uuid"] for each in body] for body in bodies] == [[NODE_0]]
        assert client.get_inventories(ROOT) == ({}, 0)


def test_only_memory_without_holder_becomes_huge_pages(client, memory):
    reporter = memory.reporter(client)
    reporter.report_tree(numa_tree(MEMORY_MB=ProviderInventory(8192, max_unit=8192)))
    hold_resources(client, CONSUMER, {NODE_0: {"MEMORY_MB": 7000}})
    pages = ProviderInventory(1024, max_unit=1024)
    tree = numa_tree(MEMORY_MB=ProviderInventory(6144, max_unit=6144), CUSTOM_HUGE_PAGES_2MB=pages)

    def there():
        found = reporter.read_reported(ROOT)[NODE_0].inventories
        one, other = found["MEMORY_MB"], found["CUSTOM_HUGE_PAGES_2MB"]
        return one.total, other.total, other.reserved

    for _ in range(2):
        assert reporter.report_tree(tree).refusals == ()
        assert there() == (7000, 1024, 428)
        assert "7000 MEMORY_MB are held" in reporter.waiting.pages[0]
    release_resources(client, CONSUMER)
    reporter.report_tree(tree)
    assert there() == (6144, 1024, 0)
    assert reporter.waiting.pages == ()
    assert reporter.adjustments == ()
