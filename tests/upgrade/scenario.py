"""An upgrade of a small cloud under load, and the way back.

Three services share a database. Two hosts have agents with guests. Clients claim, change and release all the
time, each through a proxy. The schema is migrated. Machines move to the new release one by one, and back to
the old one. Guests are compared after each move, settings after each move of an agent.
"""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import requests
from packaging.version import Version

from tests import databases
from tests.databases.galera import Galera
from tests.placement.failover.judge import FailoverLoad
from tests.placement.serving import HEADERS, RunningService
from tests.placement_extras.console import fake_identity
from tests.upgrade.front import Front
from tests.upgrade.machines import (
    TOKEN,
    ConsoleVisitor,
    GuestFacts,
    HostMachine,
    ServiceMachine,
    ServiceStop,
    describe_moment,
)
from tests.upgrade.outcome import UpgradeOutcome
from tests.upgrade.releases import InstalledRelease
from tests.waits import wait_for

KINDS: Final = (*databases.KINDS, "galera")
_STOPS_GENTLY: Final = Version("0.1.0.dev0")
"""The first release that loses no request when it stops. The proxy has to take older ones out before."""
_SECONDS_OF_LOAD: Final = 2.0
"""Seconds of load after each move."""
_OWNER: Final = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}
_KEPT: Final = (
    *("name", "vcpus", "kind", "cpus", "allocation", "qos_class", "priority", "thread_policy", "spread"),
    *("emulator_policy", "memory_type", "preserve", "resctrl", "command"),
)
"""The settings of a guest that every release shows."""


def run(folder: Path, old: InstalledRelease, new: InstalledRelease, kind: str) -> UpgradeOutcome:
    """Upgrade from one release to another on a kind of database, and go back.

    :raises ServerMissing: the database is not installed.
    """
    outcome = UpgradeOutcome(kind, old.version, old.source, taken_out=old.version < _STOPS_GENTLY)
    began = time.monotonic()
    with ExitStack() as stack:
        urls = stack.enter_context(_database(kind))
        identity = stack.enter_context(fake_identity.serving())
        identity.accept(TOKEN, "operator")
        stops: list[ServiceStop] = []
        services = [ServiceMachine(folder / f"service-{number}", old, stops) for number in range(3)]
        for machine, url in zip(services, urls, strict=True):
            machine.configure(url, identity.url)
        _sync(services[0], old)
        for machine in services:
            stack.callback(machine.stop)
            machine.start()
        fronts = [stack.enter_context(Front(ports)) for ports in _rotations([each.port for each in services])]
        hosts = []
        for front, cpu in zip(fronts, sorted(os.sched_getaffinity(0))[:2], strict=False):
            name = f"compute-{cpu}"
            host = HostMachine(folder / name, old, name, cpu, front.base)
            stack.callback(host.close)
            host.start()
            hosts.append(host)
        cloud = SmallCloud(fronts[0].base, hosts)
        cloud.fill()
        before = cloud.settings()
        guests = cloud.guest_facts()
        # a proxy without connections that are kept alive, which would stay at a machine that is taken out
        headers = HEADERS | ({"Connection": "close"} if outcome.taken_out else {})
        load = FailoverLoad([RunningService(front.base, 0) for front in fronts], 1, headers)
        outcome.judge = load.judge
        load.judge.moment = lambda at: describe_moment(stops, at)

        def look(step: str, *, settings: bool) -> None:
            time.sleep(_SECONDS_OF_LOAD)
            outcome.note_losses(step)
            outcome.compare_guests(step, guests, cloud.guest_facts())
            if settings:  # by commands, which take seconds
                outcome.compare_settings(step, before, cloud.settings())
            print(f"{kind}: {step}; {load.judge.counts.total()} answers", flush=True)

        with load:
            look("before", settings=True)
            checked = ("--config-file", services[0].config, "upgrade", "check")
            new.run("placement-status", *checked, accepted=(0, 1, 2))
            began = time.monotonic()
            _sync(services[0], new)
            outcome.schema_change = began, time.monotonic()
            new.run("placement-status", *checked)
            look("schema", settings=False)
            for release, word in ((new, "upgraded"), (old, "back")):
                first, last = hosts
                first.move_to(release)
                look(f"{first.name} {word}", settings=True)
                for machine in services:
                    for front in fronts if outcome.taken_out else ():
                        front.take_out(machine.port)
                    machine.move_to(release)
                    for front in fronts:
                        front.put_back(machine.port)
                    look(f"{machine.folder.name} {word}", settings=False)
                last.move_to(release)
                look(f"{last.name} {word}", settings=True)
        load.check_books()
        outcome.note_losses("books")
    outcome.seconds = time.monotonic() - began
    return outcome


@contextmanager
def _database(kind: str) -> Iterator[list[str]]:
    """Yield the URLs of an empty database for three machines."""
    if kind == "galera":
        with Galera() as cluster:
            yield cluster.fresh_database()
    else:
        with databases.create(kind) as server:
            yield [server.fresh_database()] * 3


def _sync(machine: ServiceMachine, release: InstalledRelease) -> None:
    release.run("placement-manage", "--config-file", machine.config, "db", "sync")


def _rotations(ports: Sequence[int]) -> list[list[int]]:
    return [[*ports[at:], *ports[:at]] for at in range(len(ports))]


class SmallCloud:
    """Settings of operators and users in a cloud, and their values after each step."""

    def __init__(self, base: str, hosts: Sequence[HostMachine]) -> None:
        self._base = base
        self._hosts = hosts
        self._consumers: dict[str, str] = {}
        self._reservation = str(uuid.uuid4())
        self._visitor: ConsoleVisitor | None = None

    def fill(self) -> None:
        """Make guests with claims and settings, a reservation, attributes, maintenance, and a session."""
        for host in self._hosts:
            consumer = self._consumers[host.name] = str(uuid.uuid4())
            wanted = {
                "consumer_uuid": consumer,
                "consumer_generation": None,
                "query": f"resources=PCPU:1&in_tree={self._root(host)}",
                **_OWNER,
            }
            self._call("POST", "/ext/v1/claims", {"claims": [wanted]})
            dedicated = f"dedicated-{host.name}"
            host.run_guest(dedicated, "--uuid", consumer, "--vcpus", 1, "--qos-class", "gold")
            # the agent learns of the claim from Placement
            wait_for(lambda host=host, name=dedicated: host.ask("guest", "show", name)["kind"] == "dedicated")
            floating = f"floating-{host.name}"
            host.run_guest(floating, "--qos-class", "BE", "--priority", 3)
            host.ask("guest", "set", floating, "--priority", 9)
        self._call("POST", "/resource_providers", {"name": "store"})
        (store,) = self._call("GET", "/resource_providers?name=store")["resource_providers"]
        self._store = store["uuid"]
        totals = {"DISK_GB": {"total": 100}}
        path = f"/resource_providers/{self._store}/inventories"
        self._call("PUT", path, {"resource_provider_generation": 0, "inventories": totals})
        attributes = {"attributes": {"price": 0.5, "rack": "r12"}, "resource_provider_generation": 1}
        self._call("PUT", self._attributes, attributes)
        reserved = {
            "uuid": self._reservation,
            "query": f"resources=DISK_GB:40&in_tree={self._store}",
            "expires_in": 36_000,
            "project_id": "project",
            "user_id": "user",
        }
        self._call("POST", "/ext/v1/reservations", reserved)
        self._hosts[-1].ask("host", "disable", "--reason", "new disks")
        self._visitor = ConsoleVisitor(self._base)

    @property
    def _attributes(self) -> str:
        return f"/ext/v1/resource_providers/{self._store}/attributes"

    def guest_facts(self) -> dict[str, GuestFacts | None]:
        """Return facts of all guests, by name."""
        return {name: facts for host in self._hosts for name, facts in host.guest_facts().items()}

    def settings(self) -> dict[str, object]:
        """Return each setting by a name for the report."""
        found: dict[str, object] = {}
        for host in self._hosts:
            for name in host.guests:
                shown = host.ask("guest", "show", name)
                found |= {f"{name} {field}": shown.get(field) for field in _KEPT}
            status = host.ask("status")
            for field in ("provider_uuid", "disabled", "disabled_reason", "disabled_since", "driver"):
                found[f"{host.name} {field}"] = status[field]
            found[f"{host.name} unusable files"] = host.damaged_files()
            consumer = self._consumers[host.name]
            found[f"{host.name} claim"] = self._call("GET", f"/allocations/{consumer}")["allocations"]
        reservation = self._call("GET", f"/ext/v1/reservations/{self._reservation}")["reservation"]
        found |= {f"reservation {name}": reservation[name] for name in ("allocations", "expires_at")}
        found["attributes"] = self._call("GET", self._attributes)["attributes"]
        assert self._visitor is not None
        found["console"] = self._visitor.page()
        return found

    def _root(self, host: HostMachine) -> str:
        return str(host.ask("status")["provider_uuid"])

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        answer = requests.request(method, self._base + path, json=body, headers=HEADERS, timeout=60)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None
