"""Tests of counting the kernel's events about PCI devices. Events of other programs, and very many events, do
no harm.
"""

import errno
import os
import socket

import pytest

from compute_agent.host.pci_devices import PciEvents, is_pci_event

REMOVED = (
    b"remove@/devices/pci0000:80/0000:81:00.0\0ACTION=remove\0SUBSYSTEM=pci\0PCI_SLOT_NAME=0000:81:00.0\0"
)
OF_DISK = b"add@/devices/virtual/block/loop0\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=SUBSYSTEM=pci x\0"


@pytest.mark.parametrize(
    ("content", "port", "counts"),
    [
        (REMOVED, 0, True),
        (REMOVED, 4242, False),
        (OF_DISK, 0, False),
        (b"", 0, False),
        (b"\0" * 9000, 0, False),
        (os.urandom(2000), 0, False),
    ],
)
def test_only_the_kernels_events_of_pci_devices_count(content: bytes, port: int, counts: bool) -> None:
    assert is_pci_event(content, port) is counts


class FakeSocket:
    """A socket that returns the given messages and errors in turn, and then has nothing more to read."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.closed = False

    def recvfrom(self, size):
        answer = self.answers.pop(0) if self.answers else BlockingIOError()
        if isinstance(answer, Exception):
            raise answer
        return answer[:size], (0, 1)

    def close(self):
        self.closed = True


def test_lost_events_count_and_a_broken_socket_ends_the_count(caplog):
    fake = FakeSocket(REMOVED, OF_DISK, OSError(errno.ENOBUFS, "full"), REMOVED)
    events = PciEvents(lambda: fake)
    assert events.count_events() == 3
    assert events.count_events() == 3
    fake.answers = [OSError(errno.EBADF, "bad"), REMOVED]
    assert events.count_events() == 4
    assert fake.closed
    assert "polls devices instead" in caplog.text
    assert events.count_events() == 4


def test_a_storm_of_events_is_read_in_parts():
    events = PciEvents(lambda: FakeSocket(*[REMOVED] * 10_000))
    first = events.count_events()
    assert 0 < first < 10_000
    assert first < events.count_events() < 10_000


def test_without_a_socket_nothing_is_counted():
    assert PciEvents(lambda: None).count_events() == 0


def test_messages_of_other_processes_to_the_kernels_socket_are_ignored():
    events = PciEvents()
    before = events.count_events()
    try:
        sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
    except OSError as error:
        pytest.skip(f"there is no netlink here: {error}")
    with sender:
        try:
            sender.sendto(REMOVED, (0, 1))
        except OSError as error:
            pytest.skip(f"this process may not send to the group: {error}")
    assert events.count_events() == before
    events.close()
