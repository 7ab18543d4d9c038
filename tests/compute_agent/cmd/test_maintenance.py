"""Tests of maintenance mode: an operator keeps new guests away, and the status shows the reason."""

import pytest

from tests.compute_agent.cmd.agents import FULL, QOS

DISABLED, OURS, WATERMARK = "COMPUTE_STATUS_DISABLED", "CUSTOM_HOST_DISABLED", "CUSTOM_WATERMARK_REACHED"
REASON = "new memory, ticket 4711"


@pytest.fixture
def switches(agent, client, numa_node):
    """A function that reads the traits by which the reported host keeps new guests away."""
    root = agent.status()["provider_uuid"]
    return lambda: client.get_traits(root)[0] & {DISABLED, OURS, WATERMARK}


@pytest.fixture
def nova(agent, client, numa_node):
    """A function that sets or removes the trait as nova-compute does when its service is disabled or
    enabled.
    """
    root = agent.status()["provider_uuid"]

    def nova(disabled):
        traits, generation = client.get_traits(root)
        client.set_traits(root, traits | {DISABLED} if disabled else traits - {DISABLED}, generation)

    return nova


def test_the_host_is_disabled_and_enabled(agent, switches, client, write_ini, metrics_port, metric):
    agent.kill()
    write_ini(daemon=f"http_port = {metrics_port}")
    agent.start_reporting()

    def is_disabled():
        return metric("compute_agent_host_disabled") == 1.0

    def candidates():
        query = f"resources=VCPU:1&root_required=!{DISABLED}"  # as Nova asks
        return client.send_request(
            "GET", f"/allocation_candidates?{query}", shape={"allocation_requests": [{}]}
        )["allocation_requests"]

    assert (agent.status()["disabled"], is_disabled(), len(candidates())) == (False, False, 1)
    shown = agent.ask("host", "disable", "--reason", REASON)
    assert (shown["disabled"], shown["disabled_reason"]) == (True, REASON)
    assert shown["new_guests"] == "kept away by maintenance"
    assert shown.items() <= agent.status().items()
    assert (switches(), is_disabled(), candidates()) == ({DISABLED, OURS}, True, [])
    assert f"The host was disabled by an operator: {REASON}" in agent.log()
    agent.ask("host", "disable", "--reason", "longer than thought")
    assert agent.status()["disabled_since"] == shown["disabled_since"]
    shown = agent.ask("host", "enable")
    assert shown == {"disabled": False, "disabled_reason": "", "disabled_since": None, "new_guests": "let in"}
    assert (switches(), is_disabled(), len(candidates())) == (set(), False, 1)


def test_maintenance_outlives_the_agent(agent, switches):
    shown = agent.ask("host", "disable", "--reason", REASON)
    for _ in range(2):
        agent.kill()
        agent.start_reporting()
        assert shown.items() <= agent.status().items()
        assert switches() == {DISABLED, OURS}
    agent.ask("host", "enable")
    agent.kill()
    agent.start_reporting()
    assert (agent.status()["disabled"], switches()) == (False, set())


def test_maintenance_outlives_the_state_file_without_its_reason(agent, switches):
    agent.ask("host", "disable", "--reason", REASON)
    agent.kill()
    (agent.folder / "state.json").unlink()
    for _ in range(2):
        agent.start_reporting()
        assert (agent.status()["disabled"], agent.status()["disabled_reason"]) == (True, "")
        assert switches() == {DISABLED, OURS}
        agent.kill()
    agent.start()
    agent.ask("host", "enable")
    assert switches() == set()


def test_a_host_that_nova_disabled_stays_disabled(agent, switches, nova):
    nova(disabled=True)
    shown = agent.ask("host", "disable", "--reason", REASON)
    assert switches() == {DISABLED}
    assert shown["new_guests"] == f"kept away by {DISABLED} of another program"
    agent.ask("host", "enable")
    assert switches() == {DISABLED}


def test_when_nova_enables_its_service_the_host_stays_disabled(agent, switches, nova):
    nova(disabled=True)
    agent.ask("host", "disable", "--reason", REASON)
    nova(disabled=False)
    agent.reload()
    agent.wait_for(lambda: switches() == {DISABLED, OURS})
    nova(disabled=False)
    agent.reload()
    agent.wait_for(lambda: switches() == {DISABLED, OURS})


def test_watermarks_and_maintenance_keep_new_guests_away_together(agent, switches, write_ini):
    write_ini(qos=QOS, **{"watermark:memory": FULL + "disable_scheduling = 0.1%"})
    agent.wait_for(lambda: switches() == {DISABLED, WATERMARK})
    agent.ask("host", "disable", "--reason", REASON)
    assert switches() == {DISABLED, WATERMARK, OURS}
    assert agent.status()["new_guests"] == "kept away by watermark and maintenance"
    assert agent.ask("host", "enable")["new_guests"] == "kept away by watermark"
    agent.ask("host", "disable", "--reason", REASON)
    write_ini(qos=QOS, **{"watermark:memory": FULL + "disable_scheduling = 100%"})
    agent.wait_for(lambda: switches() == {DISABLED, OURS})


def test_maintenance_is_reported_when_placement_answers_again(agent, switches, live_placement):
    live_placement.stop()
    shown = agent.ask("host", "disable", "--reason", REASON)
    assert (shown["disabled"], shown["new_guests"]) == (True, "let in")
    live_placement.start()
    agent.wait_for(lambda: switches() == {DISABLED, OURS})


@pytest.mark.parametrize("reason", ["", "two\nlines", "x" * 256])
def test_a_reason_that_cannot_be_shown_is_refused(agent, switches, reason):
    assert agent.cli("host", "disable", "--reason", reason).returncode == 1
    assert agent.cli("host", "disable").returncode == 2
    assert (agent.status()["disabled"], switches()) == (False, set())
