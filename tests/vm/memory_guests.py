"""An agent in the virtual machine with guests that run short of memory, and the files of their groups."""

import contextlib

from compute_agent.agent.protocol import call_agent
from tests.vm.inside_machine import BASE_INI, CGROUP, FOLDER, SOCKET, PlacementRest, make_agent, uid
from tests.waits import wait_for

MIB = 1 << 20
INI = f"""{BASE_INI}
[compute]
cpu_shared_set = 0-1
provider_tree = flat
memory_overhead = 64
[qos]
interval = 2
evict_grace = 1
"""


def group(number):
    return CGROUP / f"guest-{uid(number)}"


def read_number(number, name):
    """A number of bytes in a file of a guest's group; The value None means that the guest has no limit."""
    text = (group(number) / name).read_text().strip()
    return None if text == "max" else int(text)


def read_pressure(number):
    """Microseconds in which some task of a guest has waited for memory so far."""
    words = (group(number) / "memory.pressure").read_text().split()
    return int(next(word for word in words if word.startswith("total=")).removeprefix("total="))


def end_guests(numbers):
    """Kill the processes of guests that still have a group."""
    for number in numbers:
        with contextlib.suppress(OSError):
            (group(number) / "cgroup.kill").write_text("1")


class MemoryHost:
    """The agent, its guests, and the watermarks, which a test changes."""

    def __init__(self, options=""):
        """Prepare the agent.

        :param options: lines for the section [qos].
        """
        self._ini = INI + options
        self.agent = make_agent(self._ini)

    def configure(self, lines):
        """Replace the watermarks, and wait until the agent has them."""
        (FOLDER / "agent.ini").write_text(self._ini + lines)
        wait_for(lambda: {row["section"] for row in self.rows()} == sections(lines), evidence=self.agent.log)

    def rows(self):
        return call_agent(SOCKET, "watermark.list")

    def start(self, number, qos_class, held, command):
        """Start a guest with an allocation of ``held`` MiB."""
        PlacementRest().claim(uid(number), machine={"MEMORY_MB": held})
        settings = {"uuid": uid(number), "name": f"guest-{number}", "command": list(map(str, command))}
        call_agent(SOCKET, "guest.run", {**settings, "qos_class": qos_class})

    def running(self):
        return {guest["uuid"] for guest in call_agent(SOCKET, "guest.list")}

    def wait_for(self, condition):
        return wait_for(condition, evidence=lambda: self.agent.log() + str(self.rows()))


def sections(lines):
    names = (line for line in lines.splitlines() if line.startswith("[watermark:"))
    return {line.removeprefix("[watermark:").rstrip("]") for line in names}
