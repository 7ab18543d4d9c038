"""Tests of log lines of the daemon that an operator reads."""

import pytest

from tests.compute_agent.builders import release_resources
from tests.packages.rotation import Rotation, lines_of


def test_guests_and_providers_are_named_beside_their_uuids(agent, claim, client, uid, numa_node):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--name", "web-1", "--", "sleep", "100")
    assert f"Guest web-1 ({uid}) (pid " in agent.log()
    release_resources(client, uid)
    agent.reload()
    agent.wait_for(lambda: f"The allocation of guest web-1 ({uid}) is now: nothing" in agent.log())
    claim(uid, VCPU=1)
    agent.reload()
    held = f"The allocation of guest web-1 ({uid}) is now: 1 VCPU of testhost_NUMA_0 ({numa_node})"
    agent.wait_for(lambda: held in agent.log())
    agent.ask("guest", "stop", uid)
    agent.wait_for(lambda: f"Guest web-1 ({uid}) ended: signal 15 (SIGTERM)" in agent.log())


def test_a_guest_without_an_allocation_causes_one_warning(agent, claim, client, uid, numa_node):
    agent.ask("guest", "run", "--uuid", uid, "--name", "web-1", "--", "sleep", "100")
    warning = f"Guest web-1 ({uid}) has no allocation on this host, and runs on shared CPUs 1"
    agent.wait_for(lambda: warning in agent.log())
    claim(uid, PCPU=1)
    agent.reload()
    agent.wait_for(lambda: agent.ask("guest", "show", uid)["kind"] == "dedicated")
    assert agent.log().count(warning) == 1
    release_resources(client, uid)
    agent.reload()
    agent.wait_for(lambda: agent.log().count(f"Guest web-1 ({uid}) has no allocation on this host") == 2)


def test_a_refused_configuration_is_logged_with_its_own_reason_and_no_other(agent, write_ini):
    agent.start()
    write_ini(compute="cpu_dedicated_set = 77")
    agent.wait_for(lambda: "The old configuration stays" in agent.log())
    (line,) = [line for line in agent.log().splitlines() if "The old configuration stays" in line]
    reason = agent.status()["config_error"]
    assert "CPUs 77 are absent" in reason
    assert line.endswith(f"The old configuration stays in force: {reason}")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", "[placement] auth_type is not set, so the agent cannot authenticate to Placement"),
        (
            "auth_type = none\nendpoint_override = http://127.0.0.1:1\nconnect_retries = 0",
            "GET /: no answer: Unable to establish connection to http://127.0.0.1:1/: Connection refused;"
            " does it run at the address in [placement] (endpoint_override, or endpoint or auth_url of"
            " auth_type)?",
        ),
    ],
)
def test_the_log_has_the_original_reason_why_placement_is_away(agent, write_ini, lines, reason):
    write_ini(placement=lines)
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "away")
    assert agent.status()["last_error"] == reason
    assert f"Report to Placement failed, the agent tries again: {reason}\n" in agent.log()


def test_a_token_without_permission_is_logged_with_the_options_to_check(agent, write_ini, live_placement):
    write_ini(placement=f"auth_type = admin_token\nendpoint = {live_placement.url}\ntoken = wrong")
    agent.start()
    agent.wait_for(lambda: agent.status()["last_error"])
    reason = agent.status()["last_error"]
    assert "HTTP 403: Policy does not allow" in reason
    assert reason.endswith(
        "; check username and password, or token, in [placement]: the user needs the role service or admin"
    )


def test_a_plugin_that_lacks_options_names_them_when_the_agent_does_not_start(agent, write_ini):
    write_ini(placement="auth_type = password\nusername = placement\npassword = secret")
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "The agent does not start: [placement] cannot be used:"
        " Auth plugin requires parameters which were not given: auth_url"
    )


def test_warnings_of_each_attempt_to_connect_are_logged_once(agent, write_ini):
    write_ini(
        DEFAULT=f"state_path = {agent.folder}\ndebug = true",
        placement="auth_type = none\nendpoint_override = http://127.0.0.1:1\nconnect_retries = 2\n"
        "connect_retry_delay = 0.01\nreport_retry_maximum = 1",
    )
    agent.start()
    agent.wait_for(lambda: agent.log().count("The next report is due") >= 3)
    assert agent.log().count("WARNING keystoneauth") == 1
    assert agent.log().count("Report to Placement failed") == 1


def test_a_plugin_that_does_not_exist_is_named_when_the_agent_does_not_start(agent, write_ini):
    write_ini(placement="auth_type = no_such_plugin")
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert "The agent does not start: [placement] auth_type = no_such_plugin" in done.stderr.splitlines()[-1]


def test_debug_lines_report_decisions_and_follow_the_option_at_run_time(agent, write_ini, claim, uid):
    claim(uid, PCPU=1)
    assert " DEBUG " not in agent.log()
    defaults = f"state_path = {agent.folder}"
    write_ini(DEFAULT=f"{defaults}\ndebug = true")
    agent.wait_for(lambda: "DEBUG compute_agent.loops.reports [-] The next report is due in" in agent.log())
    agent.ask("guest", "run", "--uuid", uid, "--name", "web-1", "--", "sleep", "100")
    for words in (
        f"DEBUG compute_agent.report.transport [-] GET /allocations/{uid}: HTTP 200 in ",
        f"DEBUG compute_agent.pipeline.placer [-] Guest web-1 ({uid}) with allocation 1 PCPU of testhost",
        f"The controller cpuset has compared guest web-1 ({uid}) with its settings: the guest was changed",
        "DEBUG compute_agent.pipeline.worker [-] Handling event StartGuest took ",
    ):
        assert words in agent.log()
    write_ini(DEFAULT=defaults)
    agent.wait_for(lambda: agent.log().rstrip().endswith("The configuration and the host were read again"))
    before = agent.log().count(" DEBUG ")
    agent.ask("guest", "stop", uid)
    assert agent.log().count(" DEBUG ") == before


def test_the_agent_continues_its_log_in_a_new_file_after_a_rotation(agent, write_ini, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o750)
    rotate = Rotation("compute-agent", tmp_path, logs)
    state = f"state_path = {tmp_path / 'state'}\nlock_path = {tmp_path / 'locks'}"
    write_ini(DEFAULT=f"{state}\nlog_dir = {logs}\nlog_file = agent.log\nuse_stderr = false")
    said = "The configuration and the host were read again"

    def count():
        return sum(said in line for line in lines_of(logs, "agent.log"))

    agent.start()
    for number in range(1, 5):
        agent.reload()
        agent.wait_for(lambda number=number: count() == number)
        rotate("--force")
        assert said in (logs / "agent.log.1").read_text()
    agent.reload()
    agent.wait_for(lambda: count() == 5)
    assert said in (logs / "agent.log").read_text()
