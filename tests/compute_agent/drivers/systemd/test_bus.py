"""The connection to the message bus: time limits, and messages of other programs."""

import builtins
import contextlib
import queue
import shutil
import socket
import struct
import subprocess
import threading
import time
from typing import Any

import jeepney
import pytest
from jeepney.io.blocking import open_dbus_connection
from jeepney.low_level import HeaderFields

from compute_agent.drivers.peer import PeerHint
from compute_agent.drivers.systemd.bus import BUS_NAME, BUS_PATH, BusConnection, BusError, load_jeepney
from compute_agent.drivers.systemd.manager import MANAGER, MANAGER_PATH, UNIT, SystemdManager
from compute_agent.drivers.systemd.unit_state import unit_path
from compute_agent.model.messages import DriverError
from tests.waits import wait_for


def forge_message(text="x" * 20, path="/x"):
    """The bytes of a signal of another program."""
    address = jeepney.DBusAddress(path, bus_name="x.y", interface="x.y")
    message = jeepney.new_signal(address, "Z", "s", (text,))
    message.header.fields[HeaderFields.sender] = ":1.77"
    return message.serialise(1)


@pytest.fixture
def connect(systemd):
    opened = []

    def connect(seconds=5.0, on_signal=lambda signal: None):
        ended = queue.Queue()
        connection: Any = BusConnection(systemd.path, on_signal, lambda: ended.put(None), seconds)
        connection.ended = ended
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def raw_server(tmp_path):
    """A server that sends what a test says after it has accepted a client."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "raw"))
    server.listen()
    clients = []

    def serve(*pieces, pause=0.0):
        def run():
            client, _ = server.accept()
            clients.append(client)
            client.recv(1024)
            # The client leaves as soon as it has heard enough.
            with contextlib.suppress(OSError):
                for piece in pieces:
                    client.sendall(piece)
                    time.sleep(pause)

        threading.Thread(target=run, daemon=True).start()
        return tmp_path / "raw"

    yield serve
    server.close()
    for client in clients:
        client.close()


def test_calls_of_many_threads_get_their_own_answers(systemd, connect):
    names = [f"s{number}.service" for number in range(8)]
    for name in names:
        systemd.define(name)
    connection, found = connect(), {}

    def ask(name):
        for _ in range(20):
            (properties,) = connection.call_method(
                systemd.owner, unit_path(name), "org.freedesktop.DBus.Properties", "GetAll", "s", (UNIT,)
            )
            found.setdefault(name, set()).add(properties["Id"][1])

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {name: {name} for name in names}


def test_an_error_has_its_name_and_a_printable_text(systemd, connect):
    with pytest.raises(BusError, match=r"no such name") as caught:
        connect().call_method("x.y", "/", "x.y", "Z")
    assert caught.value.name == "org.freedesktop.DBus.Error.ServiceUnknown"


def test_a_call_without_an_answer_ends_the_connection(systemd, connect):
    connection = connect(seconds=0.2)
    systemd.hangs.set()
    with pytest.raises(DriverError, match=r"no answer within 0\.2 s"):
        connection.call_method(systemd.owner, MANAGER_PATH, MANAGER, "Subscribe")
    assert not connection.is_open
    connection.ended.get(timeout=10)
    with pytest.raises(DriverError, match=r"no answer within 0\.2 s"):
        connection.call_method(BUS_NAME, BUS_PATH, BUS_NAME, "Hello")


def test_waiting_calls_end_with_the_connection(systemd, connect):
    connection, errors = connect(), queue.Queue()
    systemd.hangs.set()

    def ask():
        try:
            connection.call_method(systemd.owner, MANAGER_PATH, MANAGER, "Subscribe")
        except DriverError as error:
            errors.put(str(error))

    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.1)
    systemd.drop_clients()
    assert "ended" in errors.get(timeout=10)


@pytest.mark.parametrize(
    "pieces",
    [
        (b"REJECTED EXTERNAL\r\n",),
        (b"x" * 100_000,),
        (b"OK 1234\r\n", b"x" * 16),
        (b"OK 1234\r\n", struct.pack("<cBBBIII", b"l", 2, 0, 1, 1 << 30, 1, 1 << 30)),
        (b"OK 1234\r\n", struct.pack("<cBBBIII", b"l", 9, 0, 1, 0, 1, 0)),
        (),
    ],
)
def test_a_server_that_does_not_speak_the_protocol_is_refused(raw_server, pieces):
    with pytest.raises(DriverError, match="message bus"):
        BusConnection(raw_server(*pieces), print, lambda: None, 0.3)


def test_a_server_that_sends_one_byte_at_a_time_is_not_waited_for(raw_server):
    started = time.monotonic()
    with pytest.raises(DriverError, match="does not answer"):
        BusConnection(raw_server(*[b"O"] * 200, pause=0.05), print, lambda: None, 0.3)
    assert time.monotonic() - started < 9


BUS_CONFIG = """\
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow receive_type="signal"/>
    <allow receive_sender="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.DBus"/>
  </policy>
</busconfig>
"""
"""The rules of a system bus for all users."""


@pytest.fixture
def real_bus(tmp_path):
    program = shutil.which("dbus-daemon")
    if program is None:
        pytest.skip("needs dbus-daemon")
    path = tmp_path / "real"
    (tmp_path / "bus.conf").write_text(BUS_CONFIG.format(path=path))
    process = subprocess.Popen([program, "--nofork", "--nosyslog", f"--config-file={tmp_path}/bus.conf"])
    wait_for(path.exists)
    yield path
    process.terminate()
    process.wait(10)


def test_signals_of_other_programs_do_not_end_a_connection(real_bus):
    signals, ended = [], []
    connection = BusConnection(real_bus, signals.append, lambda: ended.append(True))
    other = open_dbus_connection(f"unix:path={real_bus}")
    (names,) = connection.call_method(BUS_NAME, BUS_PATH, BUS_NAME, "ListNames")
    (name,) = {one for one in names if one.startswith(":")} - {other.unique_name}
    for size in (8, 1 << 20, 17 << 20):
        address = jeepney.DBusAddress("/x", bus_name="x.y", interface="x.y")
        message = jeepney.new_signal(address, "Z", "ay", (bytes(size),))
        message.header.fields[HeaderFields.destination] = name
        other.send(message)
    # The bus answers after it has passed on the signals.
    bus = jeepney.DBusAddress(BUS_PATH, bus_name=BUS_NAME, interface=BUS_NAME)
    other.send_and_get_reply(jeepney.new_method_call(bus, "GetId"), timeout=60)
    assert connection.call_method(BUS_NAME, BUS_PATH, BUS_NAME, "GetId")
    # The bus itself sends signals, too.
    assert {signal.sender for signal in signals} <= {BUS_NAME}
    assert not ended
    connection.close()
    other.close()


def test_there_is_no_bus(tmp_path):
    with pytest.raises(DriverError, match=r"does not answer: .*No such file"):
        BusConnection(tmp_path / "none", print, lambda: None)


def test_without_jeepney_the_error_names_what_to_install(monkeypatch):
    load = builtins.__import__

    def missing(name, *arguments):
        if name.partition(".")[0] == "jeepney":
            raise ModuleNotFoundError(name)
        return load(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DriverError, match=r"package jeepney .*whl\[systemd\]'"):
        load_jeepney()


class TestSignals:
    """Hints of systemd, and of programs that pretend to be systemd."""

    @pytest.fixture
    def hints(self, systemd, connect):
        found = queue.Queue()
        manager = SystemdManager(systemd.path, found.put)
        manager.open()
        yield found
        manager.close()

    def test_systemd_names_services(self, systemd, hints):
        systemd.changed(systemd.define("db.service"))
        assert hints.get(timeout=10) == PeerHint("db.service", True)
        assert hints.get(timeout=10) == PeerHint("db.service")
        systemd.reload()
        assert hints.get(timeout=10) == PeerHint()

    def test_signals_of_other_programs_and_of_other_units_are_left_out(self, systemd, hints):
        systemd.forge_signal("UnitNew", ("forged.service", "/x"), ":1.77")
        systemd.forge_signal("UnitNew", ("a.socket", "/x"), systemd.owner)
        systemd.forge_signal("UnitNew", ("../x.service", "/x"), systemd.owner)
        systemd.define("last.service")
        assert hints.get(timeout=10) == PeerHint("last.service", True)

    @pytest.mark.parametrize(
        "message",
        [
            pytest.param(forge_message("x" * (17 << 20)), id="long"),
            pytest.param(forge_message()[:-8] + b"\xff" * 8, id="undecodable"),
            pytest.param(forge_message(path="/" + "x" * 100_000), id="long header"),
            pytest.param(b"l\x09" + forge_message()[2:], id="unknown type"),
            pytest.param(
                struct.pack("<cBBBIII8s", b"l", 4, 0, 1, 0, 1, 5, b"\x4d\x01y\x00\x05"), id="unknown field"
            ),
        ],
    )
    def test_a_hostile_message_of_another_program_does_not_end_the_connection(self, systemd, hints, message):
        systemd.send_bytes(message)
        systemd.define("last.service")
        assert hints.get(timeout=10) == PeerHint("last.service", True)

    def test_the_end_of_the_connection_is_a_hint(self, systemd, hints):
        systemd.drop_clients()
        assert hints.get(timeout=10) == PeerHint()
