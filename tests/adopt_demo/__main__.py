"""A cloud that moves from OpenStack Placement to this service and back, step by step.

Run by `make adopt-demo`. DATABASE in the environment is sqlite (default), postgresql or mariadb.
Ends with status 0 only if nothing was lost on the way.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.reference import VERSION, ReferenceInstall, ReferenceMissing, install_reference
from benchmarks.servers import OpenStack, OurService
from placement_extras.shadow.comparison import comparable_body
from tests import databases
from tests.databases import DatabaseServer, ServerMissing
from tests.placement.differential.services import Request, ServiceClient
from tests.placement_extras.shadow.processes import shadow

HOSTS, GUESTS, LATER = 12, 60, 24

Answers = dict[str, tuple[int, Any]]
"""Status and body by path."""


class AdoptionDemoError(Exception):
    """A step of the demo failed; the message has the reason."""


def uuid(kind: str, number: int) -> str:
    """Return the uuid of a host (kind a), a NUMA node (b) or a guest (c)."""
    return f"{kind * 8}-0000-4000-8000-{number:012x}"


def say(what: str, text: str) -> None:
    """Print a step of the demo; its further lines are indented."""
    first, *others = text.rstrip().split("\n")
    print(f"{time.monotonic() - START:5.1f} s  {what:<8} {first}")
    print("".join(f"{'':17}{line}\n" for line in others), end="", flush=True)


def expect(truth: bool, complaint: str) -> None:
    """End the demo with a complaint unless a condition is true."""
    if not truth:
        raise AdoptionDemoError(complaint)


class AdoptedCloud:
    """The database, and the services that use it one after the other."""

    def __init__(self, server: DatabaseServer, folder: Path, reference: ReferenceInstall) -> None:
        self.url = url = server.fresh_database()
        self.trial = OurService(server.fresh_database(), folder, 1, 2)
        self.stock = OpenStack(url, folder, 1, 2, reference)
        self.ours = OurService(url, folder, 1, 2)
        self.folder = folder

    def manage(self, *arguments: str) -> tuple[int, str]:
        """Run our ``placement-manage``; return its status and output."""
        config = self.folder / "manage.conf"
        config.write_text(f"[placement_database]\nconnection = {self.url.replace('$', '$$')}\n")
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "placement.cmd.manage",
                "--config-file",
                str(config),
                *arguments,
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, (done.stdout + done.stderr).strip()


def send(client: ServiceClient, method: str, path: str, body: Any = None) -> None:
    """Send a request that must succeed."""
    answer = client.send(Request(method, path, body))
    expect(answer.status < 300, f"{method} {path} was answered {answer.status}: {answer.body}")


def inventories(generation: int, **totals: int) -> dict[str, Any]:
    """Return a body that sets inventories."""
    return {
        "resource_provider_generation": generation,
        "inventories": {name: {"total": total} for name, total in totals.items()},
    }


def claim(number: int, amount: int, generation: int | None = None) -> dict[str, Any]:
    """Return the body of a guest's allocations: CPUs of a NUMA node, memory of its host."""
    host = 1 + number % HOSTS
    return {
        "allocations": {
            uuid("b", host): {"resources": {"PCPU": amount}},
            uuid("a", host): {"resources": {"MEMORY_MB": 512 * amount}},
        },
        "project_id": f"project-{number % 3}",
        "user_id": "user",
        "consumer_type": "INSTANCE",
        "consumer_generation": generation,
    }


def populate(client: ServiceClient) -> None:
    """Create hosts with a NUMA node, a trait and an aggregate each, and guests."""
    send(client, "PUT", "/traits/CUSTOM_GOLD")
    for number in range(1, HOSTS + 1):
        host, node = uuid("a", number), uuid("b", number)
        send(client, "POST", "/resource_providers", {"name": f"host{number}", "uuid": host})
        child = {"name": f"host{number}_NUMA0", "uuid": node, "parent_provider_uuid": host}
        send(client, "POST", "/resource_providers", child)
        send(client, "PUT", f"/resource_providers/{host}/inventories", inventories(0, MEMORY_MB=65536))
        send(client, "PUT", f"/resource_providers/{node}/inventories", inventories(0, PCPU=64))
        traits = {"resource_provider_generation": 1, "traits": ["CUSTOM_GOLD"]}
        send(client, "PUT", f"/resource_providers/{node}/traits", traits)
        aggregates = {"resource_provider_generation": 1, "aggregates": [uuid("e", 1)]}
        send(client, "PUT", f"/resource_providers/{host}/aggregates", aggregates)
    for number in range(1, GUESTS + 1):
        send(client, "PUT", f"/allocations/{uuid('c', number)}", claim(number, 2))


def work(client: ServiceClient) -> str:
    """Make the changes of a day; return a description of them."""
    send(client, "POST", "/resource_providers", {"name": "new-host", "uuid": uuid("a", 99)})
    send(client, "PUT", f"/resource_providers/{uuid('a', 99)}/inventories", inventories(0, PCPU=32, LLC=11))
    for number in range(GUESTS + 1, GUESTS + LATER + 1):
        send(client, "PUT", f"/allocations/{uuid('c', number)}", claim(number, 1))
    for number in range(1, LATER // 2 + 1):
        send(client, "DELETE", f"/allocations/{uuid('c', number)}")
    for number in range(LATER // 2 + 1, LATER + 1):
        send(client, "PUT", f"/allocations/{uuid('c', number)}", claim(number, 3, 1))
    return f"a host more, {LATER} guests more, {LATER // 2} gone, {LATER // 2} of another size"


def questions() -> Iterator[str]:
    """Yield the path of each request about this cloud."""
    yield "/resource_providers"
    for number in (*range(1, HOSTS + 1), 99):
        for provider in (uuid("a", number), uuid("b", number)):
            for part in ("", "/inventories", "/traits", "/aggregates", "/usages", "/allocations"):
                yield f"/resource_providers/{provider}{part}"
    for number in range(1, GUESTS + LATER + 1):
        yield f"/allocations/{uuid('c', number)}"
    yield "/allocation_candidates?resources=MEMORY_MB:64&resources1=PCPU:1&required1=CUSTOM_GOLD"


def ask(client: ServiceClient) -> Answers:
    """Return the answers to all questions: the status, and the body of a success, with sorted lists."""
    answers = {path: client.send(Request("GET", path)) for path in questions()}
    return {
        path: (each.status, comparable_body(path, each.body) if each.status == 200 else None)
        for path, each in answers.items()
    }


def differing(before: Answers, after: Answers) -> list[str]:
    """Return the questions with different answers."""
    return [path for path in before if before[path] != after[path]]


def rows(url: str) -> int:
    """Return the number of allocations in a database."""
    with closing(sa.create_engine(url, poolclass=sa.NullPool).connect()) as conn:
        return int(conn.execute(sa.text("SELECT count(*) FROM allocations")).scalar_one())


def run(cloud: AdoptedCloud) -> None:
    """Run all steps of the demo."""
    with cloud.stock:
        with ServiceClient(cloud.stock.port) as client:
            populate(client)
        say(
            "stock",
            f"OpenStack Placement {VERSION} runs: {2 * HOSTS} providers, {GUESTS} guests,"
            f" {rows(cloud.url)} allocations",
        )
        look(cloud)
        try_beside(cloud)
        with ServiceClient(cloud.stock.port) as client:
            before = ask(client)
        adopt(cloud, before)
        later = serve(cloud, before)
        back(cloud, later)


def look(cloud: AdoptedCloud) -> None:
    """Show the messages that a deployment tool gets on the database of OpenStack Placement."""
    status, text = cloud.manage("db", "sync")
    expect(status == 1, f"db sync ended with {status}: {text}")
    say("look", f"placement-manage db sync ends with 1:\n{wrapped(text)}")


def try_beside(cloud: AdoptedCloud) -> None:
    """Run guests and questions with our service beside the other one, on a copy of the database."""
    copied = ("--stock-database", cloud.url)
    with cloud.trial, shadow(cloud.stock, cloud.trial, cloud.folder, *copied) as beside:
        with ServiceClient(beside.port) as client:
            for number in range(1, LATER + 1):
                send(client, "PUT", f"/allocations/{uuid('f', number)}", claim(number, 1))
                send(client, "DELETE", f"/allocations/{uuid('f', number)}")
            asked = len(ask(client))
        report = beside.compared(2 * LATER + asked)
    expect(report["in_step"] and not report["differences"], f"the services differ: {report['differences']}")
    times, requests = report["operations"].get("GET /allocation_candidates"), report["requests"]
    took = "are being compared"  # the report may be older than the last question
    if times is not None:
        took = f"took {times['stock_ms']['p50']:.0f} ms there, {times['ours_ms']['p50']:.0f} ms here"
    say(
        "shadow",
        f"placement-shadow asked both {sum(requests.values())} requests: {requests['same']} the same,\n"
        f"{len(report['differences'])} different; allocation candidates {took}",
    )


def adopt(cloud: AdoptedCloud, before: Answers) -> None:
    """Adopt the database while the old service still runs by mistake."""
    start = time.monotonic()
    status, text = cloud.manage("db", "adopt")
    expect(status == 0, text)
    say("adopt", f"placement-manage db adopt took {time.monotonic() - start:.1f} s:\n{text}")
    with ServiceClient(cloud.stock.port) as client:
        answer = client.send(Request("PUT", f"/allocations/{uuid('d', 1)}", claim(1, 1)))
    expect(answer.status >= 500, f"the old service could write: {answer}")
    say("", f"the old service was left running: a claim there is answered {answer.status}")
    cloud.stock.stop()


def serve(cloud: AdoptedCloud, before: Answers) -> Answers:
    """Work with our service; return its answers at the end."""
    with cloud.ours, ServiceClient(cloud.ours.port) as client:
        different = differing(before, ask(client))
        expect(not different, f"answered differently after the adoption: {different}")
        say("ours", f"this service answers {len(before)} questions as the other did")
        say("work", work(client))
        return ask(client)


def back(cloud: AdoptedCloud, later: Answers) -> None:
    """Give the database back with all changes."""
    status, text = cloud.manage("db", "abandon")
    expect(status == 1, f"db abandon ended with {status}: {text}")
    first, *others = text.split("\n")
    say(
        "abandon", f"placement-manage db abandon refuses:\n{first}\n{others[0]}\n  ...\n{wrapped(others[-1])}"
    )
    start = time.monotonic()
    status, text = cloud.manage("db", "abandon", "--carry-back")
    expect(status == 0, text)
    kept = "\n".join(text.split("\n")[-3:])
    say("", f"placement-manage db abandon --carry-back took {time.monotonic() - start:.1f} s:\n{kept}")
    cloud.stock.start()
    with ServiceClient(cloud.stock.port) as client:
        different = differing(later, ask(client))
        expect(not different, f"answered differently after the way back: {different}")
        number = LATER
        send(client, "PUT", f"/allocations/{uuid('c', number)}", claim(number, 4, 2))
    say(
        "stock",
        f"OpenStack Placement {VERSION} answers {len(later)} questions as this service did, and goes on",
    )
    say(
        "proof",
        f"answers that differ after the adoption: 0 of {len(later)},\nafter the way back: 0 of {len(later)}",
    )


def wrapped(text: str) -> str:
    """Wrap a long line."""
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > 90:
            lines.append(line)
            line = "  "
        line = f"{line} {word}" if line.strip() else line + word
    return "\n".join([*lines, line])


def main() -> int:
    """Run the demo on a new database; return 0 on success, or if OpenStack Placement is not available."""
    kind = os.environ.get("DATABASE", "sqlite")
    try:
        reference = install_reference()
        server = databases.create(kind)
    except (ReferenceMissing, ServerMissing) as error:
        print(f"Not shown: {error}", file=sys.stderr)
        return 0
    with server, tempfile.TemporaryDirectory() as folder:
        try:
            run(AdoptedCloud(server, Path(folder), reference))
        except AdoptionDemoError as error:
            print(f"adopt-demo: {error}", file=sys.stderr)
            return 1
    return 0


START = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
