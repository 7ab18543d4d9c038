"""The cost of classification: 200 guests by 40 rules, at a reload and at the events of a busy host.

    python -m benchmarks.classification                       # 40 rules, 200 guests
    python -m benchmarks.classification --rules 400 --events 60

Guests have the metadata that Nova 34 writes into a domain. Only the last rule matches, which is the worst
case. CPU time is that of this process. The agent resolves a guest when the guest starts, when its domain or
its allocation changes, and at each reload. The goal is 0.1 % of a core.
"""

import argparse
import time

from compute_agent.classification.resolution import ClassificationPolicy, resolve_settings
from compute_agent.classification.rules import GuestFacts, make_rule
from compute_agent.model.guest import GuestIdentity

GOAL_PERCENT = 0.1
RELOADS_PER_HOUR = 4


def build_rules(count):
    """Return rules with several matches each. Only the last rule matches the guests."""
    rules = [
        make_rule(
            f"rule{number}",
            number,
            {
                "driver": ["libvirt"],
                "flavor": ["gold.*", "silver.*"],
                "project": [f"project-{number}-*"],
                "extra_specs": ["hw:cpu_policy=dedicated", f"trait:CUSTOM_{number}=required"],
            },
            {"qos_class": "LSR"},
        )
        for number in range(count - 1)
    ]
    return (*rules, make_rule("last", count, {"name": ["*"]}, {"qos_class": "BE", "priority": 3}))


def build_guest(number):
    """Return the facts of a domain as Nova defines it."""
    specs = {f"hw:key{each}": str(each) for each in range(8)} | {"hw:cpu_policy": "dedicated"}
    return GuestFacts(
        "libvirt",
        f"uuid-{number}",
        f"instance-{number:08x}",
        GuestIdentity(
            display_name=f"worker-{number}",
            flavor="gold.small",
            extra_specs={**specs, "compute_agent:blockio_class": "bulk"},
            project_id="b0a8f5ac57b7419a8eec6fd5ae31e5c5",
            project_name="lab",
            user_id="d3bd2f6b8e5a4f6aa3f1e6b1c2d3e4f5",
            user_name="me",
            image_properties={"hw_cpu_thread_policy": "require", "hw_machine_type": "q35"},
        ),
        resource_classes=frozenset({"PCPU", "MEMORY_MB"}),
        traits=frozenset({"HW_CPU_X86_AVX2", "COMPUTE_NODE"}),
    )


def measure_pass(policy, guests, rounds):
    """Return the median of the CPU seconds for resolving all guests."""
    taken = []
    for _ in range(rounds):
        since = time.process_time()
        for guest in guests:
            resolve_settings(policy, guest)
        taken.append(time.process_time() - since)
    return sorted(taken)[len(taken) // 2]


def main():
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rules", type=int, default=40)
    parser.add_argument("--guests", type=int, default=200)
    parser.add_argument("--events", type=float, default=30, help="starts and changes of guests per minute")
    parser.add_argument("--rounds", type=int, default=21)
    wanted = parser.parse_args()
    policy = ClassificationPolicy(build_rules(wanted.rules))
    guests = [build_guest(number) for number in range(wanted.guests)]
    seconds = measure_pass(policy, guests, wanted.rounds)
    per_guest = seconds / wanted.guests
    load = 100 * (per_guest * wanted.events / 60 + seconds * RELOADS_PER_HOUR / 3600)
    print(f"{wanted.rules} rules, {wanted.guests} guests: {1000 * seconds:.1f} ms at a reload")
    print(f"{1e6 * per_guest:.0f} microseconds of CPU time a guest")
    print(
        f"{load:.4f} % of a core at {wanted.events:g} events a minute and {RELOADS_PER_HOUR} reloads an hour;"
        f" goal: {GOAL_PERCENT} %"
    )


if __name__ == "__main__":
    main()
