"""The files of a host with two CPUs, each with an L3 cache of 16 MiB in 16 ways, and with resctrl mounted."""

from tests.compute_agent.resctrl import fake

CPU = "sys/devices/system/cpu"


def two_caches():
    """The contents of the files, by path below the root folder of the host."""
    files = {
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 16777216 kB",
        "proc/cpuinfo": fake.INTEL.cpuinfo,
        "proc/mounts": "resctrl /sys/fs/resctrl resctrl rw,relatime 0 0",
    }
    for cpu in (0, 1):
        cache = f"{CPU}/cpu{cpu}/cache/index3"
        files |= {
            f"{CPU}/cpu{cpu}/topology/core_cpus_list": str(cpu),
            f"{CPU}/cpu{cpu}/topology/package_cpus_list": "0-1",
            f"{CPU}/cpu{cpu}/topology/core_id": str(cpu),
            f"{cache}/level": "3",
            f"{cache}/type": "Unified",
            f"{cache}/id": str(cpu),
            f"{cache}/size": "16384K",
            f"{cache}/ways_of_associativity": "16",
            f"{cache}/shared_cpu_list": str(cpu),
        }
    return files
