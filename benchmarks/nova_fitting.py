"""Nova's fitting of guests to NUMA cells, behind a pipe: each line in and each line out is a JSON object.

The program needs the Python of an environment with `nova`. It imports nothing of this project.

    {"host": [{"id", "cpus", "siblings"}, ...], "pack": bool}    -> {}
    {"arrive": GUEST, "vcpus": N, "thread_policy": NAME}    -> {"cpus": [...] or null, "nanoseconds": N}
    {"depart": GUEST}    -> {}

A guest has one NUMA node and dedicated CPUs; `cpus` are in the order of its CPUs. The time is the CPU time of
the deciding call only. With `pack` Nova prefers the fullest cell that has room, else the emptiest.

The cells back VCPU and PCPU with the same CPUs, as with the legacy vcpu_pin_set. With a separate dedicated
set, Nova refuses thread policy isolate on hyperthreaded hosts.
"""

import json
import logging
import sys
import time
import warnings

warnings.simplefilter("ignore")

import nova.conf  # noqa: E402
from nova import objects  # noqa: E402
from nova.virt import hardware  # noqa: E402

CELL_MEMORY_MB, GUEST_MEMORY_MB = 1 << 20, 1
"""Memory of a cell and of a guest. Only CPUs decide, because memory always suffices."""


class NovaHost:
    """The NUMA cells of one host, and the guests on them."""

    def __init__(self, cells, pack):
        nova.conf.CONF.set_override("packing_host_numa_cells_allocation_strategy", pack, group="compute")
        self.topology = objects.NUMATopology(cells=[_make_cell(cell) for cell in cells])
        self.guests = {}

    def place_guest(self, guest, vcpus, thread_policy):
        """Return the CPUs of the guest, or None, and nanoseconds."""
        flavor = objects.Flavor(
            vcpus=vcpus,
            memory_mb=GUEST_MEMORY_MB,
            extra_specs={
                "hw:numa_nodes": "1",
                "hw:cpu_policy": "dedicated",
                "hw:cpu_thread_policy": thread_policy,
            },
        )
        wanted = hardware.numa_get_constraints(flavor, objects.ImageMeta.from_dict({"properties": {}}))
        started = time.process_time_ns()
        fitted = hardware.numa_fit_instance_to_host(self.topology, wanted, None)
        nanoseconds = time.process_time_ns() - started
        if fitted is None:
            return None, nanoseconds
        self.topology = hardware.numa_usage_from_instance_numa(self.topology, fitted)
        self.guests[guest] = fitted
        (cell,) = fitted.cells
        return [cpu for _, cpu in sorted(cell.cpu_pinning_raw.items())], nanoseconds

    def remove_guest(self, guest):
        """Release the CPUs of the guest."""
        fitted = self.guests.pop(guest)
        self.topology = hardware.numa_usage_from_instance_numa(self.topology, fitted, free=True)


def _make_cell(cell):
    return objects.NUMACell(
        id=cell["id"],
        cpuset=set(cell["cpus"]),
        pcpuset=set(cell["cpus"]),
        memory=CELL_MEMORY_MB,
        cpu_usage=0,
        memory_usage=0,
        pinned_cpus=set(),
        siblings=[set(threads) for threads in cell["siblings"]],
        mempages=[objects.NUMAPagesTopology(size_kb=4, total=CELL_MEMORY_MB * 256, used=0, reserved=0)],
        network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
        socket=None,
    )


def main():
    """Answer until the pipe ends."""
    logging.disable()  # the time of a decision would include that of its warnings
    nova.conf.CONF([], project="nova", default_config_files=[], default_config_dirs=[])
    objects.register_all()
    host = None
    for line in sys.stdin:
        question = json.loads(line)
        answer = {}
        if "host" in question:
            host = NovaHost(question["host"], question["pack"])
        elif "arrive" in question:
            cpus, nanoseconds = host.place_guest(
                question["arrive"], question["vcpus"], question["thread_policy"]
            )
            answer = {"cpus": cpus, "nanoseconds": nanoseconds}
        else:
            host.remove_guest(question["depart"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
