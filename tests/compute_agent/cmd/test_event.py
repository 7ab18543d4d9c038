"""Tests of `compute-agent event list` and `guest history`, which read files and need no daemon."""

import itertools
import json
import time

import pytest

from compute_agent.cmd import event as event_command
from compute_agent.events.event import AgentEvent, EventKind
from compute_agent.events.store import EventStore
from tests.compute_agent.cmd.agents import run_here

ONE = "11111111-0000-4000-8000-000000000001"


@pytest.fixture
def store(tmp_path):
    (tmp_path / "state").mkdir()
    store = EventStore(tmp_path / "state" / "events.jsonl", 100, 10**6)
    now = time.time()
    store.append(
        [
            AgentEvent(
                now - 3 * 86400,
                EventKind.START,
                "Guest web started",
                guest=ONE,
                name="web",
                reason="it holds 2",
            ),
            AgentEvent(now - 60, EventKind.DISABLE_SCHEDULING, "Watermark: keep new guests away for cpu"),
            AgentEvent(now - 30, EventKind.EVICT, "Guest db was evicted", guest="two", name="db"),
        ]
    )
    yield store
    store.close()


@pytest.fixture
def cli(tmp_path, store):
    ini = tmp_path / "agent.ini"
    ini.write_text(f"[DEFAULT]\nstate_path = {tmp_path / 'state'}\n")

    def cli(*arguments):
        done = run_here(ini, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return cli


def test_events_of_the_last_day_are_listed_by_default(cli):
    rows = json.loads(cli("event", "list", "-f", "json"))
    assert [(row["id"], row["kind"], row["guest"]) for row in rows] == [
        (2, "disable_scheduling", ""),
        (3, "evict", "two"),
    ]
    assert len(json.loads(cli("event", "list", "--since", "7d", "-f", "json"))) == 3
    assert "Guest db was evicted" in cli("event", "list", "--guest", "db")


def test_the_history_of_a_guest_is_found_by_name_or_uuid(cli):
    for guest in ("web", ONE):
        (row,) = json.loads(cli("guest", "history", guest, "-f", "json"))
        assert (row["kind"], row["reason"]) == ("start", "it holds 2")


def test_events_are_filtered_by_kind(cli):
    assert "Guest web started" in cli("event", "list", "--since", "7d", "--kind", "start")
    kinds = ("--kind", "evict", "--kind", "start")
    rows = json.loads(cli("event", "list", "--since", "7d", *kinds, "-f", "json"))
    assert [row["kind"] for row in rows] == ["start", "evict"]
    assert cli("guest", "history", "web", "--kind", "evict").strip() == ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("event list --guest web", "Nothing since then: the latest older event is of "),
        ("event list --kind verdict", "Nothing so far: no event of kind verdict is kept."),
        ("guest history web --kind evict", "Nothing so far: no event of guest web of kind evict is kept."),
        ("guest history nobody", "The agent has stored no event of a guest nobody: no agent answers on "),
        (
            "event list --guest nobody",
            "The agent has stored no event of a guest nobody: no agent answers on ",
        ),
    ],
)
def test_an_empty_list_says_why_and_an_unknown_guest_is_an_error(tmp_path, cli, command, why):
    done = run_here(tmp_path / "agent.ini", *command.split())
    assert done.stderr.startswith(why)
    assert done.returncode == ("nobody" in command)


def test_a_guest_without_events_is_known(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(event_command.EventList, "ask_daemon", lambda self, method, params: {})
    done = run_here(tmp_path / "agent.ini", "event", "list", "--guest", "new")
    assert done.stderr.startswith("Nothing so far: no event of guest new is kept in ")
    assert done.returncode == 0


def test_new_events_are_followed_until_interrupted(cli, store, monkeypatch):
    rounds = itertools.count()

    def sleep(seconds):
        match next(rounds):
            case 0:
                store.append(
                    [AgentEvent(time.time(), EventKind.LEAVE, "Guest db left", guest="two", name="db")]
                )
            case 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(event_command.time, "sleep", sleep)
    lines = cli("event", "list", "--guest", "db", "--follow").splitlines()
    assert [line.partition(" evict done: ")[2] or line.partition(" leave done: ")[2] for line in lines] == [
        "Guest db was evicted",
        "Guest db left",
    ]
    rounds = itertools.count(1)
    (line,) = cli("guest", "history", "web", "--follow", "-f", "json").splitlines()
    assert json.loads(line)["name"] == "web"
