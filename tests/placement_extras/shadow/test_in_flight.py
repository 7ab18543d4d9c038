"""Tests that each copy has the numbers of the writes that were in flight at the same time."""

from placement_extras.shadow.exchange import MirroredRequest, ShadowRequest
from placement_extras.shadow.proxy import InFlight


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
