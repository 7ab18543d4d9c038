"""Tests of ``guest verify``, which compares promises with the kernel. Its exit status tells whether all are
kept.
"""

import json
import os


def verify(agent, *arguments):
    done = agent.cli("guest", "verify", *arguments, "-f", "json")
    return done.returncode, {row["kind"]: row for row in json.loads(done.stdout)}


def test_a_guest_that_another_program_moves_has_a_broken_promise(agent, claim, uid, write_ini):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--name", "web", "--", "sleep", "100")
    status, rows = verify(agent, "web")
    assert status == 0
    assert (rows["cpus"]["state"], rows["cpus"]["promised"]) == ("kept", "dedicated CPUs 0")
    # Otherwise the agent moves it back.
    write_ini(guests="drivers = process\nreconcile_interval = 3600")
    agent.reload()

    def find_broken():
        os.sched_setaffinity(guest["pid"], {1})
        # The reload itself may still move it back, so the rows of this look count.
        status, found = verify(agent)
        return found if status == 3 else None

    rows = agent.wait_for(find_broken)
    assert rows["cpus"]["state"] == "broken"
    assert rows["cpus"]["found"] == f"1 thread elsewhere, such as {guest['pid']} on CPUs 1"


def test_a_host_without_guests_has_no_promises(agent):
    agent.start()
    done = agent.cli("guest", "verify")
    assert done.returncode == 0
    assert "no guest has a promise" in done.stderr
    assert agent.cli("guest", "verify", "nobody").returncode == 1
