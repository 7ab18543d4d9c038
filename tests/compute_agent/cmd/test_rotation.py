"""Tests of the agent's log while logrotate moves its file away."""

from tests.packages.rotation import Rotation, lines_of


def test_the_agent_continues_its_log_in_a_new_file(agent, write_ini, tmp_path):
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
