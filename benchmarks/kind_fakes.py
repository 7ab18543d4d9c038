"""The fakes of systemd, Podman and Docker with guests, for :mod:`benchmarks.agent_kinds`.

    python -m benchmarks.kind_fakes FOLDER podman=UUID,UUID systemd=UUID

Each fake has a folder of its own in FOLDER, and all groups are in ``FOLDER/host/sys/fs/cgroup``. A file
``paths/PID`` has the path of the group of a process, as ``/proc/PID/cgroup`` has it. The file ``calls`` has
the number of requests so far.
"""

import sys
import time
from pathlib import Path

from benchmarks.agent_on_fakes import COUNTERS, PlainPatch
from compute_agent.drivers.foreign.editor import HostFolders
from tests.compute_agent import cgroups
from tests.compute_agent.drivers.containers.fake_engine import GUEST, FakeEngine
from tests.compute_agent.drivers.systemd.fake_systemd import FakeSystemd

GROUPS = {"podman": "/machine.slice/libpod-{}.scope", "docker": "/system.slice/docker-{}.scope"}


def start_units(folder, host, uuids):
    """Start a systemd with a unit for each uuid: services, scopes, and slices with one service, in turn."""
    fake = FakeSystemd(folder)
    fake.folders = HostFolders(host, host / "sys/fs/cgroup", host / "run/systemd")
    for name in ("system.control", "transient"):
        (fake.folders.runtime / name).mkdir(parents=True)
    for number, one in enumerate(uuids):
        section = f"[X-ComputeAgent]\nUuid={one}\n"
        if number % 3 == 0:
            fake.start(f"s{number}.service", section)
        elif number % 3 == 1:
            fake.start(f"s{number}.scope", None, [section])
        else:
            fake.start(f"s{number}.slice", section, processes=0)
            fake.start(f"in-s{number}.service", None, slice=f"s{number}.slice")
    return fake


def start_containers(folder, host, uuids, group_format, paths):
    """Start an engine with a container for each uuid."""
    fake = FakeEngine(folder, PlainPatch, group_format)
    fake.folders = HostFolders(host, host / "sys/fs/cgroup")
    for number, one in enumerate(uuids):
        container = fake.start(f"c{number}", {**GUEST, "compute-agent.uuid": one})
        (process,) = container.processes
        (fake.folder_of(container) / "cgroup.procs").write_text(f"{process.pid}\n")
        (paths / str(process.pid)).write_text(container.group)
    return fake


def main() -> int:
    """Start the fakes, and count requests until the process ends."""
    folder = Path(sys.argv[1])
    host, paths = folder / "host", folder / "paths"
    paths.mkdir()
    cgroups.FILES.update(COUNTERS)
    fakes = []
    for word in sys.argv[2:]:
        kind, _, uuids = word.partition("=")
        (folder / kind).mkdir()
        if kind == "systemd":
            fakes.append(start_units(folder / kind, host, uuids.split(",")))
        else:
            fakes.append(start_containers(folder / kind, host, uuids.split(","), GROUPS[kind], paths))
    while True:
        (folder / "calls.new").write_text(str(sum(len(one.calls) for one in fakes)))
        (folder / "calls.new").rename(folder / "calls")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
