"""A lost request is recorded with its error and its moment."""

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from packaging.version import Version

from tests.placement.failover.judge import Answer, Judge, JudgedClient, UnansweredRequest
from tests.placement.serving import RunningService
from tests.upgrade.machines import ServiceStop, describe_moment
from tests.upgrade.outcome import UpgradeOutcome

STOPS = [ServiceStop(10.0, "service-0", "0.1.0 (wheel)"), ServiceStop(20.0, "service-1", "0.1.0 (wheel)")]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (8.0, "before any stop, "),
        (9.75, "-0.250 s since service-0 of 0.1.0 (wheel) began to stop, "),
        (18.0, "+8.000 s since service-0 of 0.1.0 (wheel) began to stop, "),
        (21.5, "+1.500 s since service-1 of 0.1.0 (wheel) began to stop, "),
    ],
)
def test_a_moment_is_described_by_the_last_stop(at: float, words: str) -> None:
    assert describe_moment(STOPS, at) == words


@pytest.fixture
def once() -> Iterator[int]:
    """The port of a server that answers the first request of a connection, and closes at the second one."""

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            client.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_a_request_without_an_answer_is_recorded(once: int) -> None:
    judge = Judge([RunningService(f"http://127.0.0.1:{once}", 0)], moment=lambda _at: "at noon, ")
    client = JudgedClient(judge, random.Random(1))
    assert client.get("/first", 0) == {}
    with pytest.raises(UnansweredRequest):
        client.get("/second", 0)
    (wrong,) = judge.wrong
    assert wrong.startswith("unanswered: GET /second at service 0, at noon, ")
    assert "s after the last answer to this client there" in wrong
    assert "RemoteDisconnected" in wrong
    assert judge.counts["unanswered"] == 1


@pytest.mark.parametrize(
    ("kind", "release", "asked", "lost"),
    [
        ("galera", "0.2.0", 5.0, 0),
        ("galera", "0.2.0", 9.0, 1),
        ("galera", "0.3.0", 5.0, 1),
        ("mariadb", "0.2.0", 5.0, 1),
    ],
)
def test_only_old_releases_on_a_cluster_may_refuse_reads_during_the_migration(
    kind: str, release: str, asked: float, lost: int
) -> None:
    judge = Judge([RunningService("http://127.0.0.1:1", 0)])
    judge.counts["GET 503"] += 1
    judge.answers.append(Answer(0, asked, asked + 0.1, refused=True))
    outcome = UpgradeOutcome(kind, Version(release), "wheel", judge=judge, schema_change=(4.0, 8.0))
    assert (outcome.lost, outcome.ended_reads, bool(outcome.problems)) == (lost, 1 - lost, bool(lost))
