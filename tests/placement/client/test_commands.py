"""Tests that the client `openstack` with osc-placement prints the same as with OpenStack Placement."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import os_resource_classes
import pytest
import requests

from placement.conf import new_config
from placement.db import migration
from tests import databases
from tests.placement.client.shell import COMMANDS, CommandFailed, Shell, client
from tests.placement.serving import service

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
NODE = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
RACK = "d1ad1c8f-3cd9-4a36-9c8d-1c4a3b3f4e55"
GUEST = "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11"
OTHER = "c8e96ef0-6d1e-4f0c-8a23-0e0f4f4f0a22"
RESERVED = "7d9f3a52-1c64-4f0e-9a7e-5b1f0c2d8e43"
CLAIMANT = "0b5d0a34-6bb5-4a2f-9d6e-2f8a4c1b7e90"
ALLOCATION = "resource provider allocation"
INVENTORY = "resource provider inventory"

# Versions that commands of the plugin require according to their --help.
SINCE = {
    "allocation candidate list": (1, 10),
    "resource class create": (1, 2),
    "resource class delete": (1, 2),
    "resource class list": (1, 2),
    "resource class set": (1, 7),
    "resource class show": (1, 2),
    "resource provider aggregate list": (1, 1),
    "resource provider aggregate set": (1, 1),
    "resource provider allocation unset": (1, 12),
    "resource provider trait delete": (1, 6),
    "resource provider trait list": (1, 6),
    "resource provider trait set": (1, 6),
    "resource usage show": (1, 9),
    "trait create": (1, 6),
    "trait delete": (1, 6),
    "trait list": (1, 6),
    "trait show": (1, 6),
}


@pytest.fixture
def url(tmp_path) -> Iterator[str]:
    """The URL of the service under gunicorn, on an empty SQLite database."""
    with databases.create("sqlite") as server:
        database = server.fresh_database()
        migration.upgrade_schema(database)
        with service(database, tmp_path, 1, "[console]\nenabled = true") as running:
            yield running.base


@pytest.mark.slow
@pytest.mark.parametrize(
    "version",
    [
        "1.0",
        pytest.param("1.14", marks=pytest.mark.long),
        "1.24",
        pytest.param("1.29", marks=pytest.mark.long),
        "1.39",
    ],
)
def test_every_command_shows_the_state_of_the_service(url, version, tmp_path):
    with client() as driver:
        shell = Shell(driver, url, version)
        walk_providers(shell)
        walk_inventories(shell)
        if shell.version >= (1, 1):
            walk_aggregates(shell)
        if shell.version >= (1, 2):
            walk_classes(shell)
        if shell.version >= (1, 6):
            walk_traits(shell)
        walk_allocations(shell)
        if shell.version >= (1, 10):
            walk_candidates(shell)
        walk_explanations(shell)
        walk_flavor_files(shell, tmp_path)
        walk_capacity(shell)
        walk_attributes(shell)
        walk_reservations(shell)
        walk_back(shell)
    assert shell.walked == {command for command in COMMANDS if shell.version >= SINCE.get(command, (1, 0))}


def test_the_plugin_has_the_listed_commands_for_each_version():
    assert SINCE.keys() <= COMMANDS


def provider(
    shell: Shell, uuid: str, name: str, generation: int, parent: str | None = None
) -> dict[str, Any]:
    """Return the expected output for a provider in this microversion."""
    shown = {"uuid": uuid, "name": name, "generation": generation}
    if shell.version >= (1, 14):
        shown |= {"root_provider_uuid": parent or uuid, "parent_provider_uuid": parent}
    return shown


def inventory(total: int, **others: Any) -> dict[str, Any]:
    """Return the expected output for an inventory, with the default values of its fields."""
    defaults = {"reserved": 0, "min_unit": 1, "max_unit": 2**31 - 1, "step_size": 1, "allocation_ratio": 1.0}
    return {"total": total, **defaults, **others}


def untold(resource_class: str, total: int) -> dict[str, Any]:
    """Return the expected output for an inventory in a client's dry run, which does not know default
    values.
    """
    return {"resource_class": resource_class, **dict.fromkeys(inventory(total), ""), "total": total}


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def in_order(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row[key])


def walk_providers(shell: Shell) -> None:
    assert shell("resource provider list") == []
    host = provider(shell, HOST, "host", 0)
    assert shell(f"resource provider create --uuid {HOST} host") == host
    parent = f"--parent-provider {HOST}" if shell.version >= (1, 14) else ""
    node = provider(shell, NODE, "node", 0, HOST)
    assert shell(f"resource provider create --uuid {NODE} {parent} node") == node
    assert shell("resource provider list") == [host, node]
    assert shell("resource provider list --name node") == [node]
    assert shell(f"resource provider list --uuid {HOST}") == [host]
    if shell.version >= (1, 14):
        assert shell(f"resource provider list --in-tree {HOST}") == [host, node]
    assert shell(f"resource provider show {NODE}") == node
    assert shell(f"resource provider show --allocations {NODE}") == {**node, "allocations": {}}
    renamed = provider(shell, NODE, "node0", 0, HOST)
    assert shell(f"resource provider set {NODE} --name node0 {parent}") == renamed
    with pytest.raises(CommandFailed, match="Conflicting resource provider name: host already exists"):
        shell("resource provider create host")
    with pytest.raises(CommandFailed, match=f"No resource provider with uuid {RACK} found"):
        shell(f"resource provider show {RACK}")


def walk_inventories(shell: Shell) -> None:
    vcpu = {"resource_class": "VCPU", **inventory(8, max_unit=4)}
    memory = {"resource_class": "MEMORY_MB", **inventory(1024)}
    assert shell(
        f"{INVENTORY} set {NODE} --resource VCPU=8 --resource VCPU:max_unit=4 --resource MEMORY_MB=1024"
    ) == [vcpu, memory]
    larger = inventory(16, reserved=1, max_unit=8, allocation_ratio=2.0)
    options = "--total 16 --reserved 1 --min_unit 1 --max_unit 8 --step_size 1 --allocation_ratio 2.0"
    assert shell(f"{INVENTORY} class set {NODE} VCPU {options}") == larger
    assert shell(f"{INVENTORY} show {NODE} VCPU") == {**larger, "used": 0}
    cache = {"resource_class": "LLC", **inventory(20)}
    rows = in_order([{"resource_class": "VCPU", **larger}, memory, cache], "resource_class")
    for _ in ("once without effect", "once more with none"):
        amended = shell(f"{INVENTORY} set {NODE} --amend --dry-run --resource LLC=20")
        assert in_order(amended, "resource_class") == [untold("LLC", total=20), *rows[1:]]
    shell(f"{INVENTORY} set {NODE} --amend --resource LLC=20")
    listed = in_order(shell(f"{INVENTORY} list {NODE}"), "resource_class")
    assert listed == [{**row, "used": 0} for row in rows]
    assert shell(f"{INVENTORY} delete {NODE} --resource-class MEMORY_MB") is None
    assert {row["resource_class"] for row in shell(f"{INVENTORY} list {NODE}")} == {"VCPU", "LLC"}
    usages = in_order(shell(f"resource provider usage show {NODE}"), "resource_class")
    assert usages == [{"resource_class": "LLC", "usage": 0}, {"resource_class": "VCPU", "usage": 0}]
    if shell.version >= (1, 4):
        node = provider(shell, NODE, "node0", 4, HOST)
        assert shell("resource provider list --resource VCPU=8") == [node]
        assert shell("resource provider list --resource VCPU=9") == []
    with pytest.raises(CommandFailed, match=f"No inventory of class DISK_GB for {NODE}"):
        shell(f"{INVENTORY} show {NODE} DISK_GB")


def walk_aggregates(shell: Shell) -> None:
    has_generations = shell.version >= (1, 19)
    generation = "--generation 4" if has_generations else ""
    assert shell(f"resource provider aggregate list {NODE}") == []
    assert shell(f"resource provider aggregate set {NODE} --aggregate {RACK} {generation}") == [
        {"uuid": RACK}
    ]
    assert shell(f"resource provider aggregate list {NODE}") == [{"uuid": RACK}]
    node = provider(shell, NODE, "node0", 4 + has_generations, HOST)
    if has_generations:
        with pytest.raises(CommandFailed, match="generation"):
            shell(f"resource provider aggregate set {NODE} --aggregate {RACK} {generation}")
    if shell.version >= (1, 3):
        assert shell(f"resource provider list --member-of {RACK}") == [node]
        assert shell(f"resource provider list --member-of {HOST}") == []
        row = {"resource_provider": NODE, **untold("VCPU", total=32)}
        assert shell(f"{INVENTORY} set {RACK} --aggregate --dry-run --resource VCPU=32") == [row]


def walk_classes(shell: Shell) -> None:
    additional = new_config(config_files=()).placement.additional_resource_classes
    standard = named(*os_resource_classes.STANDARDS, *additional)
    assert shell("resource class list") == standard
    assert shell("resource class create CUSTOM_FPGA") is None
    assert shell("resource class show CUSTOM_FPGA") == {"name": "CUSTOM_FPGA"}
    if shell.version >= (1, 7):
        for _ in ("new", "there already"):
            assert shell("resource class set CUSTOM_NIC") is None
        assert shell("resource class list") == [*standard, *named("CUSTOM_FPGA", "CUSTOM_NIC")]
        assert shell("resource class delete CUSTOM_NIC") is None
    with pytest.raises(CommandFailed, match="Conflicting resource class already exists: CUSTOM_FPGA"):
        shell("resource class create CUSTOM_FPGA")
    assert shell("resource class delete CUSTOM_FPGA") is None
    with pytest.raises(CommandFailed, match="No such resource class CUSTOM_FPGA"):
        shell("resource class show CUSTOM_FPGA")
    with pytest.raises(CommandFailed, match="Cannot delete standard resource class VCPU"):
        shell("resource class delete VCPU")
    assert shell("resource class list") == standard


def walk_traits(shell: Shell) -> None:
    assert shell("trait create CUSTOM_GOLD") is None
    assert shell("trait show CUSTOM_GOLD") == {"name": "CUSTOM_GOLD"}
    assert shell("trait list --name startswith:CUSTOM_") == named("CUSTOM_GOLD")
    assert shell("trait list --associated") == []
    assert {"name": "HW_CPU_X86_AVX2"} in shell("trait list")
    both = named("CUSTOM_GOLD", "HW_CPU_X86_AVX2")
    given = shell(f"resource provider trait set {NODE} --trait CUSTOM_GOLD --trait HW_CPU_X86_AVX2")
    assert in_order(given, "name") == both
    assert in_order(shell(f"resource provider trait list {NODE}"), "name") == both
    assert in_order(shell("trait list --associated"), "name") == both
    uuids = [row["uuid"] for row in shell("resource provider list")]
    assert uuids == [HOST, NODE]
    if shell.version >= (1, 18):
        (row,) = shell("resource provider list --required CUSTOM_GOLD")
        assert row["uuid"] == NODE
    if shell.version >= (1, 22):
        (row,) = shell("resource provider list --forbidden CUSTOM_GOLD")
        assert row["uuid"] == HOST
    if shell.version >= (1, 39):
        (row,) = shell("resource provider list --required CUSTOM_GOLD,HW_CPU_X86_AVX512F")
        assert row["uuid"] == NODE
    with pytest.raises(CommandFailed, match="in use by a resource provider"):
        shell("trait delete CUSTOM_GOLD")


def walk_allocations(shell: Shell) -> None:
    owner: dict[str, str] = {}
    options = ""
    if shell.version >= (1, 8):
        options = "--project-id project --user-id user"
    if shell.version >= (1, 12):
        owner = {"project_id": "project", "user_id": "user"}
    if shell.version >= (1, 38):
        options += " --consumer-type INSTANCE"
        owner["consumer_type"] = "INSTANCE"
    before = shell(f"resource provider show {NODE}")["generation"]
    held = {"VCPU": 2, "LLC": 3}
    claimed = [{"resource_provider": NODE, "generation": before + 1, "resources": held, **owner}]
    assert shell(f"{ALLOCATION} show {GUEST}") == []
    amounts = f"--allocation rp={NODE},VCPU=2 --allocation rp={NODE},LLC=3"
    assert shell(f"{ALLOCATION} set {GUEST} {amounts} {options}") == claimed
    assert shell(f"{ALLOCATION} show {GUEST}") == claimed
    with pytest.raises(CommandFailed, match="The requested amount would exceed the capacity"):
        shell(f"{ALLOCATION} set {OTHER} --allocation rp={NODE},LLC=18 {options}")
    shown = shell(f"resource provider show --allocations {NODE}")
    consumer = {"resources": held}
    if shell.version >= (1, 28):
        consumer["consumer_generation"] = 1
    expected = provider(shell, NODE, "node0", before + 1, HOST) | {"allocations": {GUEST: consumer}}
    assert shown == expected
    usages = in_order(shell(f"resource provider usage show {NODE}"), "resource_class")
    assert usages == [{"resource_class": "LLC", "usage": 3}, {"resource_class": "VCPU", "usage": 2}]
    assert shell(f"{INVENTORY} show {NODE} VCPU")["used"] == 2
    if shell.version >= (1, 9):
        walk_usages(shell)
    with pytest.raises(CommandFailed, match=f"Inventory for 'VCPU' on resource provider '{NODE}' in use"):
        shell(f"{INVENTORY} delete {NODE} --resource-class VCPU")
    with pytest.raises(CommandFailed, match="Resource provider has allocations"):
        shell(f"resource provider delete {NODE}")


def walk_usages(shell: Shell) -> None:
    for command in ("resource usage show project", "resource usage show project --user-id user"):
        usages = shell(command)
        if shell.version >= (1, 38):
            of_type = {"consumer_count": 1, "VCPU": 2, "LLC": 3}
            assert usages == [{"resource_class": "INSTANCE", "usage": of_type}]
        else:
            rows = [{"resource_class": "LLC", "usage": 3}, {"resource_class": "VCPU", "usage": 2}]
            assert in_order(usages, "resource_class") == rows
    assert shell("resource usage show project --user-id nobody") == []


def walk_candidates(shell: Shell) -> None:
    all_classes = shell.version >= (1, 27)  # before this version, only requested ones
    stock = "VCPU=2/30,LLC=3/20" if all_classes else "VCPU=2/30"
    (row,) = shell("allocation candidate list --resource VCPU=1")
    expected = {"#": 1, "allocation": "VCPU=1", "resource provider": NODE, "inventory used/capacity": stock}
    traits = row.pop("traits", None)
    assert row == expected
    if shell.version >= (1, 17):
        assert set(traits.split(",")) == {"CUSTOM_GOLD", "HW_CPU_X86_AVX2"}
        (row,) = shell("allocation candidate list --resource VCPU=1 --required CUSTOM_GOLD")
        assert row["resource provider"] == NODE
    assert shell("allocation candidate list --resource VCPU=1 --resource LLC=18") == []
    if shell.version >= (1, 16):
        assert len(shell("allocation candidate list --resource VCPU=1 --limit 1")) == 1
    if shell.version >= (1, 21):
        assert len(shell(f"allocation candidate list --resource VCPU=1 --member-of {RACK}")) == 1
        assert shell(f"allocation candidate list --resource VCPU=1 --member-of {HOST}") == []
    if shell.version >= (1, 22):
        assert shell("allocation candidate list --resource VCPU=1 --forbidden CUSTOM_GOLD") == []
    if shell.version >= (1, 25):
        groups = (
            "--group 1 --resource VCPU=1 --required CUSTOM_GOLD --group 2 --resource VCPU=2 --resource LLC=1"
        )
        (row,) = shell(f"allocation candidate list {groups} --group-policy none")
        assert row["resource provider"] == NODE
        assert set(row["allocation"].split(",")) == {"VCPU=3", "LLC=1"}
        assert shell(f"allocation candidate list {groups} --group-policy isolate") == []
    if shell.version >= (1, 39):
        any_trait = "--required CUSTOM_GOLD,HW_CPU_X86_AVX512F"
        assert len(shell(f"allocation candidate list --resource VCPU=1 {any_trait}")) == 1
    with pytest.raises(CommandFailed, match="No such resource class CUSTOM_X"):
        shell("allocation candidate list --resource CUSTOM_X=1")


def walk_explanations(shell: Shell) -> None:
    """Test the command of this project for explanations, beside the commands of osc-placement."""
    explain = "allocation candidate explain"
    (largest,) = shell(f"{explain} resources=LLC:30 --part max-amounts")
    assert largest == {"group": "", "resource_class": "LLC", "requested_amount": 30, "max_amount": 17}
    reasons = shell(f"{explain} resources=LLC:30 --part reasons")
    (reason,) = [row for row in reasons if row["condition"] == "capacity"]
    assert (reason["names"], reason["amount"], reason["hosts"]) == ("LLC", 30, 1)
    assert reason["nearest"].endswith(" (17)")
    (change,) = shell(f"{explain} ?resources=LLC:30 --part relaxations")
    assert (change["#"], change["names"], change["amount"], change["hosts"]) == (1, "LLC", 17, 1)
    steps = shell(f"{explain} resources=LLC:30 --query-version 1.10")
    assert [step["condition"] for step in steps][:2] == ["resource_class", "capacity"]
    with pytest.raises(CommandFailed, match="No such resource class CUSTOM_X"):
        shell(f"{explain} resources=CUSTOM_X:1")
    flavor = "--vcpus 30 --ram 0 --property hw:cpu_policy=shared"
    (largest,) = shell(f"{explain} {flavor} --part max-amounts")
    assert largest == {"group": "", "resource_class": "VCPU", "requested_amount": 30, "max_amount": 8}
    with pytest.raises(CommandFailed, match="hw_cpu_policy"):
        shell(f"{explain} {flavor} --image-property hw_cpu_policy=whatever")
    for nothing in ("", f"resources=LLC:1 {flavor}"):
        with pytest.raises(CommandFailed, match="Either <query>, or --flavor-file, or a flavor by --vcpus"):
            shell(f"{explain} {nothing}")


def walk_flavor_files(shell: Shell, folder: Path) -> None:
    """Test files of flavors, in the format of this service or of Nova's client."""
    taken = {"vcpus": 1, "ram": 0, "extra_specs": {"resources:VCPU": "4"}}
    shown = {
        "id": "1",
        "name": "small",
        "vcpus": 1,
        "ram": 0,
        "disk": 0,
        "swap": "",
        "OS-FLV-EXT-DATA:ephemeral": 0,
        "properties": taken["extra_specs"],
    }
    for name, content in (("taken", taken), ("shown", shown), ("none", [])):
        (folder / f"{name}.json").write_text(json.dumps(content))
    files = f"--flavor-file taken={folder}/taken.json --flavor-file shown={folder}/shown.json"
    assert [row["guests"] for row in shell(f"resource capacity show {files}")] == [7, 7]
    (largest,) = shell(f"allocation candidate explain --flavor-file {folder}/shown.json --part max-amounts")
    assert (largest["resource_class"], largest["requested_amount"], largest["max_amount"]) == ("VCPU", 4, 8)
    with pytest.raises(CommandFailed, match="a flavor as a JSON object of at most 1 MiB is expected"):
        shell(f"allocation candidate explain --flavor-file {folder}/none.json")
    with pytest.raises(CommandFailed, match="No such file"):
        shell(f"allocation candidate explain --flavor-file {folder}/nowhere.json")
    with pytest.raises(CommandFailed, match="Give a query, --flavor, --flavor-file, or"):
        shell("resource capacity show")


def walk_capacity(shell: Shell) -> None:
    """Test the command of this project for capacity. The node has 17 LLC and 28 VCPU free, and a max_unit of
    8 VCPU.
    """
    show = "resource capacity show --flavor cache=resources=LLC:3"
    host = shell(f"resource provider show {NODE}")["uuid"] if shell.version < (1, 14) else HOST
    name = "node0" if host == NODE else "host"
    (row,) = shell(show)
    shown = ("flavor", "guests", "candidate hosts", "capable hosts", "after host failure", "worst host")
    assert tuple(row[each] for each in shown) == ("cache", 5, 1, 1, 0, name)
    assert shell(f"{show} --proportion cache=2") == [row]
    with pytest.raises(CommandFailed, match="with the name of a flavor"):
        shell(f"{show} --proportion nothing=2")
    # the name is optional for a single flavor
    assert shell("resource capacity show resources=LLC:3 --proportion guest=1") == [
        {**row, "flavor": "guest"}
    ]
    (guest,) = shell("resource capacity show --vcpus 1 --ram 0 --property resources:VCPU=4")
    assert (guest["flavor"], guest["guests"]) == ("guest", 7)
    with pytest.raises(CommandFailed, match="Two flavors have the name 'guest'"):
        shell("resource capacity show resources=LLC:3 --flavor guest=resources=LLC:1")
    none = shell(f"{show} --excluded-host {host}")
    assert [(each["guests"], each["capable hosts"], each["worst host"]) for each in none] == [(0, 0, "")]
    (short,) = shell("resource capacity show --flavor full=resources=LLC:18,VCPU:2 --part shortages")
    assert short == {
        "flavor": "full",
        "resource classes": "LLC",
        "hosts": 1,
        "stranded": "28 VCPU",
        "stranded guests": 14,
        "most on": f"{name} (14)",
    }
    (moves,) = shell(f"{show} --part moves")
    assert moves == {
        "flavor": "cache",
        "#": "",
        "consumer": f"then it fits on {name}",
        "source": "",
        "destination": "",
    }
    (none,) = shell("resource capacity show --flavor full=resources=LLC:18 --part moves")
    assert none["consumer"] == "no moves make room"
    for each in shell(f"{show} --excluded-host {host} --part drain"):
        assert (each["host"], each["no place as"]) == (name, "no host has room for it")
    assert shell(f"{show} --excluded-host {host} --drain")[0]["guests"] == 0
    with pytest.raises(CommandFailed, match="this list is empty"):
        shell(f"{show} --drain")
    # the aggregate has the node, and belongs to a host only where the node is the root
    aggregates = shell(f"{show} --part aggregates --query-version 1.10")
    here = [{"flavor": "cache", "aggregate": RACK, "guests": 5}]
    assert aggregates == (here if host == NODE and shell.version >= (1, 1) else [])
    with pytest.raises(CommandFailed, match="<name>=<query> is expected"):
        shell("resource capacity show --flavor small")
    with pytest.raises(CommandFailed, match="VCPU requires amount >= 1"):
        shell("resource capacity show --flavor small=resources=VCPU:0")


def walk_attributes(shell: Shell) -> None:
    """Test the commands of this project that change attributes of a provider one by one."""
    attribute = "resource provider attribute"
    assert shell(f"{attribute} list {NODE}") == []
    set_both = shell(f"{attribute} set {NODE} --attribute price=0.5 --text rack=12")
    assert set_both == [{"name": "price", "value": 0.5}, {"name": "rack", "value": "12"}]
    assert shell(f"{attribute} set {NODE} --attribute price=2") == [
        {"name": "price", "value": 2},
        set_both[1],
    ]
    assert shell(f"{attribute} unset {NODE} --attribute price") == [set_both[1]]
    assert shell(f"{attribute} list {NODE}") == [set_both[1]]
    assert shell(f"{attribute} unset {NODE} --attribute rack --attribute nothing") == []
    with pytest.raises(CommandFailed, match="<name>=<value> is expected"):
        shell(f"{attribute} set {NODE} --attribute price")
    with pytest.raises(CommandFailed, match=f"No resource provider with uuid {RACK} found"):
        shell(f"{attribute} list {RACK}")


def walk_reservations(shell: Shell) -> None:
    """Test the commands of this project for reservations, and claims from reservations."""
    whose = "--project-id web --user-id ann"
    create = f"resource reservation create resources=LLC:3 {whose}"
    held = {"resources": {"LLC": 3}}
    made = shell(f"{create} --uuid {RESERVED} --for 3600")
    assert (made["uuid"], made["generation"], made["allocations"]) == (RESERVED, 1, {NODE: held})
    (row,) = shell("resource reservation list --project-id web")
    assert (row["uuid"], row["group"], row["resources"]) == (RESERVED, None, "LLC=3")
    assert shell("resource reservation list --group nobody") == []
    with pytest.raises(
        CommandFailed, match="Nothing to change: give --until, --for, --on-end, --keep, --movable"
    ):
        shell(f"resource reservation set {RESERVED}")
    later = shell(f"resource reservation set {RESERVED} --until 2126-01-01T00:00:00Z --on-end notify")
    assert later["on_end"] == "notify"
    assert (later["generation"], later["expires_at"]) == (2, "2126-01-01T00:00:00.000Z")
    assert shell(f"resource reservation show {RESERVED}") == later
    find = "resource availability list resources=LLC:3 --for 3600"
    (free,) = shell(find)
    assert (free["free_until"], free["resources"]) == (None, "LLC=3")
    both = shell(f"{find.replace('LLC:3', 'LLC:1')} --count 2 --limit 1")
    assert [(each["resources"], each["root_provider"]) for each in both] == [
        ("LLC=1", free["root_provider"])
    ] * 2
    with pytest.raises(CommandFailed, match="There is no candidate"):
        shell(f"{find} --count 2 --different-hosts")
    with pytest.raises(CommandFailed, match="--different-hosts needs several consumers"):
        shell(f"{find} --different-hosts")
    margins = "--lead 600 --cleaning 300"
    (free,) = shell(f"{find} {margins}")
    window = f"--from {free['starts_at']} --until {free['ends_at']} {margins}"
    booked = shell(f"{create} {window} --on-end evict")
    assert (booked["lead_time"], booked["cleaning_time"], booked["state"]) == (600, 300, "pending")
    assert booked["on_end"] == "evict"
    shell(f"resource reservation delete {booked['uuid']}")
    several = shell(f"{create.replace('LLC:3', 'LLC:1')} {window} --count 2 --and-query resources=LLC:2")
    assert (several["allocations"], several["movable"]) == ({NODE: {"resources": {"LLC": 4}}}, False)
    assert len(several["claims"]) == 3
    shell(f"resource reservation delete {several['uuid']}")
    with pytest.raises(CommandFailed, match="There is no candidate for the request"):
        shell("resource availability list resources=LLC:99 --for 3600 --limit 2")
    root = HOST if shell.version >= (1, 14) else NODE  # which is in no tree before
    walk_maintenances(shell, f"resource reservation create {whose} --maintenance-of {root}")
    claim = f"allocation claim create resources=LLC:1 {whose} --uuid {CLAIMANT} --reservation {RESERVED}"
    host = "host" if shell.version >= (1, 14) else "node0"  # which is in no tree before
    place = {"#": 0, "host": host, "resource_provider": NODE, "resources": "LLC=1"}
    (tried,) = shell(f"{claim} --dry-run --order pack=1 --expires-in 60")
    assert 0 < tried.pop("score") <= 1
    with pytest.raises(CommandFailed, match="on_end: evict needs ends_at"):
        shell(f"{claim} --on-end evict")
    assert tried == {**place, "consumer": None, "generation": None, "expires_at": None}
    claimed = {**place, "score": None, "consumer": CLAIMANT, "generation": 1, "expires_at": None}
    assert shell(claim) == [claimed]
    assert shell(f"resource reservation show {RESERVED}")["allocations"] == {NODE: {"resources": {"LLC": 2}}}
    with pytest.raises(CommandFailed, match="--generation replaces the allocations"):
        shell(claim)
    with pytest.raises(CommandFailed, match="There is no candidate for consumer"):
        shell(f"allocation claim create resources=LLC:99 {whose}")
    with pytest.raises(CommandFailed, match="VCPU"):
        shell(f"allocation claim create --vcpus 99 --ram 0 {whose}")
    with pytest.raises(CommandFailed, match="give its name with --group"):
        shell(f"{claim} --policy affinity")
    with pytest.raises(CommandFailed, match="a weight is a number"):
        shell(f"{claim} --order pack=much")
    assert shell(f"resource reservation delete {RESERVED}") is None
    assert shell("resource reservation list") == []
    with pytest.raises(CommandFailed, match=f"no reservation {RESERVED}"):
        shell(f"resource reservation show {RESERVED}")
    walk_claims_that_expire(shell, f"allocation claim create resources=LLC:2 {whose} --uuid {CLAIMANT}")
    assert shell(f"{ALLOCATION} delete {CLAIMANT}") is None
    lent = f"allocation claim create resources=LLC:2 {whose} --uuid {CLAIMANT} --preemptible 3600"
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    (row,) = shell(f"{lent} --ends-at {tomorrow:%FT%TZ}")
    assert (row["resources"], row["expires_at"]) == ("LLC=2", f"{tomorrow:%FT%T}.000Z")
    walk_time_lists(shell, root, tomorrow)
    later = f"{tomorrow + timedelta(hours=1):%FT%T}.000Z"
    changed = shell(f"allocation claim set {CLAIMANT} --ends-at {later} --on-end notify")
    shown = shell(f"allocation claim show {CLAIMANT}")
    assert (shown["ends_at"], shown["reservation"]) == (later, None)
    assert shown["allocations"] == {NODE: {"resources": {"LLC": 2}}}
    assert changed == {"consumer": CLAIMANT, "generation": 2, "ends_at": later, "on_end": "notify"}
    with pytest.raises(CommandFailed, match="generation conflict"):
        shell(f"allocation claim set {CLAIMANT} --ends-at {later} --generation 1")
    with pytest.raises(CommandFailed, match="give --ends-at or --on-end"):
        shell(f"allocation claim set {CLAIMANT}")
    assert shell(f"{ALLOCATION} delete {CLAIMANT}") is None


def walk_time_lists(shell: Shell, root: str, end: datetime) -> None:
    """Test the lists of a preemptible claim that ends at a time, of its events, and of limits."""
    (row,) = shell(f"allocation claim list --root {root} --preemptible")
    assert (row["consumer"], row["ends_at"], row["on_end"]) == (CLAIMANT, f"{end:%FT%T}.000Z", "evict")
    assert [each["consumer"] for each in shell("allocation claim list")] == [CLAIMANT]
    since, until = (f"{end + timedelta(seconds=seconds):%FT%TZ}" for seconds in (-30, 60))
    (event,) = shell(f"resource time event list --since {since} --until {until} --notice 60 --project-id web")
    assert (event["kind"], event["consumer"]) == ("claim.ended", CLAIMANT)
    limits = shell("resource reservation limit list --project-id web")
    assert ("reservations", None, 0) in [(each["limit"], each["maximum"], each["used"]) for each in limits]
    with pytest.raises(CommandFailed, match="The project web has no calendar address"):
        shell("resource reservation calendar show --project-id web")
    made = shell("resource reservation calendar create --project-id web")
    assert requests.get(made.pop("url"), timeout=60).text.startswith("BEGIN:VCALENDAR")
    assert shell("resource reservation calendar show --project-id web") == made
    assert shell("resource reservation calendar delete --project-id web") is None


def walk_maintenances(shell: Shell, create: str) -> None:
    """Test the options of reservations that take a whole host away."""
    tomorrow, later = (datetime.now(UTC) + timedelta(days=days) for days in (1, 2))
    times = f"--from {tomorrow:%FT%TZ} --until {later:%FT%TZ}"
    with pytest.raises(CommandFailed, match="takes a whole host, without query"):
        shell(f"{create} resources=LLC:1 {times}")
    with pytest.raises(CommandFailed, match="takes a whole host, without flavor"):
        shell(f"{create} --vcpus 1 --ram 0 {times}")
    with pytest.raises(CommandFailed, match="takes a whole host, without allowed_hosts"):
        shell(f"{create} --allowed-host {HOST} {times}")
    with pytest.raises(CommandFailed, match="needs starts_at"):
        shell(f"{create} --for 60")
    made = shell(f"{create} {times}")
    shown = shell(f"resource reservation show {made['uuid']}")
    assert (shown["state"], bool(shown["degraded"]), "guests" in shown) == ("pending", True, True)
    assert shell(f"resource reservation delete {made['uuid']}") is None


def walk_claims_that_expire(shell: Shell, claim: str) -> None:
    """Test claims that expire unless a client confirms them, and alternates of a claim."""
    (claimed,) = shell(f"{claim} --generation 1 --expires-in 3600")
    assert (claimed["generation"], claimed["resources"]) == (2, "LLC=2")
    assert claimed["expires_at"].endswith("Z")
    longer = shell(f"allocation claim confirm {CLAIMANT} --expires-in 7200")
    assert longer["expires_at"] > claimed["expires_at"]
    with pytest.raises(CommandFailed, match="expected 3 but got 2"):
        shell(f"allocation claim confirm {CLAIMANT} --generation 2")
    confirmed = {"consumer": CLAIMANT, "generation": 4, "expires_at": None}
    assert shell(f"allocation claim confirm {CLAIMANT}") == confirmed
    for consumer in (CLAIMANT, OTHER):
        with pytest.raises(CommandFailed, match=f"Consumer {consumer} has no claim that will expire"):
            shell(f"allocation claim confirm {consumer}")
    (row,) = shell(f"{claim} --generation 4 --alternates 1 --dry-run")
    assert (row["#"], row["resources"]) == (0, "LLC=2")
    with pytest.raises(CommandFailed, match="topology splits PCPU and MEMORY_MB"):
        shell(f"{claim} --generation 4 --topology best-effort")


def walk_back(shell: Shell) -> None:
    """Remove all objects that the tests have created."""
    if shell.version >= (1, 12):
        (row,) = shell(f"{ALLOCATION} unset {GUEST} --resource-class LLC")
        assert row["resources"] == {"VCPU": 2}
        row["generation"] += 1  # for data that is written again unchanged
        assert shell(f"{ALLOCATION} unset {GUEST} --provider {HOST}") == [row]
    assert shell(f"{ALLOCATION} delete {GUEST}") is None
    assert shell(f"{ALLOCATION} show {GUEST}") == []
    with pytest.raises(CommandFailed, match=f"No allocations for consumer '{GUEST}'"):
        shell(f"{ALLOCATION} delete {GUEST}")
    if shell.version >= (1, 6):
        assert shell(f"resource provider trait delete {NODE}") is None
        assert shell(f"resource provider trait list {NODE}") == []
        assert shell("trait delete CUSTOM_GOLD") is None
        assert shell("trait list --name startswith:CUSTOM_") == []
    if shell.version >= (1, 5):
        assert shell(f"{INVENTORY} delete {NODE}") is None
        assert shell(f"{INVENTORY} list {NODE}") == []
    if shell.version >= (1, 14):
        with pytest.raises(CommandFailed, match="It has child resource providers"):
            shell(f"resource provider delete {HOST}")
    assert shell(f"resource provider delete {NODE}") is None
    assert shell(f"resource provider delete {HOST}") is None
    assert shell("resource provider list") == []
