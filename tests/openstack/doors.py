"""Doors: everything by which a guest of Nova comes, stays, moves or returns, and its class after each."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.keystone import Caller
from tests.openstack.agent import CHECKOUT
from tests.openstack.client import ADMIN
from tests.openstack.cloud import Cloud, wait_for_cloud
from tests.openstack.identity import LAB
from tests.openstack.process import CloudFailed, run
from tests.openstack.servers import MIB, Servers
from tests.openstack.two_hosts import HOSTS, HostAgent, TwoHosts

A, B = HOSTS
GOLD: Final = {"hw:cpu_policy": "dedicated", "compute_agent:qos_class": "LSR"}
"""Extra specs of the highest class."""
AGENT_PROGRAM: Final = "tests.openstack.agent_with_memory"
_BEFORE_CLASSES: Final = "6ce34a4855bfa7fe41ebd886a7a0f56ba80e89bb"
"""The last commit with an agent that reads no class from flavors, rules or settings by hand of domains."""
OLDER_NAME: Final = f"[compute]\nresource_provider_name = {A}\n"
"""The older release does not ask libvirtd for the name of its host."""
RULES: Final = """\
[guest_rule:lab]
match_project = lab
qos_class = BE
priority = -5
"""


@dataclass(frozen=True)
class DoorGuest:
    """A guest, and the source of its class.

    :param by: what says it, in words.
    :param expected: class and source, as the table has them.
    :param larger: flavor that it is resized to, of the same class.
    """

    flavor: str
    larger: str
    by: str
    expected: str
    caller: Caller = ADMIN


GUESTS: Final[Mapping[str, DoorGuest]] = {
    "gold": DoorGuest("gold", "gold.large", "flavor", "LSR (flavor)"),
    "silver": DoorGuest("silver", "silver.large", "flavor", "LS (flavor)"),
    "batch": DoorGuest("batch", "batch.large", "flavor", "BE (flavor)"),
    "lab": DoorGuest("plain", "plain.large", "rule of its project", "BE (rule lab)", LAB),
    "hand": DoorGuest("plain", "plain.large", "`guest set`", "BE (by hand)"),
}
UNSET: Final = "LS (default)"
"""The class of a guest if its agent does not know the settings by hand."""


class DoorClosedError(Exception):
    """A door that cannot be reached on this machine; the message is the reason."""


@dataclass(frozen=True)
class DoorRow:
    """The class of each guest after a door, with the host that it is on; or why the door was not reached."""

    door: str
    classes: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    closed: str = ""


def door_table(rows: Sequence[DoorRow]) -> str:
    """The rows in markdown, a column for each guest."""
    lines = [
        f"| after | host | {' | '.join(GUESTS)} |",
        f"| --- | --- |{' --- |' * len(GUESTS)}",
        f"| *class by* | |{''.join(f' *{guest.by}* |' for guest in GUESTS.values())}",
    ]
    for row in rows:
        hosts = sorted({host.removeprefix("host-") for host in row.hosts.values()})
        if row.closed:
            lines.append(f"| {row.door} | - | not reached: {row.closed} |{' |' * (len(GUESTS) - 1)}")
            continue
        cells = [row.classes.get(name, "not touched") for name in GUESTS]
        lines.append(f"| {row.door} | {', '.join(hosts)} | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass
class DoorStory:
    """A cloud with two hosts, an agent on each, and the guests."""

    there: TwoHosts
    agents: Mapping[str, HostAgent]
    hosts: dict[str, str] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    rows: list[DoorRow] = field(default_factory=list)

    def make_flavors(self) -> None:
        """Flavors of three classes and one without, each in two sizes."""
        specs = {
            "gold": GOLD,
            "silver": {"compute_agent:qos_class": "LS"},
            "batch": {"compute_agent:qos_class": "BE", "compute_agent:priority": "-5"},
            "plain": {},
        }
        for name, own in specs.items():
            self.servers.flavor(name, disk=0, specs=own)
            self.servers.flavor(f"{name}.large", memory=2 * MIB, disk=0, specs=own)

    def act(self, action: str, body: Any, until: str, names: Sequence[str] = tuple(GUESTS)) -> None:
        """Do the same to several guests at once."""
        for name in names:
            self.servers.start_to(name, action, body)
        for name in names:
            self.servers.wait(name, until)

    def set_by_hand(self) -> None:
        """Set the class of a guest by hand, where it is."""
        agent, uuid = self.agents[self.hosts["hand"]], self.servers.uuid("hand")
        wait_for_cloud(lambda: agent.guest(uuid) is not None, "the agent knows the guest")
        agent.ask("guest.set", guest=uuid, qos_class="BE")
        self.expected["hand"] = GUESTS["hand"].expected

    def move_to(self, host: str) -> None:
        """Note that all guests are on this host now."""
        for name in self.hosts:
            assert self.servers.host(name) == host, name
            self.hosts[name] = host

    @property
    def cloud(self) -> Cloud:
        return self.there.cloud

    @property
    def servers(self) -> Servers:
        return self.there.servers

    def seen(self, name: str) -> str:
        """The class of a guest with its source, as the agent of its host shows it."""
        shown = self.agents[self.hosts[name]].guest(self.servers.uuid(name))
        # The agent may still show the run of before, which had the same class.
        if shown is None or shown["pid"] != self.there.process(self.hosts[name], self.servers.uuid(name)):
            return "unknown"
        source = shown.get("setting_sources", {}).get("qos_class")
        problems = "; ".join(shown.get("setting_problems", ()))
        return shown["qos_class"] + (f" ({source})" if source else "") + (f": {problems}" if problems else "")

    def note(self, door: str, names: Sequence[str] = tuple(GUESTS)) -> DoorRow:
        """Wait until each guest has the class that it should have, on its host alone."""
        expected = {name: self.expected[name] for name in names}
        elsewhere = {name: next(host for host in HOSTS if host != self.hosts[name]) for name in names}

        def seen() -> dict[str, str]:
            return {name: self.seen(name) for name in names}

        def is_right() -> bool:
            self.cloud.check()
            return seen() == expected and not any(
                self.agents[host].guest(self.servers.uuid(name)) for name, host in elsewhere.items()
            )

        try:
            wait_for_cloud(is_right, f"classes after {door!r} are right")
        except AssertionError as error:
            raise AssertionError(f"after {door!r} the classes are {seen()}, not {expected}") from error
        self.rows.append(DoorRow(door, seen(), {name: self.hosts[name] for name in names}))
        return self.rows[-1]


Door = tuple[str, Callable[[DoorStory], None]]


def walk(story: DoorStory, only: str = "") -> Iterator[DoorRow]:
    """Go through every door, one after the other.

    :param only: names of those to go through, after the boot, separated by semicolons; all by default.
    :raises ValueError: there is no door of such a name.
    """
    chosen = {name.strip() for name in only.split(";") if name.strip()}
    if unknown := chosen - {name for name, _ in DOORS}:
        raise ValueError(f"no doors: {sorted(unknown)}")
    for name, go in DOORS:
        if chosen and name not in chosen and go is not _boot:
            continue
        try:
            go(story)
        except DoorClosedError as error:
            story.rows.append(DoorRow(name, closed=str(error)))
            yield story.rows[-1]
            continue
        yield story.note(name)
        if story.expected["hand"] == UNSET:
            story.set_by_hand()
            yield story.note("`guest set` there", ["hand"])


def _boot(story: DoorStory) -> None:
    story.make_flavors()
    for name, guest in GUESTS.items():
        story.servers.start_to_boot(name, guest.flavor, A, guest.caller)
        story.hosts[name], story.expected[name] = A, guest.expected
    story.expected["hand"] = UNSET
    for name in GUESTS:
        story.servers.wait(name, "ACTIVE")


def _reboot(story: DoorStory) -> None:
    story.act("reboot", {"type": "HARD"}, "ACTIVE")


def _stop_and_start(story: DoorStory) -> None:
    story.act("os-stop", None, "SHUTOFF")
    story.act("os-start", None, "ACTIVE")


def _rebuild(story: DoorStory) -> None:
    for name in GUESTS:
        story.servers.start_to_rebuild(name)
    for name in GUESTS:
        story.servers.wait(name, "ACTIVE")


def _resize_here(story: DoorStory) -> None:
    # Its host has no second dedicated CPU, which it would need until the resize is confirmed.
    names = [name for name in GUESTS if name != "gold"]
    story.servers.disable(B, True)
    for name in names:
        story.servers.start_to_resize(name, GUESTS[name].larger)
    for name in names:
        story.servers.wait(name, "VERIFY_RESIZE")
    story.servers.confirm(*names)
    story.servers.disable(B, False)


def _resize_there(story: DoorStory) -> None:
    story.servers.resize("gold", GUESTS["gold"].larger)
    story.servers.confirm("gold")
    story.hosts["gold"] = B
    assert story.servers.host("gold") == B


def _revert(story: DoorStory) -> None:
    story.servers.act("gold", "migrate", {"host": A}, until="VERIFY_RESIZE")
    story.servers.act("gold", "revertResize", until="ACTIVE")
    assert story.servers.host("gold") == B


def _migrate_back(story: DoorStory) -> None:
    story.servers.act("gold", "migrate", {"host": A}, until="VERIFY_RESIZE")
    story.servers.confirm("gold")
    story.move_to(A)


def _resize_silver(story: DoorStory, flavor: str) -> None:
    story.servers.disable(B, True)
    story.servers.resize("silver", flavor)
    story.servers.confirm("silver")
    story.servers.disable(B, False)
    story.expected["silver"] = GUESTS[flavor].expected


def _shelve(story: DoorStory) -> None:
    _shelve_all(story)
    _unshelve_all(story, None)


def _offload(story: DoorStory) -> None:
    _shelve_all(story)
    story.act("shelveOffload", None, "SHELVED_OFFLOADED")
    _unshelve_all(story, {"host": A})


# One guest after the other: Glance's database in a file takes or loses one image at a time.
def _shelve_all(story: DoorStory) -> None:
    for name in GUESTS:
        story.servers.act(name, "shelve", until="SHELVED")


def _unshelve_all(story: DoorStory, body: Any) -> None:
    for name in GUESTS:
        story.servers.act(name, "unshelve", body, until="ACTIVE")


def _kill_agent(story: DoorStory) -> None:
    program = story.agents[A].program
    program.kill()
    program.start()


def _downgrade(story: DoorStory) -> None:
    agent = story.agents[A]
    library = older_release(agent.folder / "older")
    agent.program.stop()
    agent.run_by("compute_agent.cmd.main", library)
    agent.program.start()
    # The earlier release knows neither flavors nor rules, and ignores what was set by hand in the next
    # release.
    story.expected = dict.fromkeys(GUESTS, "LS")


def _upgrade(story: DoorStory) -> None:
    agent = story.agents[A]
    agent.program.stop()
    agent.run_by(AGENT_PROGRAM, CHECKOUT)
    agent.program.start()
    story.expected = {name: guest.expected for name, guest in GUESTS.items()}


def older_release(folder: Path) -> Path:
    """The folder with the modules of the agent as of before classification, from the history of the checkout.

    :raises DoorClosedError: there is no such history.
    """
    source, library = folder / "source", folder / "library"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    try:
        run(["git", "-C", CHECKOUT, "archive", "--output", archive, _BEFORE_CLASSES], folder)
    except (CloudFailed, OSError) as error:
        raise DoorClosedError("the checkout has no history of an older release") from error
    run(["tar", "-xf", archive, "-C", source], folder)
    options = ["--quiet", "--no-deps", "--no-compile", "--target", library]
    # the sources of that time derive their version from git
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION": "0.0"}
    run([sys.executable, "-m", "pip", "install", *options, source], folder, version)
    return library


def _restart_nova_compute(story: DoorStory) -> None:
    story.cloud.hosts[A].stop()
    story.cloud.start(A)


def _migrate(story: DoorStory) -> None:
    story.act("migrate", {"host": B}, "VERIFY_RESIZE")
    story.servers.confirm(*GUESTS)
    story.move_to(B)
    story.expected["hand"] = UNSET


def _live_migrate(story: DoorStory) -> None:
    for name in GUESTS:
        story.servers.start_to(name, "os-migrateLive", {"host": A, "block_migration": "auto"})
    for name in GUESTS:
        _wait_for_host(story, name, A)
        story.servers.wait(name, "ACTIVE")
    story.move_to(A)  # where it was set by hand before, and the agent has not forgotten that


def _wait_for_host(story: DoorStory, name: str, host: str) -> None:
    wait_for_cloud(lambda: story.servers.host(name) == host, f"{name} is on {host}")


def _evacuate(story: DoorStory) -> None:
    story.cloud.hosts[A].stop()
    story.agents[A].program.kill()
    story.there.end_guests(A)
    story.servers.force_down(A, True)
    for name in GUESTS:
        story.servers.start_to(name, "evacuate", {"host": B})
    for name in GUESTS:
        _wait_for_host(story, name, B)
        story.servers.wait(name, "SHUTOFF")
    story.act("os-start", None, "ACTIVE")
    story.move_to(B)  # on this host, the guest had settings by hand before


def _host_comes_back(story: DoorStory) -> None:
    story.agents[A].program.start()
    story.cloud.start(A)
    story.servers.force_down(A, False)


def _lose_state(story: DoorStory) -> None:
    agent = story.agents[B]
    agent.program.stop()
    shutil.rmtree(agent.folder / "state")
    agent.program.start()
    story.expected["hand"] = UNSET


# Live migration comes after many starts on the first host: its domains have other numbers, and so other
# cgroups, than those of the second host.
DOORS: Final[Sequence[Door]] = (
    ("boot", _boot),
    ("hard reboot", _reboot),
    ("stop and start", _stop_and_start),
    ("rebuild", _rebuild),
    ("resize on the host", _resize_here),
    ("resize to the other host", _resize_there),
    ("cold migration, reverted", _revert),
    ("cold migration back", _migrate_back),
    ("resize of `silver` to a flavor of another class", partial(_resize_silver, flavor="batch")),
    ("resize back", partial(_resize_silver, flavor="silver")),
    ("shelve and unshelve", _shelve),
    ("shelve, offload and unshelve", _offload),
    ("restart of nova-compute", _restart_nova_compute),
    ("kill of the agent", _kill_agent),
    ("downgrade of the agent", _downgrade),
    ("upgrade of the agent", _upgrade),
    ("cold migration", _migrate),
    ("live migration back", _live_migrate),
    ("evacuation", _evacuate),
    ("return of the dead host", _host_comes_back),
    ("lost state of the agent", _lose_state),
)
