"""Tests of ``cpu noise``, which measures the CPUs of guests, and of the drawing with levels and noise."""

import json


def noise(agent, *arguments):
    done = agent.cli("cpu", "noise", "--seconds", "1", *arguments, "-f", "json")
    return done, json.loads(done.stdout) if done.stdout else None


def test_the_cpus_of_guests_are_measured_and_drawn(agent, claim, uid):
    claim(uid, PCPU=1)
    _, rows = noise(agent)
    assert rows == []
    agent.ask("guest", "run", "--uuid", uid, "--name", "web", "--", "sleep", "100")
    for arguments in ((), ("--guest", "web"), ("--guest", uid)):
        done, [row] = noise(agent, *arguments)
        assert done.returncode == 0
        assert (row["cpu"], row["guest"], row["level"], row["by"]) == (0, "web", "shared", "counters")
        assert row["interrupts"] >= 0
    done, _ = noise(agent, "--guest", "nobody")
    assert (done.returncode, "no guest nobody holds dedicated CPUs" in done.stderr) == (1, True)
    tree = agent.cli("topology", "show", "--noise", "1").stdout
    assert "interruptions a second by CPU: " in tree
    assert "interruptions a second by CPU" not in agent.cli("topology", "show").stdout


def test_free_cpus_are_for_the_tracer_or_a_reason_why_not(agent, claim, uid):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    done, rows = noise(agent, "--osnoise")
    assert rows == []
    assert "guests hold all dedicated CPUs" in done.stderr
