"""The steps of guests with PCI cards, in a cloud of two hosts that report their cards to Placement.

Each destination of a move has as many free cards as the guest needs, because `resize_claim` in the source of
Nova 34 does not read which cards the scheduler chose.

Nova's periodic report frees the cards of a guest in Nova's database if it runs while the guest is moved back.
So this report is off. `nova-compute` reports when it starts, and when it claims or releases resources. If a
guest has moved and is deleted, its cards stay in use in Nova's database until `nova-compute` starts again.
"""

from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from tests.openstack.agent import CHECKOUT
from tests.openstack.cloud import FAKE, Cloud, cloud, wait_for_cloud
from tests.openstack.config import CloudHost
from tests.openstack.ground import Ground
from tests.openstack.pci_cards import ACCELERATOR, CARD, CARDS, FUNCTION, NOVA
from tests.openstack.record import Record
from tests.openstack.scenario import Act, Scene, step
from tests.openstack.servers import Servers

_FIRST, _SECOND = FAKE
_SECONDS: Final = 120.0
_MOVE: Final = "move of "
_TRACKED: Final = (
    "SELECT node.host, COALESCE(device.parent_addr, device.address), device.instance_uuid"
    " FROM pci_devices device JOIN compute_nodes node ON node.id = device.compute_node_id"
    " WHERE device.deleted = 0 AND device.instance_uuid IS NOT NULL"
)
STEPS: Final[list[tuple[str, Act]]] = []
"""Steps by name, in their order."""
_step = partial(step, steps=STEPS)


@contextmanager
def cloud_with_cards(ground: Ground, kind: str) -> Iterator[Cloud]:
    """A cloud of the two hosts.

    :param kind: of its Placement, one of :data:`tests.openstack.placement.KINDS`.
    """
    python = str(ground.programs / "python")
    runner = ("env", f"PYTHONPATH={CHECKOUT}", python, "-m", "tests.openstack.nova_with_cards")
    hosts = [CloudHost(name, runner=runner) for name in FAKE]
    with cloud(ground, kind, hosts=hosts, options=NOVA) as running:
        yield running


def play_cards(cloud: Cloud) -> Iterator[tuple[str, Record]]:
    """Run the steps; return the content after each, when it no longer changes."""
    scene = Scene(cloud, Servers(cloud))
    for name, act in STEPS:
        act(scene)
        cloud.check()
        yield name, _settled(scene)


def disagreements(known: Record) -> list[str]:
    """Return the cards for which Placement and the tracker of `nova-compute` have other guests."""
    return [
        f"{name}: {each['guests']} in Placement, {each['tracked']} in Nova"
        for name, each in known.providers.items()
        if each["parent"] and each["guests"] != each["tracked"]
    ]


def number_cards(known: Record, tracked: dict[str, list[str]]) -> Record:
    """Return the record with guests and numbers instead of the addresses in the names of cards.

    Placement may offer any of the equal cards of a host. So cards have the names of their guests, and the
    addresses are data of the host.

    :param tracked: guests of each card, by the name of its provider.
    """
    cards = {name: each for name, each in known.providers.items() if each["parent"]}
    guests = _read_guests(known)
    kinds: dict[str, list[str]] = {}
    for name, each in sorted(cards.items(), key=lambda card: (list(card[1]["inventories"]), card[0])):
        kinds.setdefault(f"{each['parent']} card of {_words(guests.get(name, []))}", []).append(name)
    names = {name: name for name in known.providers}
    for kind, equal in kinds.items():
        names |= {name: f"{kind} ({number})" for number, name in enumerate(equal, 1)}
    providers: dict[str, Any] = {}
    for name, each in known.providers.items():
        if name in cards:
            own = {"guests": guests.get(name, []), "tracked": sorted(tracked.get(name, []))}
        else:
            own = {"cards": sorted(card for card, values in cards.items() if values["parent"] == name)}
        providers[names[name]] = {**each, **own}
    allocations = {
        consumer: {**claim, "allocations": {names[name]: each for name, each in claim["allocations"].items()}}
        for consumer, claim in known.allocations.items()
    }
    return Record(dict(sorted(providers.items())), allocations, known.custom)


def _words(guests: list[str]) -> str:
    return " and ".join(sorted(set(guests))) or "nobody"


def _read_guests(known: Record) -> dict[str, list[str]]:
    """Return the guests of each provider by allocations, once for each device, also during a move."""
    guests: dict[str, list[str]] = {}
    for consumer, claim in sorted(known.allocations.items()):
        for provider, amounts in claim["allocations"].items():
            if known.providers[provider]["parent"]:
                guests.setdefault(provider, []).extend([consumer.removeprefix(_MOVE)] * sum(amounts.values()))
    return {provider: sorted(found) for provider, found in guests.items()}


def _read_tracker(scene: Scene) -> dict[str, list[str]]:
    """Return the guests of each card in Nova's database, by the name of the card's provider."""
    parser = RawConfigParser()
    parser.read(scene.cloud.folder / "nova-databases.conf")
    url = parser["database"]["connection"].replace("$$", "$")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    found: dict[str, list[str]] = {}
    with engine.connect() as connection:
        for host, address, guest in connection.exec_driver_sql(_TRACKED):
            found.setdefault(f"{host}_{address}", []).append(scene.servers.names[guest])
    return found


def _settled(scene: Scene) -> Record:
    """Wait until nothing changes, and Placement agrees with the trackers of both hosts.

    If they do not agree in time, the record says so, and the steps go on, so that the table shows all.
    """
    last: list[Record] = []

    def is_settled() -> bool:
        last.append(number_cards(scene.record(), _read_tracker(scene)))
        return scene.servers.is_settled() and last[-2:-1] == last[-1:] and not disagreements(last[-1])

    try:
        wait_for_cloud(is_settled, "Placement agrees with Nova", seconds=_SECONDS)
    except AssertionError:
        print("\n".join(disagreements(last[-1])))
    return last[-1]


def _let_go(scene: Scene) -> None:
    """Wait until a guest has no allocation on its other host."""
    wait_for_cloud(lambda: not scene.is_kept_elsewhere(), "nothing is kept at the other host")


def _boot(scene: Scene, name: str, flavor: str, host: str = "", until: str = "ACTIVE") -> None:
    scene.servers.boot(name, flavor, host, until=until)


@_step("hosts report")
def _(scene: Scene) -> None:
    wanted = sorted([*[CARD] * CARDS, ACCELERATOR, FUNCTION] * len(FAKE))

    def have_reported() -> bool:
        children = [each for each in scene.record().providers.values() if each["parent"]]
        return sorted(name for each in children for name in each["inventories"]) == wanted

    wait_for_cloud(have_reported, "every card is known")
    for name, alias in (
        ("no card", ""),
        ("a card", "card:1"),
        ("two cards", "card:2"),
        ("too many cards", f"card:{CARDS + 1}"),
        ("an accelerator", "accelerator:1"),
        ("a function", "function:1"),
        ("two functions", "function:2"),
        ("a card and a function", "card:1,function:1"),
    ):
        scene.servers.flavor(name, specs={"pci_passthrough:alias": alias} if alias else {})


@_step("boot a guest with a card")
def _(scene: Scene) -> None:
    _boot(scene, "one", "a card", _FIRST)


@_step("boot one with two cards")
def _(scene: Scene) -> None:
    _boot(scene, "pair", "two cards", _FIRST)


@_step("ask for a card where none is free")
def _(scene: Scene) -> None:
    _boot(scene, "one-too-many", "a card", _FIRST, "ERROR")


@_step("ask for more cards than a host has")
def _(scene: Scene) -> None:
    _boot(scene, "too-many", "too many cards", until="ERROR")


@_step("boot one with a card of a trait")
def _(scene: Scene) -> None:
    _boot(scene, "fast", "an accelerator", _FIRST)


@_step("boot one with two functions of a card")
def _(scene: Scene) -> None:
    _boot(scene, "functions", "two functions", _FIRST)


@_step("ask for another function of it")
def _(scene: Scene) -> None:
    _boot(scene, "no-function", "a function", _FIRST, "ERROR")


@_step("delete the guest with functions")
def _(scene: Scene) -> None:
    scene.servers.delete("functions")


@_step("boot two cards at the other host")
def _(scene: Scene) -> None:
    _boot(scene, "others", "two cards", _SECOND)


@_step("migrate the guest with a card")
def _(scene: Scene) -> None:
    scene.servers.act("one", "migrate", {"host": _SECOND}, until="VERIFY_RESIZE")


@_step("confirm")
def _(scene: Scene) -> None:
    scene.servers.confirm("one")
    _let_go(scene)


@_step("migrate it back")
def _(scene: Scene) -> None:
    scene.servers.act("one", "migrate", {"host": _FIRST}, until="VERIFY_RESIZE")


@_step("revert")
def _(scene: Scene) -> None:
    scene.servers.act("one", "revertResize", until="ACTIVE")
    _let_go(scene)


@_step("migrate two cards to a host that is full")
def _(scene: Scene) -> None:
    scene.servers.start_to("pair", "migrate", {"host": _SECOND})
    scene.servers.wait("pair", "ACTIVE")


@_step("resize to two cards, of which one is free")
def _(scene: Scene) -> None:
    scene.servers.start_to_resize("one", "two cards")
    scene.servers.wait("one", "ACTIVE")


@_step("delete the guest with two cards")
def _(scene: Scene) -> None:
    scene.servers.delete("pair")


@_step("boot a card and a function")
def _(scene: Scene) -> None:
    _boot(scene, "both", "a card and a function", _FIRST)


@_step("resize from one card to two")
def _(scene: Scene) -> None:
    scene.servers.resize("one", "two cards")


@_step("revert that")
def _(scene: Scene) -> None:
    scene.servers.act("one", "revertResize", until="ACTIVE")
    _let_go(scene)


@_step("resize it again")
def _(scene: Scene) -> None:
    scene.servers.resize("one", "two cards")


@_step("confirm that")
def _(scene: Scene) -> None:
    scene.servers.confirm("one")
    _let_go(scene)


@_step("boot a card wherever one is free")
def _(scene: Scene) -> None:
    _boot(scene, "anywhere", "a card")


@_step("ask for a card when all hosts are full")
def _(scene: Scene) -> None:
    _boot(scene, "nowhere", "a card", until="ERROR")


@_step("migrate the accelerator, and back")
def _(scene: Scene) -> None:
    for host in (_SECOND, _FIRST):
        scene.servers.act("fast", "migrate", {"host": host}, until="VERIFY_RESIZE")
        scene.servers.confirm("fast")
        _let_go(scene)


@_step("resize to no card")
def _(scene: Scene) -> None:
    scene.servers.resize("one", "no card")
    scene.servers.confirm("one")
    _let_go(scene)


@_step("evacuate the accelerator from a host that died")
def _(scene: Scene) -> None:
    scene.cloud.hosts[_FIRST].stop()
    scene.servers.force_down(_FIRST, True)
    scene.servers.start_to("fast", "evacuate", {"host": _SECOND})
    wait_for_cloud(lambda: scene.servers.host("fast") == _SECOND, "it is there")
    scene.servers.wait("fast", "SHUTOFF")


@_step("the host comes back")
def _(scene: Scene) -> None:
    scene.cloud.start(_FIRST)
    scene.servers.force_down(_FIRST, False)
    wait_for_cloud(lambda: len(_hosts_of(scene, "fast")) == 1, "nothing is kept there")


@_step("lose the cards of an allocation, which nova-compute reports again when it starts")
def _(scene: Scene) -> None:
    claim, hosts = scene.claim("others"), _hosts_of(scene, "others")
    claim["allocations"] = {uuid: {"resources": claim["allocations"][uuid]["resources"]} for uuid in hosts}
    del claim["consumer_type"]  # Nova writes allocations without a type, too
    path = f"/allocations/{scene.servers.uuid('others')}"
    scene.cloud.placement.send("PUT", path, claim, headers={"OpenStack-API-Version": "placement 1.36"})
    scene.cloud.hosts[_SECOND].stop()
    scene.cloud.start(_SECOND)


@_step("delete all guests")
def _(scene: Scene) -> None:
    scene.servers.delete_all()
    scene.cloud.manage("placement", "audit", good=(0,))


def _hosts_of(scene: Scene, name: str) -> list[str]:
    """Return the uuids of the hosts on which a guest has allocations."""
    listed = scene.cloud.placement.get("/resource_providers")["resource_providers"]
    roots = {each["uuid"] for each in listed if each["parent_provider_uuid"] is None}
    return [uuid for uuid in scene.claim(name)["allocations"] if uuid in roots]
