"""Tests of the queue of copies, which is limited in memory, and leaves out reads before writes."""

import multiprocessing
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

from placement_extras.shadow.copy_queue import (
    NO_ROOM,
    BacklogBounds,
    ByteBacklog,
    MirrorOutbox,
    OutboxDelivery,
)
from placement_extras.shadow.exchange import MirroredRequest, ReceivedAnswer, ShadowRequest
from placement_extras.shadow.follower import FollowerSettings, ShadowFollower
from placement_extras.shadow.proxy import InFlight
from tests.waits import wait_for

KEY = b"key"
KILOBYTES = 10_000


def copy(number: int, method: str, size: int = KILOBYTES) -> MirroredRequest:
    received = ReceivedAnswer(200, (), b"x" * size)
    return MirroredRequest(number, ShadowRequest(method, "/", (), b""), received, 0.0, 0.0, frozenset())


def test_a_full_backlog_leaves_out_reads_and_then_the_bodies_of_writes() -> None:
    backlog = ByteBacklog(BacklogBounds(int(2.5 * KILOBYTES), 5 * KILOBYTES, 10 * KILOBYTES))
    backlog.put(copy(0, "GET"))
    backlog.put(copy(1, "GET"))
    backlog.put(copy(2, "GET"))
    assert (len(backlog), backlog.left_out) == (2, 1)
    for number in (3, 4, 5):
        backlog.put(copy(number, "PUT"))
    backlog.close(keep=True)
    waiting = list(iter(backlog.get, None))
    assert [each.number for each in waiting] == [0, 1, 3, 4, 5]
    assert [each.missed for each in waiting] == ["", "", "", "", NO_ROOM]
    assert backlog.bytes == 0


def test_a_backlog_full_of_empty_writes_only_counts_more() -> None:
    backlog = ByteBacklog(BacklogBounds(KILOBYTES, KILOBYTES, 3 * KILOBYTES))
    for number in range(100):
        backlog.put(copy(number, "PUT"))
    assert len(backlog) + backlog.left_out == 100
    assert backlog.bytes <= 3 * KILOBYTES


def test_headers_and_queries_count_as_memory() -> None:
    backlog = ByteBacklog(BacklogBounds(10 * KILOBYTES, 10 * KILOBYTES, 10 * KILOBYTES))
    for number in range(100):
        request = ShadowRequest("GET", "/?" + "x" * KILOBYTES, (("X-Long", "x" * KILOBYTES),), b"")
        received = ReceivedAnswer(200, (("X-Long", "x" * KILOBYTES),), b"")
        backlog.put(MirroredRequest(number, request, received, 0.0, 0.0, frozenset()))
    assert (len(backlog), backlog.left_out) == (3, 97)


def test_a_closed_backlog_ends_a_waiting_reader() -> None:
    backlog = ByteBacklog(BacklogBounds(KILOBYTES, 2 * KILOBYTES, 3 * KILOBYTES))
    backlog.put(copy(0, "PUT"))
    backlog.close(keep=False)
    assert backlog.get() is None


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "copies")


def received_at(listener: Listener, number: int) -> list[OutboxDelivery]:
    found: list[OutboxDelivery] = []
    with listener.accept() as connection:
        while len(found) < number:
            delivery = connection.recv()
            found += [delivery] if delivery.copy is not None else []
    return found


def never() -> float:
    return 0.0


def test_copies_arrive_in_order(address: str) -> None:
    outbox = MirrorOutbox(address, KEY, predecessors=2)
    for number in range(3):
        outbox.put(copy(number, "GET"))
    outbox.start(never)
    with Listener(address, "AF_UNIX", authkey=KEY) as listener:
        deliveries = received_at(listener, 3)
    assert [(each.copy.number, each.predecessors) for each in deliveries] == [(0, 2), (1, 2), (2, 2)]
    outbox.stop(5)


def test_copies_wait_and_reads_are_left_out_without_a_listener(address: str) -> None:
    outbox = MirrorOutbox(address, KEY, BacklogBounds(2 * KILOBYTES, 2 * KILOBYTES, 3 * KILOBYTES))
    outbox.start(never)
    for number in range(1, 4):
        outbox.put(copy(number, "GET", KILOBYTES // 3))
    for number in range(4, 9):
        outbox.put(copy(number, "GET" if number < 8 else "PUT"))
    with Listener(address, "AF_UNIX", authkey=KEY) as listener:
        deliveries: list[OutboxDelivery] = []
        with listener.accept() as connection:
            while not deliveries or deliveries[-1].copy.number != 8:
                delivery = connection.recv()
                deliveries += [delivery] if delivery.copy is not None else []
    outbox.stop(5)
    last = deliveries[-1]
    assert [each.copy.number for each in deliveries][:3] == [1, 2, 3]
    assert last.left_out == 8 - len(deliveries)
    assert last.left_out >= 3


def test_an_outbox_finds_the_next_listener(address: str) -> None:
    outbox = MirrorOutbox(address, KEY)
    outbox.start(never)
    outbox.put(copy(0, "PUT"))
    with Listener(address, "AF_UNIX", authkey=KEY) as listener:
        assert [each.copy.number for each in received_at(listener, 1)] == [0]
    numbers: list[int] = []
    with Listener(address, "AF_UNIX", authkey=KEY) as listener:
        taking = threading.Thread(target=lambda: numbers.append(received_at(listener, 1)[0].copy.number))
        taking.start()
        number = 1
        while taking.is_alive() and number < 100:
            outbox.put(copy(number, "PUT"))  # the first one may be lost in the closed connection
            taking.join(0.1)
            number += 1
        taking.join(10)
    outbox.stop(5)
    assert numbers


def test_deliveries_have_the_time_up_to_which_all_writes_have_arrived(address: str) -> None:
    outbox = MirrorOutbox(address, KEY)
    in_flight = InFlight(outbox.put)
    tickets = [
        in_flight.begin_request(ShadowRequest(method, "/", (), b"")) for method in ("GET", "PUT", "PUT")
    ]
    outbox.start(in_flight.settled_until)
    with Listener(address, "AF_UNIX", authkey=KEY) as listener, listener.accept() as connection:
        assert connection.recv().settled == tickets[1].started
        for ticket in tickets[1:]:
            in_flight.end_request(ticket, None, "not kept")
        arrived = []
        while (delivery := connection.recv()).settled <= tickets[2].started:
            arrived.append(delivery)
        arrived.append(delivery)
        assert [each.copy.number for each in arrived if each.copy is not None] == [1, 2]
    outbox.stop(5)


@pytest.mark.parametrize(("predecessors", "in_step"), [(0, True), (1, False)])
def test_a_process_that_ended_before_its_first_delivery_counts(
    address: str, predecessors: int, in_step: bool
) -> None:
    """The process was killed while it connected, and its copies are lost."""
    control, stop = multiprocessing.Pipe(duplex=False)
    settings = FollowerSettings("http://127.0.0.1:1", None, None, 0.0, ("127.0.0.1", 0))
    follower = ShadowFollower(settings, address, KEY)
    running = threading.Thread(target=follower.run, args=(control,))
    running.start()
    try:
        with Client(address, "AF_UNIX", authkey=KEY) as connection:
            connection.send(OutboxDelivery(None, 0, 0.0, predecessors))
        wait_for(lambda: follower.status.to_document()["processes"] == predecessors + 1)
    finally:
        stop.close()
        running.join(30)
    assert follower.status.to_document()["in_step"] is in_step


def request(method: str) -> ShadowRequest:
    return ShadowRequest(method, "/", (), b"")


def test_copies_know_the_writes_beside_them() -> None:
    copies: list[MirroredRequest] = []
    in_flight = InFlight(copies.append)
    first_read = in_flight.begin_request(request("GET"))
    write = in_flight.begin_request(request("PUT"))
    second_read = in_flight.begin_request(request("GET"))
    other_write = in_flight.begin_request(request("DELETE"))
    for ticket in (other_write, first_read, write, second_read):
        in_flight.end_request(ticket, None, "not kept")
    alone = in_flight.begin_request(request("POST"))
    in_flight.end_request(alone, None, "not kept")
    assert [(each.number, set(each.beside)) for each in copies] == [
        (3, {1}),
        (0, {1, 3}),
        (1, {3}),
        (2, {1, 3}),
        (4, set()),
    ]
