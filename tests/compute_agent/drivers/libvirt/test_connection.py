"""Tests of connections to libvirtd that end during a call, without a crash of the agent."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from compute_agent.drivers.libvirt import connection
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.model.messages import DriverError

EOF = 1


class AskedConnection:
    """A connection of libvirt-python. Its listing of domains waits for the event `go_on`."""

    def __init__(self):
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.closed_while_asked = None
        self.handle = Mock()
        self.handle.getCPUMap.return_value = (4, [], 4)
        self.handle.getHostname.return_value = "compute-7"
        self.handle.listAllDomains.side_effect = self._wait

    @property
    def closed(self):
        return self.handle.close.called

    def _wait(self, which):
        self.asked.set()
        assert self.go_on.wait(60)
        self.closed_while_asked = self.closed
        return []

    def ask(self, opened):
        """Begin to list the domains in a thread."""
        thread = threading.Thread(target=opened.active_domains)
        thread.start()
        assert self.asked.wait(60)
        return thread

    def break_down(self):
        """Call the function that libvirt's event loop calls when a connection breaks."""
        callback, session = self.handle.registerCloseCallback.call_args.args
        callback(self.handle, EOF, session)


@pytest.fixture
def connections(monkeypatch):
    """The list of connections that were opened."""
    made = []

    def connect(uri):
        made.append(AskedConnection())
        return made[-1].handle

    library = SimpleNamespace(
        open=connect,
        libvirtError=type("libvirtError", (Exception,), {}),
        VIR_DOMAIN_EVENT_ID_LIFECYCLE=0,
        VIR_DOMAIN_EVENT_ID_METADATA_CHANGE=1,
        VIR_DOMAIN_EVENT_ID_TUNABLE=17,
        VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED=15,
        VIR_DOMAIN_EVENT_ID_DEVICE_ADDED=19,
        VIR_CONNECT_LIST_DOMAINS_ACTIVE=1,
        VIR_CONNECT_CLOSE_REASON_EOF=EOF,
    )
    monkeypatch.setattr(connection, "load", lambda: library)
    return made


@pytest.fixture
def opened(connections):
    opened = LibvirtConnection("fake:///", lambda uuid: None)
    opened.open()
    return opened


def test_a_connection_is_closed_when_the_last_call_has_ended(connections, opened):
    (only,) = connections
    thread = only.ask(opened)
    opened.close()
    only.go_on.set()
    thread.join(60)
    assert (only.closed_while_asked, only.closed) == (False, True)
    with pytest.raises(DriverError, match="does not answer"):
        opened.active_domains()


def test_a_broken_connection_is_kept_for_its_last_call_when_another_is_opened(connections, opened):
    (old,) = connections
    thread = old.ask(opened)
    old.break_down()
    opened.open()
    assert opened.is_open
    old.go_on.set()
    thread.join(60)
    assert (old.closed_while_asked, old.closed) == (False, True)
    assert not connections[1].closed


def test_the_name_of_the_host_is_known_from_the_first_connection_on(connections):
    connection = LibvirtConnection("fake:///", lambda uuid: None)
    assert connection.host_name == ""
    connection.open()
    assert connection.host_name == "compute-7"
    connections[0].break_down()
    assert connection.host_name == "compute-7"


def test_a_connection_without_calls_is_closed_at_once(connections, opened):
    opened.close()
    assert connections[0].closed
