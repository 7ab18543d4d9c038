"""The agent applies classes of block I/O to guests: rates and shares agree with the kernel's counters.

Runs in the virtual machine only: `test_blockio.py` starts it there with an empty disk, and PLACEMENT is the
service's address.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import RequestError, call_agent
from tests.vm.inside_machine import BASE_INI, CGROUP, SOCKET, make_agent, uid
from tests.waits import wait_for

DISK = Path("/dev/vda")
NUMBER = Path("/sys/block/vda/dev").read_text().strip()
MIB = 1 << 20
SECONDS = 10.0

INI = f"""{BASE_INI}
[compute]
cpu_shared_set = 0-1
[guests]
reconcile_interval = 1
[blockio_class:slow]
read_bytes = 1M
write_bytes = 2M
devices = vd*
[blockio_class:few]
write_operations = 40
devices = vda
[blockio_class:gold]
weight = 300
[blockio_class:bronze]
weight = 100
"""

WRITER = """
import mmap, os, sys
size, offset, read = (int(word) for word in sys.argv[1:])
disk = os.open("/dev/vda", os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, size)
for _ in range(int(os.environ.get("WRITERS", "1")) - 1):
    if os.fork() == 0:
        break
while True:
    os.preadv(disk, [page], offset) if read else os.pwrite(disk, page, offset)
"""


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI, "+cpu +cpuset +memory +io")
    agent.start()
    yield agent
    print(agent.log())
    for number in range(20):
        end(number)
    agent.kill()


@pytest.fixture(scope="module")
def found():
    found = {}
    yield found
    Path("blockio.json").write_text(json.dumps(found))


def group(number):
    return CGROUP / f"guest-{uid(number)}"


def run(number, blockio_class, size=65536, offset=0, read=False, writers=1):
    command = [sys.executable, "-c", WRITER, str(size), str(offset), str(int(read))]
    environment = {"WRITERS": str(writers)}
    params = {"uuid": uid(number), "command": command, "environment": environment}
    return call_agent(SOCKET, "guest.run", {**params, "blockio_class": blockio_class})


def end(number):
    if group(number).exists():
        (group(number) / "cgroup.kill").write_text("1")
        wait_for(lambda: not group(number).exists())


def counted(number, key):
    for line in (group(number) / "io.stat").read_text().splitlines():
        device, _, rest = line.partition(" ")
        if device == NUMBER:
            return int(dict(one.split("=") for one in rest.split())[key])
    return 0


def rates(key, *numbers):
    """Measure the rate of guests by the counters of their groups, after they have started to write."""
    time.sleep(2)
    before, since = [counted(number, key) for number in numbers], time.monotonic()
    time.sleep(SECONDS)
    after, passed = [counted(number, key) for number in numbers], time.monotonic() - since
    return [(last - first) / passed for first, last in zip(before, after, strict=True)]


@pytest.mark.parametrize(
    ("blockio_class", "read", "key", "rate"),
    [
        ("slow", False, "wbytes", 2 * MIB),
        ("slow", True, "rbytes", MIB),
        ("few", False, "wios", 40),
    ],
)
def test_a_guest_gets_the_rate_of_its_class(agent, found, blockio_class, read, key, rate):
    run(1, "", read=read)
    (free,) = rates(key, 1)
    assert free > 1.5 * rate
    call_agent(SOCKET, "guest.set", {"guest": uid(1), "blockio_class": blockio_class})
    (held,) = rates(key, 1)
    found[f"{blockio_class} {key}"] = {"set": rate, "free": round(free), "held": round(held)}
    assert held == pytest.approx(rate, rel=0.1)
    (group(1) / "io.max").write_text(f"{NUMBER} rbps=max wbps=max riops=max wiops=max\n")
    wait_for(lambda: (group(1) / "io.max").read_text())  # the agent repairs drift
    call_agent(SOCKET, "guest.set", {"guest": uid(1), "blockio_class": ""})
    assert (group(1) / "io.max").read_text() == ""
    end(1)


def test_guests_share_a_busy_disk_by_their_weights(agent, found):
    root = CGROUP.parent
    (root / "io.cost.model").write_text(
        f"{NUMBER} ctrl=user model=linear rbps=8388608 rseqiops=300 rrandiops=300 wbps=8388608 wseqiops=300"
        " wrandiops=300\n"
    )
    (root / "io.cost.qos").write_text(f"{NUMBER} enable=1 ctrl=user min=100.00 max=100.00\n")
    run(2, "gold", offset=0, writers=4)
    run(3, "bronze", offset=16 * MIB, writers=4)
    assert (group(2) / "io.weight").read_text().splitlines()[0] == "default 300"
    gold, bronze = rates("wbytes", 2, 3)
    found["weights 300 to 100"] = round(gold / bronze, 2)
    assert gold / (gold + bronze) == pytest.approx(0.75, rel=0.1)
    end(2)
    end(3)


def test_a_victim_waits_less_for_its_disk_after_a_noisy_writer_is_limited(agent, found):
    """Use the disk of the test before, with 300 operations a second."""
    run(6, "", size=4096)
    run(7, "", size=4096, offset=16 * MIB, writers=4)
    (beside,) = rates("wios", 6)  # its operations are sequential, so each takes the rest of the second
    call_agent(SOCKET, "guest.set", {"guest": uid(7), "blockio_class": "few"})
    (after,) = rates("wios", 6)
    found["a victim's write in ms, beside and after"] = [round(1000 / beside, 2), round(1000 / after, 2)]
    assert after > 1.4 * beside
    end(6)
    end(7)


def test_an_unknown_class_is_refused_with_the_names_of_known_ones(agent):
    with pytest.raises(RequestError, match="no class of block I/O 'fast'; there are bronze, few, gold, slow"):
        run(4, "fast")
    assert os.path.isdir(CGROUP)
    assert not group(4).exists()
