"""Tests of limits of block I/O of domains, which the agent or an operator has set."""

from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compute_agent.drivers.libvirt import domain_definition
from compute_agent.drivers.libvirt.domain_definition import DomainBlockIo, items_to_set, parse_blockio
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.model.resource import BlockIo, DeviceRates
from tests.compute_agent.libvirtd import CGROUPS, Libvirtd, LibvirtMissing
from tests.waits import wait_for

XML = """
<domain>
  <blkiotune>
    <weight>300</weight>
    <device><path>/dev/sda</path><read_bytes_sec>100</read_bytes_sec><weight>50</weight></device>
  </blkiotune>
  <devices>
    <disk><target dev='vda'/><iotune><write_iops_sec>7</write_iops_sec></iotune></disk>
    <disk><target dev='vdb'/><iotune><total_bytes_sec>7</total_bytes_sec></iotune></disk>
    <disk><target dev='vdc'/></disk>
  </devices>
</domain>
"""
RATES = DeviceRates(read_bytes=1 << 20, write_operations=50)


@pytest.fixture
def sda(monkeypatch):
    monkeypatch.setattr(
        domain_definition, "device_paths", lambda numbers: [f"/dev/{one}" for one in sorted(numbers)]
    )


def test_the_xml_is_read_item_by_item():
    assert parse_blockio(ElementTree.fromstring(XML)) == DomainBlockIo(
        300,
        {
            "dev:/dev/sda": DeviceRates(read_bytes=100),
            "disk:vda": DeviceRates(write_operations=7),
            "disk:vdb": DeviceRates(),
            "disk:vdc": DeviceRates(),
        },
        frozenset({"disk:vdb"}),
    )
    assert parse_blockio(ElementTree.fromstring("<domain/>")) == DomainBlockIo()


@pytest.mark.usefixtures("sda")
@pytest.mark.parametrize(
    ("wanted", "own", "items"),
    [
        (None, (), {}),
        (BlockIo(weight=200), (), {}),  # 300 is foreign
        (BlockIo(weight=200), ("weight",), {"weight": 200}),
        (None, ("weight",), {"weight": 100}),
        (BlockIo(rates=RATES, own_disks=True), (), {"disk:vdc": RATES}),
        (BlockIo(rates=RATES, own_disks=True), ("disk:vda",), {"disk:vda": RATES, "disk:vdc": RATES}),
        (BlockIo(rates=RATES, devices=frozenset({"sda", "sdb"})), (), {"dev:/dev/sdb": RATES}),
        (BlockIo(rates=RATES, devices=frozenset({"sda"})), ("dev:/dev/sda",), {"dev:/dev/sda": RATES}),
        (None, ("disk:vda", "disk:vdb", "disk:gone", ""), {"disk:vda": DeviceRates()}),
    ],
)
def test_unset_items_and_the_agents_own_are_set_and_foreign_ones_stay(wanted, own, items):
    has = parse_blockio(ElementTree.fromstring(XML))
    assert items_to_set(has, wanted, own) == items
    assert items_to_set(has.with_items(items), wanted, {*own, *items}) == {}


@pytest.mark.slow
class TestRealDomain:
    """Limits of a disk that QEMU enforces, in a domain of a real libvirtd."""

    WANTED = BlockIo(rates=DeviceRates(1 << 20, 2 << 20, None, 50), own_disks=True)

    @pytest.fixture
    def domain(self, libvirtd):
        return libvirtd.run(persistent=True, busy=True)

    @pytest.fixture
    def driver(self, libvirtd, domain):
        driver = LibvirtDriver(libvirtd.uri)
        yield driver
        driver.close()

    @staticmethod
    def limits(libvirtd, domain):
        """The limits of the running domain, and of its definition."""
        flags = (libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        keys = ("read_bytes_sec", "write_bytes_sec", "read_iops_sec", "write_iops_sec")
        return [[domain.blockIoTune("hda", flag)[key] for key in keys] for flag in flags]

    def test_rates_are_set_live_and_persistent_once_and_taken_back(self, libvirtd, domain, driver):
        (guest,) = driver.guests()
        assert driver.apply_blockio(guest, self.WANTED)
        assert self.limits(libvirtd, domain) == [[1 << 20, 2 << 20, 0, 50]] * 2
        assert driver.blockio_drift(guest, self.WANTED) == ""
        assert not driver.apply_blockio(guest, self.WANTED)
        assert driver.blockio_missing(guest, self.WANTED) == []
        assert driver.apply_blockio(guest, None)
        assert self.limits(libvirtd, domain) == [[0, 0, 0, 0]] * 2
        assert driver.blockio_drift(guest, None) == ""

    def test_drift_is_seen_and_repaired_also_by_the_next_agent(self, libvirtd, domain, driver):
        (guest,) = driver.guests()
        driver.apply_blockio(guest, self.WANTED)
        other = LibvirtDriver(libvirtd.uri)
        try:
            for one in (driver, other):
                domain.setBlockIoTune("hda", {"read_bytes_sec": 5}, libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE)
                wait_for(partial(one.blockio_drift, guest, self.WANTED))
                assert one.apply_blockio(guest, self.WANTED)
                assert self.limits(libvirtd, domain)[0] == [1 << 20, 2 << 20, 0, 50]
        finally:
            other.close()

    def test_limits_of_the_operator_stay(self, libvirtd, domain):
        for flag in (libvirtd.libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG):
            domain.setBlockIoTune("hda", {"total_iops_sec": 500}, flag)
        driver = LibvirtDriver(libvirtd.uri)
        try:
            (guest,) = driver.guests()
            assert not driver.apply_blockio(guest, self.WANTED)
            assert domain.blockIoTune("hda")["total_iops_sec"] == 500
        finally:
            driver.close()

    def test_limits_that_the_operator_defines_for_the_next_start_apply_now(self, libvirtd, domain):
        config = libvirtd.libvirt.VIR_DOMAIN_AFFECT_CONFIG
        domain.setBlockIoTune("hda", {"write_iops_sec": 7}, config)
        driver = LibvirtDriver(libvirtd.uri)
        try:
            (guest,) = driver.guests()
            assert not driver.apply_blockio(guest, self.WANTED)
            assert self.limits(libvirtd, domain) == [[0, 0, 0, 0], [0, 0, 0, 7]]
        finally:
            driver.close()

    def test_a_latency_is_reported_as_missing(self, domain, driver):
        (guest,) = driver.guests()
        assert driver.blockio_missing(guest, BlockIo(latency_us=5)) == ["libvirt has no latency of block I/O"]


@pytest.mark.slow
class TestHostDevices:
    """Weight and rates of block devices of the host, which the kernel enforces in the group of a domain."""

    @pytest.fixture
    def server(self):
        try:
            server = Libvirtd(controllers=("cpu", "cpuset", "blkio"))
        except LibvirtMissing as missing:
            pytest.skip(str(missing))
        try:
            if not server.has_cgroups:
                pytest.skip("needs cgroup v1 with the controller blkio")
            server.start()
            yield server
        finally:
            server.stop()

    @pytest.fixture
    def disk(self):
        """The name and the number of any block device of the host."""
        for path in sorted(Path("/sys/block").iterdir(), reverse=True):
            if Path("/dev", path.name).exists():
                return f"/dev/{path.name}", (path / "dev").read_text().strip()
        pytest.skip("needs a block device")

    @pytest.fixture
    def domain(self, server):
        return server.run(persistent=True)

    @pytest.fixture
    def driver(self, server, domain):
        driver = LibvirtDriver(server.uri, look_interval=0.1)
        yield driver
        driver.close()

    @staticmethod
    def kernel(server, domain, number):
        """The weight of the domain, and the bytes it may write per second, in the kernel."""
        lines = Path(f"/proc/{server.process(domain)}/cgroup").read_text().splitlines()
        path = next(line.split(":")[2] for line in lines if line.split(":")[1] == "blkio")
        group = CGROUPS / "blkio" / path.lstrip("/").removesuffix("/emulator")
        rates = dict(
            line.split() for line in (group / "blkio.throttle.write_bps_device").read_text().splitlines()
        )
        weight = group / "blkio.bfq.weight"
        return int(weight.read_text().split()[-1]) if weight.exists() else None, rates.get(number)

    def test_weight_and_rates_are_set_live_and_persistent_repaired_and_taken_back(
        self, server, domain, driver, disk
    ):
        device, number = disk
        (guest,) = driver.guests()
        weight = 300 if self.kernel(server, domain, number)[0] is not None else None
        wanted = BlockIo(
            weight=weight, rates=DeviceRates(1 << 20, 2 << 20, None, 50), devices=frozenset({number})
        )
        libvirt = server.libvirt
        flags = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG

        assert driver.apply_blockio(guest, wanted)
        assert self.kernel(server, domain, number) == (weight, str(2 << 20))
        for flag in flags:
            has = domain.blkioParameters(flag)
            assert has["device_write_bytes_sec"] == f"{device},{2 << 20}"
            assert has["device_write_iops_sec"] == f"{device},50"
            assert weight is None or has["weight"] == weight
        assert driver.blockio_drift(guest, wanted) == ""
        assert not driver.apply_blockio(guest, wanted)

        changes = [{"device_write_bytes_sec": f"{device},7"}]
        for change in changes if weight is None else [*changes, {"weight": 500}]:
            domain.setBlkioParameters(change, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            wait_for(partial(driver.blockio_drift, guest, wanted))
            assert driver.apply_blockio(guest, wanted)
            assert self.kernel(server, domain, number) == (weight, str(2 << 20))

        assert driver.apply_blockio(guest, None)
        assert self.kernel(server, domain, number) == (None if weight is None else 100, None)
        assert driver.blockio_drift(guest, None) == ""
