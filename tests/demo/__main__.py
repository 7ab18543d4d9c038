"""Demo of the whole system on this machine: one guest from its claim to its release.

Run by `make demo`. With KEEP=1 in the environment, all programs continue to run for inspection. The exit
status is 0 only if every step succeeded.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests.demo.system import (
    MICROVERSION,
    SCRIPTS,
    TOKEN,
    CpuSets,
    DemoError,
    System,
    allowed_cpus,
    cpu_list,
    is_running,
)

QUERY = "/allocation_candidates?resources=PCPU:1&limit=1"
NEXT = """make demo KEEP=1            the same, left running, with a picture of this host
doc/tutorial/index.md      do it by hand, step by step
doc/install/index.md       install it for production
doc/howto/careful-start.md on a host where guests run already: look first
make doc                   all pages as a site, with search"""
GUEST_SECONDS = "3600"  # a forgotten guest ends after this time


def say(step: str, text: str = "") -> None:
    """Print one readable line, or several that belong together."""
    first, *others = text.split("\n")
    print(f"{step:<12} {first}", *(f"{'':<12} {line}".rstrip() for line in others), sep="\n", flush=True)


def expect(truth: bool, complaint: str) -> None:
    """End the demo with the complaint unless the condition is true."""
    if not truth:
        raise DemoError(complaint)


def run(system: System) -> None:
    """Run all steps until the host is empty again."""
    cpus = CpuSets.of_this_machine()
    set_up(system, cpus)
    show_providers(system)
    consumer, pid = run_guest(system)
    name = show_usage(system, consumer)

    system.agent("guest", "stop", consumer)
    expect(not is_running(pid), f"the guest's process {pid} still runs after it was stopped")
    say("stop", f"the guest's process {pid} has ended")
    system.call("DELETE", f"/allocations/{consumer}")
    used = usages(system)
    expect(not any(used[name].values()), f"usage after the release is {used}")
    say("release", f"DELETE /allocations/{consumer}\nused on {name}: {quantities(used[name])}")


def set_up(system: System, cpus: CpuSets) -> None:
    """Start database, service and agent."""
    system.configure_service()
    system.manage("db", "sync")
    say("database", f"{system.database}, tables made by placement-manage db sync")

    system.start_service(workers=2)
    version = system.call("GET", "/")["versions"][0]
    say(
        "service",
        f"{system.url}, 2 gunicorn workers, "
        f"microversions {version['min_version']} to {version['max_version']}",
    )

    system.configure_agent(cpus.options())
    began = time.monotonic()
    system.start_agent()
    say(
        "agent",
        f"dedicated CPUs {cpu_list(cpus.dedicated)}, shared CPUs {cpu_list(cpus.shared) or 'none'}; "
        f"has reported after {time.monotonic() - began:.1f} s",
    )


def show_providers(system: System) -> None:
    """Print the reported tree, children below their parent."""
    providers = system.providers()
    children: dict[str | None, list[Any]] = {}
    for provider in providers:
        children.setdefault(provider["parent_provider_uuid"], []).append(provider)
    lines: list[str] = []

    def add(parent: str | None, depth: int) -> None:
        for provider in sorted(children.get(parent, []), key=lambda p: str(p["name"])):
            path = f"/resource_providers/{provider['uuid']}"
            inventories = system.call("GET", f"{path}/inventories")["inventories"]
            traits = sorted(system.call("GET", f"{path}/traits")["traits"])
            indent = "    " * depth
            lines.append(f"{indent}{provider['name']}")
            lines.extend(f"{indent}  {inventory(name, inventories[name])}" for name in sorted(inventories))
            if traits:
                lines.append(f"{indent}  traits {some(traits)}")
            add(provider["uuid"], depth + 1)

    add(None, 0)
    say("providers", "\n".join(lines))


def inventory(name: str, record: dict[str, Any]) -> str:
    """Format one inventory as a line."""
    text = f"{name} {record['total']}"
    if record["reserved"]:
        text += f", {record['reserved']} of them reserved"
    if record["allocation_ratio"] != 1.0:
        text += f", times {record['allocation_ratio']:g}"
    return text


def some(words: list[str], limit: int = 4) -> str:
    """Join the words; of a long list, the first few and the number of the others."""
    if len(words) <= limit:
        return ", ".join(words)
    return f"{', '.join(words[:limit])} and {len(words) - limit} more"


def run_guest(system: System) -> tuple[str, int]:
    """Find room for one dedicated CPU, claim it and run a process on it; return consumer uuid and pid."""
    answer = system.call("GET", QUERY)
    expect(bool(answer["allocation_requests"]), "there is no allocation candidate for one dedicated CPU")
    candidate = answer["allocation_requests"][0]
    names = {provider["uuid"]: provider["name"] for provider in system.providers()}
    places = [f"{quantities(a['resources'])} on {names[rp]}" for rp, a in candidate["allocations"].items()]
    say("candidates", f"GET {QUERY}\n{', '.join(places)}")

    consumer = str(uuid.uuid4())
    claim = candidate | {
        "project_id": "demo",
        "user_id": "demo",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    system.call("PUT", f"/allocations/{consumer}", body=claim)
    say("claim", f"PUT /allocations/{consumer}")

    command = ["sleep", GUEST_SECONDS]
    system.agent("guest", "run", "--uuid", consumer, "--vcpus", "1", "--", *command)
    guest = system.agent("guest", "show", consumer)
    pid = int(guest["pid"])
    say("guest", f"{' '.join(command)} runs as process {pid}; the agent gives it CPU {guest['cpus']}")
    allowed = allowed_cpus(pid)
    expect(allowed == guest["cpus"], f"the agent gave CPU {guest['cpus']}, the kernel allows {allowed}")
    say("kernel", f"/proc/{pid}/status: Cpus_allowed_list: {allowed}")
    return consumer, pid


def show_usage(system: System, consumer: str) -> str:
    """Print the usage of the provider of the consumer's allocation; return the provider's name."""
    holder = next(iter(system.call("GET", f"/allocations/{consumer}")["allocations"]))
    name = next(str(provider["name"]) for provider in system.providers() if provider["uuid"] == holder)
    used = usages(system)[name]
    expect(used.get("PCPU") == 1, f"usage of {name} is {used}, not one PCPU")
    say("usages", f"used on {name}: {quantities(used)}")
    return name


def usages(system: System) -> dict[str, dict[str, int]]:
    """Return the used amounts by provider name and resource class."""
    return {
        provider["name"]: system.call("GET", f"/resource_providers/{provider['uuid']}/usages")["usages"]
        for provider in system.providers()
    }


def quantities(resources: dict[str, int]) -> str:
    """Format amounts like `PCPU 1, VCPU 0`."""
    return ", ".join(f"{name} {amount}" for name, amount in sorted(resources.items()))


def leave_running(system: System) -> None:
    """Start a guest again and print the commands to inspect everything and to end it."""
    consumer, _pid = run_guest(system)
    system.keep()
    scripts = SCRIPTS.relative_to(Path.cwd()) if SCRIPTS.is_relative_to(Path.cwd()) else SCRIPTS
    agent = f"{scripts}/compute-agent --config-file {system.agent_ini}"
    picture = system.folder / "host.svg"
    system.agent("topology", "show", "--svg", str(picture))
    openstack = (
        f"  {scripts}/openstack --os-auth-type admin_token --os-endpoint {system.url} --os-token {TOKEN} "
        "resource provider list\n"
        if (SCRIPTS / "openstack").exists()
        else ""
    )
    curl = f"curl -s -H 'X-Auth-Token: {TOKEN}' -H 'OpenStack-API-Version: {MICROVERSION}'"
    pids = " ".join(str(process.pid) for process in system.processes.values())
    say(
        "kept",
        f"everything runs on; configuration, database and logs are in {system.folder}\n"
        f"a picture of this host with its guest, for a browser: {picture}\n"
        f"the console, for a browser, too: {system.url}/console/"
        " (doc/howto/look-at-the-fleet.md tells what is there)\n\nlook around:\n"
        f"  {agent} status\n  {agent} guest list\n  {agent} inventory show\n  {agent} topology show\n"
        f"  {agent} top\n"
        f"  curl -s http://127.0.0.1:{system.agent_port}/metrics\n"
        f"  {curl} {system.url}/resource_providers\n"
        f"  {curl} {system.url}/allocations/{consumer}\n"
        f"{openstack}"
        f"\nend it:\n  {agent} guest stop {consumer}; kill {pids}; sleep 5; rm -r {system.folder}\n",
    )


def main() -> int:
    """Run the demo and return its exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    began = time.monotonic()
    try:
        with System() as system:
            run(system)
            if os.environ.get("KEEP", "0") not in ("", "0"):
                leave_running(system)
            else:
                statuses = {script: system.stop(script) for script in ("compute-agent", "placement-api")}
                expect(not any(statuses.values()), f"the servers ended with status {statuses}")
                say("servers", "both stopped")
    except DemoError as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; everything is stopped and removed.", file=sys.stderr)
        return 130
    say("done", f"in {time.monotonic() - began:.1f} s")
    say("next", NEXT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
