"""What an operator reads in the log of the daemon."""


def test_guests_and_providers_are_named_beside_their_uuids(agent, claim, client, uid, numa_node):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--name", "web-1", "--", "sleep", "100")
    assert f"Guest web-1 ({uid}) (pid " in agent.log()
    client._request("DELETE", f"/allocations/{uid}")
    agent.reload()
    agent.wait_for(lambda: f"Guest web-1 ({uid}) holds nothing now" in agent.log())
    claim(uid, VCPU=1)
    agent.reload()
    held = f"Guest web-1 ({uid}) holds 1 VCPU of testhost_NUMA_0 ({numa_node}) now"
    agent.wait_for(lambda: held in agent.log())
    agent.ask("guest", "stop", uid)
    agent.wait_for(lambda: f"Guest web-1 ({uid}) ended with status -15" in agent.log())
