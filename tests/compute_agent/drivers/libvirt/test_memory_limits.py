"""Tests of memory limits of domains: the agent sets a soft limit if the operator has set none.

If libvirtd has no cgroups for memory, it refuses to change running domains. Then one test covers the refusal,
and all others change only definitions.
"""

from pathlib import Path

import pytest

from compute_agent.drivers.base import UNLIMITED, MemoryLimits
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.libvirt import domain_table
from compute_agent.drivers.libvirt.domain_definition import UNLIMITED_KIB
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.drivers.libvirt.running_domain import DomainTuning
from compute_agent.drivers.memory_limits import OomScores
from compute_agent.model.messages import DriverError
from tests.waits import wait_for

pytestmark = pytest.mark.slow

MIB = 1 << 20
WANTED = MemoryLimits(high=900 * MIB)
NONE = MemoryLimits(high=UNLIMITED)


@pytest.fixture
def domain(libvirtd):
    return libvirtd.run(persistent=True)


@pytest.fixture
def has_memory_groups(libvirtd, domain):
    """Whether libvirtd can limit the memory of running domains."""
    try:
        domain.memoryParameters(libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirtd.libvirt.libvirtError:
        return False
    return True


@pytest.fixture
def live(has_memory_groups, monkeypatch):
    """The soft limits that were set on the running domain. The last one is also the answer to reads."""
    asked, really, parsed = [], DomainTuning.set_soft_limit, domain_table.parse_live

    def set_soft_limit(self, kib, persistent):
        if not persistent:
            asked.append(kib)
        if persistent or has_memory_groups:
            really(self, kib, persistent)

    def parse_live(xml):
        blockio, soft_limit = parsed(xml)
        if asked and not has_memory_groups:
            soft_limit = None if asked[-1] >= UNLIMITED_KIB else asked[-1]
        return blockio, soft_limit

    monkeypatch.setattr(DomainTuning, "set_soft_limit", set_soft_limit)
    monkeypatch.setattr(domain_table, "parse_live", parse_live)
    return asked


@pytest.fixture
def defined(libvirtd, domain):
    """The soft limit in the domain's definition, in KiB."""
    flag = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
    return lambda: domain.memoryParameters(flag)["soft_limit"]


@pytest.fixture
def opened(libvirtd, domain, tmp_path):
    """A function that opens drivers, as agents do that start one after the other."""
    made = []

    def make():
        records = ValueRecords(tmp_path / "records", "domain")
        made.append(LibvirtDriver(libvirtd.uri, look_interval=0.5, records=records))
        return made[-1], made[-1].guests()[0]

    yield make
    for driver in made:
        driver.close()


def test_a_soft_limit_is_set_live_and_persistent_once_and_taken_back_by_the_next_agent(opened, live, defined):
    driver, guest = opened()
    before = defined()
    assert driver.limit_memory(guest, WANTED)
    assert (live, defined()) == ([900 * 1024], 900 * 1024)
    assert driver.memory_limits(guest, WANTED) is None
    assert not driver.limit_memory(guest, WANTED)
    after, guest = opened()
    assert after.memory_limits(guest, NONE) == MemoryLimits(high=900 * MIB)
    assert after.limit_memory(guest, NONE)
    assert defined() == before
    assert after.memory_limits(guest, NONE) is None


def test_the_soft_limit_of_an_operators_definition_stays(libvirtd, domain, opened, live, defined):
    domain.setMemoryParameters({"soft_limit": 800 * 1024}, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    driver, guest = opened()
    driver.limit_memory(guest, WANTED)
    assert defined() == 800 * 1024


def test_a_libvirtd_that_limits_no_memory_is_asked_once_and_the_definition_is_left(
    opened, has_memory_groups, defined, caplog
):
    if has_memory_groups:
        pytest.skip("libvirtd limits memory here")
    driver, guest = opened()
    before = defined()
    driver.limit_memory(guest, WANTED)
    assert not driver.limit_memory(guest, WANTED)
    assert driver.memory_limits(guest, WANTED) is None
    assert caplog.text.count("cannot be limited: ") == 1
    assert defined() == before


def test_a_domain_that_is_busy_with_another_job_gets_its_limit_in_a_later_round(
    opened, live, libvirtd, monkeypatch
):
    driver, guest = opened()
    libvirt, set_soft_limit = libvirtd.libvirt, DomainTuning.set_soft_limit

    def is_busy(self, kib, persistent):
        error = libvirt.libvirtError("Timed out during operation: cannot acquire state change lock")
        error.err = (libvirt.VIR_ERR_OPERATION_TIMEOUT, 10, str(error), 2, None, None, None, -1, -1)
        raise error

    monkeypatch.setattr(DomainTuning, "set_soft_limit", is_busy)
    with pytest.raises(DriverError, match=r"does not accept limits of memory: .*state change lock"):
        driver.limit_memory(guest, WANTED)
    monkeypatch.setattr(DomainTuning, "set_soft_limit", set_soft_limit)
    assert driver.limit_memory(guest, WANTED)
    assert live == [900 * 1024]


def read_score(guest):
    return int(Path(f"/proc/{guest.pid}/oom_score_adj").read_text())


def test_the_next_agent_changes_an_oom_score_and_gives_it_back(opened, live, domain, tmp_path):
    driver, guest = opened()
    assert driver.limit_memory(guest, MemoryLimits(oom_score_adj=100))
    after, guest = opened()
    assert after.memory_limits(guest, MemoryLimits(oom_score_adj=100)) is None
    assert after.memory_limits(guest, MemoryLimits(oom_score_adj=500)) == MemoryLimits(oom_score_adj=100)
    assert after.limit_memory(guest, MemoryLimits(oom_score_adj=500))
    assert read_score(guest) == 500
    last, guest = opened()
    assert last.limit_memory(guest, MemoryLimits(oom_score_adj=0))
    assert (read_score(guest), [*(tmp_path / "records").iterdir()]) == (0, [])


def test_a_domain_that_has_ended_leaves_no_record(opened, live, domain, tmp_path):
    driver, guest = opened()
    assert driver.limit_memory(guest, MemoryLimits(oom_score_adj=100))
    assert [one.stem for one in (tmp_path / "records").iterdir()] == [guest.uuid]
    domain.destroy()
    wait_for(lambda: not [*(tmp_path / "records").iterdir()])


def test_the_oom_score_of_another_program_stays(opened, live):
    driver, guest = opened()
    Path(f"/proc/{guest.pid}/oom_score_adj").write_text("300")
    assert not driver.limit_memory(guest, MemoryLimits(oom_score_adj=100))
    assert read_score(guest) == 300


def test_a_refused_oom_score_is_not_written_again_with_the_soft_limit(opened, live, monkeypatch):
    driver, guest = opened()
    written = []

    def write_score(self, guest, pids, score):
        written.append(score)
        self._refused.add(guest.uuid)

    monkeypatch.setattr(OomScores, "write", write_score)
    driver.limit_memory(guest, MemoryLimits(high=900 * MIB, oom_score_adj=500))
    driver.limit_memory(guest, MemoryLimits(high=800 * MIB, oom_score_adj=500))
    assert (written, live) == ([500], [900 * 1024, 800 * 1024])


def test_no_domain_has_a_limit_at_which_it_would_be_killed(opened, live):
    driver, guest = opened()
    assert not driver.limit_memory(guest, MemoryLimits(maximum=64 * MIB, low=MIB))
    assert driver.memory_use(guest) is None
    assert live == []
