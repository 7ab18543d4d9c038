"""Tests of cache ways and bandwidth, from the claim in Placement to the group in a fake kernel."""

import functools
import json
import os
from pathlib import Path

import pytest

from benchmarks.reference import ReferenceMissing
from compute_agent.agent.protocol import RequestError
from compute_agent.model.guest_settings import SettingSource
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.events import LimitGuest, ReconcileGuests
from compute_agent.pipeline.guest_settings import FILE_NAME, ManualSettings
from compute_agent.report.answers import ConflictError
from compute_agent.report.client import PlacementClient
from compute_agent.resctrl.groups import read_groups, read_tasks
from tests.compute_agent.agent.cache_agent import CacheAgent, uid
from tests.compute_agent.builders import load_options, read_metric
from tests.compute_agent.cmd.agents import run_here
from tests.compute_agent.servers import running

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(write_host, client, files):
    rig = CacheAgent(write_host, client, files)
    yield rig
    rig.close()


def test_ways_bandwidth_and_groups_are_reported(rig):
    offered = [rig.inventory(rig.l3(cache), "LLC") for cache in (0, 1)]
    assert [(one["total"], one["reserved"], one["min_unit"]) for one in offered] == [(16, 2, 1)] * 2
    bandwidth = rig.inventory(rig.l3(0), "MBA")
    assert (bandwidth["total"], bandwidth["min_unit"], bandwidth["step_size"]) == (100, 10, 10)
    root = rig.provider("testhost")
    groups = rig.inventory(root, "CUSTOM_RESCTRL_GROUP")
    assert (groups["total"], groups["reserved"]) == (8, 2)
    traits, _ = rig.client.get_traits(root)
    assert {"CUSTOM_RESCTRL_L3_CAT", "CUSTOM_RESCTRL_MBA", "CUSTOM_RESCTRL_CMT"} <= traits
    assert "CUSTOM_LLC_WAY_1024KIB" in rig.client.get_traits(rig.l3(1))[0]


def test_groups_of_others_are_shown_whatever_they_are_called_and_never_touched(rig):
    root = os.fsencode(rig.files.root)
    foreign = [b"\xff\x1b[2J\xc2\x85", b"x" * 255, b"compute-agent"]
    before = {}
    for name in foreign:
        os.mkdir(root + b"/" + name)
        for file, text in (("schemata", "L3:0=3;1=3\n"), ("tasks", ""), ("mode", "shareable\n")):
            Path(os.fsdecode(root + b"/" + name), file).write_text(text)
        before[name] = sorted(os.listdir(root + b"/" + name))
    rig.claim_on(uid(1), {rig.l3(1): {"LLC": 4}})
    rig.run(uid(1), name="db")
    for form in ("table", "json"):
        done = run_here(rig.ini, "resctrl", "group", "list", "-f", form)
        assert done.returncode == 0, done.stderr
    rows = {row["group"]: row["kind"] for row in json.loads(done.stdout)}
    assert {name for name, kind in rows.items() if kind == "foreign"} == {
        "\ufffd\ufffd[2J\ufffd",
        "x" * 255,
        "compute-agent",
    }
    assert {name: sorted(os.listdir(root + b"/" + name)) for name in foreign} == before
    for name in foreign:
        assert Path(os.fsdecode(root + b"/" + name), "schemata").read_text() == "L3:0=3;1=3\n"


def test_the_commands_show_the_offer_and_its_holders(rig):
    def shown(*words):
        done = run_here(rig.ini, *words, "-f", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    rig.claim_on(uid(1), {rig.l3(1): {"LLC": 4, "MBA": 30}})
    rig.run(uid(1), name="db")
    rows = {row["group"]: row for row in shown("resctrl", "group", "list")}
    own = rows[f"compute-agent.guest.{uid(1)}"]
    assert (own["guests"], own["ways"]["1"], own["bandwidth_percent"]["1"]) == (["db"], 4, 30)
    assert own["schemata"][0].startswith("MB:0=100;1=30")
    assert [row["refused"] for row in shown("guest", "list")] == [[]]
    offered = shown("host", "show")["resctrl"]
    assert (offered["groups"], offered["groups_taken"]) == (8, 2)
    assert [cache["ways"] for cache in offered["caches"]] == [16, 16]
    derived = {(row["provider"], row["resource_class"]) for row in shown("inventory", "show", "--derived")}
    checked = {(row["provider"], row["resource_class"]) for row in shown("config", "check")["inventories"]}
    assert derived == checked >= {("testhost_L3_0", "LLC"), ("testhost", "CUSTOM_RESCTRL_GROUP")}
    assert {row["differs"] for row in shown("inventory", "show")} == {False}


def test_candidates_have_the_cache_of_their_cpus_and_a_free_group(rig):
    query = (
        "resources1=VCPU:1&resources2=LLC:4,MBA:30&resources3=CUSTOM_RESCTRL_GROUP:1"
        "&same_subtree=1,2&group_policy=none"
    )
    found = rig.client.send_request(
        "GET", f"/allocation_candidates?{query}", shape={"allocation_requests": [{}]}
    )["allocation_requests"]
    wanted = {
        frozenset(
            {(rig.node(), "VCPU"), (rig.l3(cache), "LLC"), (rig.provider("testhost"), "CUSTOM_RESCTRL_GROUP")}
        )
        for cache in (0, 1)
    }
    offered = {
        frozenset((uuid, next(iter(one["resources"]))) for uuid, one in request["allocations"].items())
        for request in found
    }
    assert offered == wanted


def test_a_claim_becomes_a_group_and_goes_with_the_guest(rig):
    rig.claim_on(uid(1), {rig.l3(1): {"LLC": 4, "MBA": 30}, rig.node(): {"PCPU": 1}})
    guest = rig.run(uid(1), name="db")
    group = f"compute-agent.guest.{uid(1)}"
    shown = rig.groups()[group]
    assert (shown["kind"], shown["guests"], shown["threads"]) == ("guest", ["db"], 1)
    assert shown["ways"] == {"0": 16, "1": 4}
    assert shown["llc_kib"]["1"] == 4096
    assert shown["bandwidth_percent"] == {"0": 100, "1": 30}
    mask = rig.mask(group, 1)
    assert mask.is_contiguous
    assert all(not rig.mask(other, 1) & mask for other in read_groups(rig.files).groups if other != group)
    assert guest["pid"] in read_tasks(rig.files, group)
    assert guest["refused"] == []
    rig.ask("guest.stop", guest="db")
    assert group not in rig.groups()
    assert len(rig.mask("", 1)) == 16


def test_an_allocation_that_grows_or_goes_is_followed(rig):
    rig.claim_on(uid(1), {rig.l3(0): {"LLC": 2}, rig.node(): {"VCPU": 1}})
    rig.run(uid(1))
    group = f"compute-agent.guest.{uid(1)}"
    assert len(rig.mask(group, 0)) == 2
    rig.claim_on(uid(1), {rig.l3(0): {"LLC": 5}, rig.node(): {"VCPU": 1}})
    rig.agent.reports.wake()
    rig.wait_for(lambda: len(rig.mask(group, 0)) == 5)
    rig.claim_on(uid(1), {rig.node(): {"VCPU": 1}})
    rig.agent.reports.wake()
    rig.wait_for(lambda: group not in rig.groups())
    assert rig.ask("guest.list")[0]["pid"] in read_tasks(rig.files, "")


def test_guests_side_by_side_have_nothing_in_common_and_the_service_refuses_what_is_too_much(rig):
    for number, ways in ((1, 6), (2, 5)):
        rig.claim_on(uid(number), {rig.l3(0): {"LLC": ways, "MBA": 40}})
        rig.run(uid(number))
    one, two = (rig.mask(f"compute-agent.guest.{uid(number)}", 0) for number in (1, 2))
    assert (len(one), len(two), bool(one & two)) == (6, 5, False)
    with pytest.raises(ConflictError):
        rig.claim_on(uid(3), {rig.l3(0): {"LLC": 4}})
    with pytest.raises(ConflictError):
        rig.claim_on(uid(3), {rig.l3(0): {"MBA": 30}})
    with pytest.raises(ConflictError):
        rig.claim_on(uid(3), {rig.l3(0): {"MBA": 15}})
    rig.claim_on(uid(3), {rig.l3(0): {"LLC": 3}})
    rig.run(uid(3))
    assert len(rig.mask(f"compute-agent.guest.{uid(3)}", 0)) == 3


def test_a_host_without_groups_left_is_shown_on_the_guest_and_counted(rig):
    for number in range(1, 8):
        rig.run(uid(number), resctrl=f'{{"MB": {{"schemata": {{"percent": {number}0}}}}}}')
    last = rig.ask("guest.show", guest=uid(7))
    assert last["refused"] == ["resctrl: all 8 resctrl groups are taken"]
    assert read_metric(rig.agent.metrics, "refused_settings", controller="resctrl") == 1
    assert last["pid"] in read_tasks(rig.files, "")
    rig.ask("guest.stop", guest=uid(1))
    assert rig.ask("guest.show", guest=uid(7))["refused"] == []


def test_a_limit_of_the_watermarks_throttles_a_guest_and_is_released(rig):
    pid = rig.run(uid(1), qos_class="BE")["pid"]
    knob = ThrottleControl("memory_bandwidth", "1")
    rig.agent.pipeline.submit(LimitGuest(uid(1), knob, 40.0)).result()
    (group,) = (row for row in rig.groups().values() if row["guests"])
    assert (group["kind"], group["bandwidth_percent"]) == ("guest", {"0": 100, "1": 40})
    assert pid in read_tasks(rig.files, group["group"])
    rig.agent.pipeline.submit(LimitGuest(uid(1), knob, None)).result()
    assert pid in read_tasks(rig.files, "compute-agent.class.BE")
    assert group["group"] not in rig.groups()


def test_a_bad_annotation_is_refused_before_anything_starts(rig):
    with pytest.raises(RequestError, match=r"resctrl: .*unknown key 'L4'"):
        rig.run(uid(1), resctrl='{"L4": {}}')
    assert rig.ask("guest.list") == []


def test_another_annotation_of_a_running_guest_takes_effect_and_is_kept(rig):
    rig.run(uid(1))
    shown = rig.ask("guest.set", guest=uid(1), resctrl='{"MB": {"schemata": {"percent": 20}}}')
    assert shown["resctrl"] == '{"MB": {"schemata": {"percent": 20}}}'
    (group,) = [name for name, row in rig.groups().items() if uid(1) in row["guests"]]
    assert "MB:0=20;1=20" in (rig.files.root / group / "schemata").read_text().replace(" ", "")
    rig.reload_changes()
    kept = ManualSettings.look_up(rig.ini.parent / "state" / FILE_NAME)
    assert kept.setting_texts(uid(1), SettingSource.BY_HAND) == {"resctrl": shown["resctrl"]}
    rig.ask("guest.set", guest=uid(1), resctrl="", qos_class="BE", priority=3)
    assert uid(1) in rig.groups()["compute-agent.class.BE"]["guests"]
    assert group not in rig.groups()
    with pytest.raises(RequestError, match="percent"):
        rig.ask("guest.set", guest=uid(1), resctrl='{"MB": {"schemata": {"percent": 200}}}')
    with pytest.raises(RequestError, match="nothing to change"):
        rig.ask("guest.set", guest=uid(1))


def test_changed_classes_of_the_configuration_apply_at_run_time(rig, write_host):
    rig.run(uid(1), qos_class="BE")
    assert len(rig.mask("compute-agent.class.BE", 0)) == 5
    write_host(**{"qos_class:BE": "llc_range = 0-50\nmb_percent = 40\nllc_range_per_cache = 1:0-20"})
    rig.reload_changes()
    assert [len(rig.mask("compute-agent.class.BE", cache)) for cache in (0, 1)] == [8, 4]
    assert rig.groups()["compute-agent.class.BE"]["bandwidth_percent"] == {"0": 40, "1": 40}
    write_host(**{"qos_class:BE": "llc_range = 50-40"})
    rig.reload_changes()
    assert "[qos_class:BE] llc_range: range 50-40" in rig.ask("status")["config_error"]
    assert len(rig.mask("compute-agent.class.BE", 0)) == 8
    write_host(
        **{"qos_class:gold": "rank = 30\nllc_range = 0-100", "qos_class:tin": "rank = 1\nmb_percent = 50"}
    )
    rig.agent.reload()
    groups = rig.groups()
    assert {name: group["qos_class"] for name, group in groups.items()} == {
        "(default)": "LSR, LS, gold",
        "compute-agent.class.BE": "BE",
        "compute-agent.class.tin": "tin",
    }
    assert len(rig.mask("compute-agent.class.BE", 0)) == 5


def test_groups_of_others_are_listed_left_alone_and_counted_in_the_inventory(rig):
    root = rig.provider("testhost")
    rig.files.make_folder("theirs")
    rig.files.write_file("theirs/schemata", "L3:0=3;1=ffff\n")
    rig.reload_changes()
    rig.wait_for(lambda: rig.inventory(root, "CUSTOM_RESCTRL_GROUP")["reserved"] == 3)
    rig.run(uid(1), resctrl='{"MB": {"schemata": {"percent": 20}}}')
    shown = rig.groups()["theirs"]
    assert (shown["kind"], shown["ways"], shown["guests"]) == ("foreign", {"0": 2, "1": 16}, [])
    assert rig.inventory(root, "CUSTOM_RESCTRL_GROUP")["reserved"] == 3
    rig.files.remove_folder("theirs")
    rig.reload_changes()
    rig.wait_for(lambda: rig.inventory(root, "CUSTOM_RESCTRL_GROUP")["reserved"] == 2)


def test_a_restarted_agent_takes_its_groups_over(rig):
    rig.claim_on(uid(1), {rig.l3(0): {"LLC": 3}})
    rig.claim_on(uid(2), {rig.l3(0): {"LLC": 3}})
    rig.run(uid(1))
    rig.run(uid(2))
    before = rig.mask(f"compute-agent.guest.{uid(2)}", 0)
    rig.agent.stop()
    rig.agent.driver.stop(next(guest for guest in rig.agent.driver.guests() if guest.uuid == uid(1)), 1)
    rig.agent = type(rig.agent)(rig.load_conf)
    rig.agent.start()
    assert rig.mask(f"compute-agent.guest.{uid(2)}", 0) == before
    assert f"compute-agent.guest.{uid(1)}" not in rig.groups()


def test_drift_is_repaired_at_the_reconcile_and_counted(rig):
    rig.claim_on(uid(1), {rig.l3(0): {"LLC": 3}})
    pid = rig.run(uid(1))["pid"]
    group = f"compute-agent.guest.{uid(1)}"
    before = rig.mask(group, 0)
    rig.files.write_file(f"{group}/schemata", "L3:0=ffff\n")
    rig.files.write_file("tasks", f"{pid}\n")
    rig.agent.pipeline.submit(ReconcileGuests()).result()
    assert rig.mask(group, 0) == before
    assert pid in read_tasks(rig.files, group)
    assert read_metric(rig.agent.metrics, "drift_repairs_total", controller="resctrl") == 1


def test_a_host_without_resctrl_works_without_it(rig, files, caplog):
    mounts = files.root.parents[2] / "proc/mounts"
    mounts.write_text("")
    (files.root / "schemata").rename(files.root / "gone")
    caplog.set_level("INFO")
    rig.reload_changes()
    assert "Cache and bandwidth control is off: resctrl is not supported" in caplog.text
    rig.run(uid(1))
    with pytest.raises(RequestError, match="control is off: resctrl is not supported"):
        rig.ask("resctrl.groups")
    assert rig.ask("status")["cache_control"].startswith("off: resctrl is not supported")
    rig.wait_for(lambda: rig.inventory(rig.provider("testhost"), "CUSTOM_RESCTRL_GROUP") is None)


def test_the_occupancy_of_the_cache_by_a_guest_is_measured(rig):
    rig.write_ini(monitoring="interval = 0.1")
    rig.reload_changes()
    rig.claim_on(uid(1), {rig.l3(1): {"LLC": 3}})
    rig.run(uid(1))
    group = f"compute-agent.guest.{uid(1)}"
    (rig.files.root / group / "mon_data/mon_L3_01/llc_occupancy").write_text("4096\n")
    labels = {"guest": uid(1), "class": "LS", "cache_id": "1"}
    registry = rig.agent.metrics.registry
    rig.wait_for(lambda: registry.get_sample_value("compute_agent_llc_occupancy_bytes", labels) == 4096)
    assert rig.ask("status")["cache_monitoring"] == "on"
    rig.ask("guest.stop", guest=uid(1))
    rig.wait_for(lambda: registry.get_sample_value("compute_agent_llc_occupancy_bytes", labels) is None)


def test_positions_of_guests_are_reported_and_removed_where_an_option_asks_for_it(write_host, client, files):
    compute = "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost"
    rig = CacheAgent(
        functools.partial(write_host, compute=f"{compute}\nreport_positions = true"), client, files
    )
    try:
        root, name = rig.provider("testhost"), f"position.{uid(1)}"
        rig.claim_on(uid(1), {rig.l3(1): {"LLC": 4}})
        rig.run(uid(1), name="db")
        ways = sorted(
            rig.mask(next(name for name, row in rig.groups().items() if row["guests"] == ["db"]), 1)
        )

        def told():
            rig.agent.reports.wake()
            return rig.client.get_attributes(root)[0]

        rig.wait_for(lambda: f"L3 1: {ways[0]}-{ways[-1]} of 16" in str(told().get(name)))
        rig.ask("guest.stop", guest="db")
        rig.wait_for(lambda: name not in told())
    finally:
        rig.close()


def test_the_agents_heartbeat_is_reported_where_an_option_asks_for_it(write_host, client, files):
    compute = "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost"
    compute += "\nheartbeat_interval = 2\nupdate_resources_interval = 60"  # due is three heartbeat intervals
    rig = CacheAgent(functools.partial(write_host, compute=compute), client, files)
    try:
        root, seen = rig.provider("testhost"), set()

        def beats():
            rig.agent.reports.wake()
            told = rig.client.get_attributes(root)[0]
            assert told["agent.report_due"] == told["agent.reported_at"] + 180
            seen.add(told["agent.reported_at"])
            return len(seen) >= 2

        rig.wait_for(beats)
        first, second = sorted(seen)[:2]
        assert (second - first) % 2 == 0
    finally:
        rig.close()


def test_the_use_of_caches_is_reported_by_default(write_host, client, files):
    compute = "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost"
    rig = CacheAgent(functools.partial(write_host, compute=compute), client, files)
    try:
        root = rig.provider("testhost")
        rig.run(uid(1), name="web")

        def told():
            rig.agent.reports.wake()
            return rig.client.get_attributes(root)[0]

        rig.wait_for(lambda: "MB/s" in str(told().get("neighbour.cache.1")))
        assert told()["neighbour.valid_until"] > told()["neighbour.measured_at"]
    finally:
        rig.close()


@pytest.fixture
def stock_rig(write_host, files, tmp_path):
    folder = tmp_path / "stock"
    folder.mkdir()
    try:
        with running("stock", folder) as url:
            write = functools.partial(
                write_host, placement=f"auth_type = admin_token\nendpoint = {url}\ntoken = admin"
            )
            client = PlacementClient.from_conf(load_options(write("client.ini")))
            stock_rig = CacheAgent(write, client, files)
            yield stock_rig
            stock_rig.close()
    except ReferenceMissing as error:
        pytest.skip(f"OpenStack Placement cannot be installed: {error}")


def test_a_claim_at_a_stock_server_becomes_a_group(stock_rig):
    assert stock_rig.inventory(stock_rig.l3(1), "CUSTOM_LLC")["reserved"] == 2
    stock_rig.claim_on(uid(1), {stock_rig.l3(1): {"CUSTOM_LLC": 4, "CUSTOM_MBA": 30}})
    stock_rig.run(uid(1), name="db")
    own = stock_rig.groups()[f"compute-agent.guest.{uid(1)}"]
    assert (own["guests"], own["ways"]["1"], own["bandwidth_percent"]["1"]) == (["db"], 4, 30)
