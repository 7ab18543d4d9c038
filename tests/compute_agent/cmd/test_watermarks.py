"""Tests of a daemon with watermarks that is killed: the next daemon removes all limits."""

import signal

import pytest

from compute_agent.report.answers import NotFoundError
from tests.compute_agent.cmd.agents import FULL, QOS, scrape_metrics

DISABLED = "COMPUTE_STATUS_DISABLED"

KEEP_AWAY = {"qos": QOS, "watermark:memory": FULL + "disable_scheduling = 0.1%"}
LET_IN = {"qos": QOS, "watermark:memory": FULL + "disable_scheduling = 100%"}
EVICT = {"qos": QOS, "watermark:memory": FULL + "evict = 0.1%"}
WRONG = {"watermark:cpu": "metric = cpu_usage\nthrottle_down = 50%\nthrottle_up = 60%"}
WRONG_WORDS = "[watermark:cpu] throttle_up = 60% is not below [watermark:cpu] throttle_down = 50%"

# Shells need not look at SIGTERM.
STUBBORN = ("--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")


@pytest.fixture
def root_traits(agent, client):
    """The traits of the host's root provider in Placement."""

    def root_traits():
        try:
            return client.get_traits(agent.status()["provider_uuid"])[0]
        except NotFoundError:
            return frozenset()  # it has not been reported yet

    return root_traits


def kept_away(agent):
    rows = agent.ask("watermark", "list")
    return [row["in_force"] for row in rows if row["in_force"]] == [["new guests are kept away"]]


def test_the_list_shows_amounts_with_their_units_and_the_line_that_keeps_guests_away(agent, write_ini):
    write_ini(
        qos=QOS,
        **{
            "watermark:cpu": "metric = cpu_usage\ndisable_scheduling = 1000\nfor_samples = 1",
            "watermark:memory": FULL.replace("cool_down = 0", "cool_down = 1000")
            + "disable_scheduling = 1.5M",
            "watermark:waiting": "metric = io_pressure\ndisable_scheduling = 100%\nfor_samples = 1",
        },
    )
    agent.start()
    rows = agent.wait_for(
        lambda: [row for row in agent.ask("watermark", "list") if row["section"] == "memory" and row["gap"]]
    )
    assert (rows[0]["line"], rows[0]["amount"], rows[0]["unit"]) == ("1572864", 1572864.0, "bytes")
    agent.wait_for(lambda: kept_away(agent))
    in_force = {row["section"]: row["in_force"] for row in agent.ask("watermark", "list")}
    assert in_force == {"cpu": [], "memory": ["new guests are kept away"], "waiting": []}
    table = agent.cli("watermark", "list", "--fit-width", "-c", "section", "-c", "line", "-c", "usage").stdout
    shown = {words[1]: words[3:] for words in map(str.split, table.splitlines()) if len(words) > 4}
    assert shown["cpu"][:2] == ["1000", "cores"]
    assert shown["memory"][:2] == ["1.5", "MiB"]
    assert shown["memory"][4] in ("MiB", "GiB", "TiB")
    assert shown["waiting"][:2] == ["100", "%"]


@pytest.mark.parametrize("later", [LET_IN, {}], ids=["below the line", "without a line"])
def test_new_guests_are_kept_away_and_let_in_by_the_next_agent(agent, write_ini, root_traits, later):
    write_ini(**KEEP_AWAY)
    agent.start()
    agent.wait_for(lambda: DISABLED in root_traits())
    assert kept_away(agent)
    agent.kill()
    agent.start_reporting()
    assert DISABLED in root_traits()
    agent.kill()
    write_ini(**later)
    agent.start()
    agent.wait_for(lambda: DISABLED not in root_traits())


def test_new_guests_are_let_in_though_the_state_was_lost(agent, write_ini, root_traits):
    write_ini(**KEEP_AWAY)
    agent.start()
    agent.wait_for(lambda: DISABLED in root_traits())
    agent.kill()
    for name in ("state.json", "throttling.json"):
        (agent.folder / name).unlink()
    write_ini()
    agent.start()
    agent.wait_for(lambda: DISABLED not in root_traits())


def test_new_guests_are_let_in_when_placement_was_away_meanwhile(
    agent, write_ini, root_traits, live_placement
):
    write_ini(**KEEP_AWAY)
    agent.start()
    agent.wait_for(lambda: DISABLED in root_traits())
    live_placement.stop()
    agent.kill()
    write_ini(**LET_IN)
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "away")
    live_placement.start()
    agent.wait_for(lambda: DISABLED not in root_traits())


def test_a_reload_takes_other_lines_and_refuses_contradictions(agent, write_ini, root_traits):
    write_ini(**KEEP_AWAY)
    agent.start()
    agent.wait_for(lambda: DISABLED in root_traits())
    write_ini(**KEEP_AWAY | WRONG)
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for(lambda: agent.status()["config_error"] == WRONG_WORDS)
    assert kept_away(agent)
    write_ini(**LET_IN)
    agent.wait_for(lambda: DISABLED not in root_traits())
    assert agent.status()["config_error"] == ""


def test_contradictions_are_refused_at_the_start_and_by_config_check(agent, write_ini):
    write_ini(**WRONG)
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert WRONG_WORDS in done.stderr
    checked = agent.cli("config", "check")
    assert checked.returncode == 1
    assert checked.stderr.count(WRONG_WORDS) == 1
    write_ini(**KEEP_AWAY)
    assert agent.ask("config", "check")["watermarks"] == ["memory"]


def test_an_eviction_is_finished_after_the_agent_was_killed(agent, write_ini, numa_node, claim, client, uid):
    other = "44444444-0000-4000-8000-000000000001"
    for guest in (uid, other):
        claim(guest, VCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--qos-class", "BE", *STUBBORN)
    agent.ask("guest", "run", "--uuid", other, *STUBBORN)
    write_ini(**EVICT)
    agent.wait_for(lambda: f"evict {uid} for memory_usage (memory)" in agent.log())
    agent.kill()
    assert client.get_allocations(uid).resources
    write_ini(**EVICT | {"qos": "interval = 0.1\nevict_grace = 0.2"})
    agent.start()
    agent.wait_for(lambda: not client.get_allocations(uid).resources)
    assert [guest["uuid"] for guest in agent.ask("guest", "list")] == [other]
    assert client.get_allocations(other).resources
    agent.wait_for(lambda: f"Guest {uid} was evicted" in agent.log())


def test_an_eviction_is_finished_without_watermarks(agent, write_ini, numa_node, claim, client, uid):
    claim(uid, VCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--qos-class", "BE", *STUBBORN)
    write_ini(**EVICT)
    agent.wait_for(lambda: f"evict {uid}" in agent.log())
    agent.kill()
    write_ini(qos="evict_grace = 0.2")
    agent.start()
    agent.wait_for(lambda: not client.get_allocations(uid).resources)


def test_metrics_of_watermarks_are_served(agent, write_ini, metrics_port):
    write_ini(**KEEP_AWAY, daemon=f"http_port = {metrics_port}")
    agent.start()

    def metrics():
        return scrape_metrics(metrics_port)

    agent.wait_for(lambda: "compute_agent_scheduling_disabled 1.0" in metrics())
    assert 'actions_total{action="disable_scheduling",metric="",outcome="done"} 1.0' in metrics()
    assert 'compute_agent_watermark_usage{domain="",metric="memory_usage"}' in metrics()


def test_metrics_that_can_be_watched_are_listed_without_a_daemon(agent):
    rows = {row["metric"]: row for row in agent.ask("watermark", "list", "--metrics")}
    assert rows["cpu_usage"] == {
        "metric": "cpu_usage",
        "unit": "cores",
        "action_priority": 7,
        "throttled_by": "cpu_quota",
        "evicts": True,
        "computed": "throttle evict",
    }
    assert rows["memory_pressure"]["computed"] == ""


def test_a_test_shows_the_actions_at_a_usage_and_takes_none(agent, write_ini, uid):
    write_ini(
        qos=QOS, **{"watermark:memory": FULL + "mode = preview\ndisable_scheduling = 99.9%\nevict = 99.9%"}
    )
    agent.start_reporting()
    agent.ask("guest", "run", "--uuid", uid, "--name", "web", "--qos-class", "BE", "--", "sleep", "100")

    def rehearse(usage):
        return agent.ask("watermark", "test", "--metric", "memory_usage", "--usage", usage)

    agent.wait_for(lambda: [row["name"] for row in rehearse("100%")] == ["", "web"])
    assert rehearse("100%")[1]["action"] == f"evict {uid} for memory_usage (memory)"
    assert rehearse("50%") == []
    assert [guest["uuid"] for guest in agent.ask("guest", "list")] == [uid]
