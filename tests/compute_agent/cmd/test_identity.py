"""Tests that an agent finds the host's provider after the loss of its state folder or a change of the host's
name.
"""

import json
import shutil

from compute_agent.inventory.options import host_name


def test_a_lost_state_folder_is_reported_with_the_uuid_to_write_and_nothing_is_lost(
    agent, claim, client, numa_node, uid
):
    claim(uid, PCPU=1)
    before = agent.status()["provider_uuid"]
    agent.kill()
    shutil.rmtree(agent.folder)
    agent.start()
    agent.wait_for(lambda: agent.status()["refused"])
    refused = agent.status()["refused"][0]
    assert f"the name testhost belongs to the provider {before}" in refused
    assert f"write {before} into the file compute_id in [DEFAULT] state_path" in refused
    assert refused in agent.log() or before in agent.log()

    agent.kill()
    (agent.folder / "compute_id").write_text(before)
    agent.start_reporting()
    assert (agent.status()["provider_uuid"], agent.status()["refused"]) == (before, [])
    assert client.get_allocations(uid).resources == {numa_node: {"PCPU": 1}}


def test_another_host_name_does_not_rename_the_provider_but_the_option_does(agent, client, write_ini):
    write_ini(compute="cpu_shared_set = 0-1\nresource_provider_name = oldname")
    agent.start_reporting()
    uid = agent.status()["provider_uuid"]
    agent.kill()

    def names():
        return sorted(provider.name for provider in client.providers_in_tree(uid))

    before = names()
    write_ini(compute="cpu_shared_set = 0-1")
    agent.start_reporting()
    (warning,) = agent.status()["warnings"]
    assert warning.startswith(f"This host is called {host_name()} now; its provider keeps the name oldname.")
    assert f"set [compute] resource_provider_name = {host_name()}" in warning
    assert warning in agent.log()
    assert (agent.status()["provider"], names()) == ("oldname", before)
    done = agent.cli("config", "check", "-f", "json")
    assert warning in json.loads(done.stdout)["warnings"]

    write_ini(compute="cpu_shared_set = 0-1\nresource_provider_name = newname")
    agent.wait_for(lambda: "newname" in names())
    assert (
        "The provider oldname is renamed to newname, as [compute] resource_provider_name says" in agent.log()
    )
    agent.wait_for(lambda: agent.status()["warnings"] == [])
    agent.wait_for(lambda: names() == [name.replace("oldname", "newname") for name in before])


def test_a_copy_of_the_state_folder_of_another_host_is_refused(agent, client, write_ini, tmp_path):
    """Two agents with one uuid would write one provider in turns."""
    agent.start_reporting()
    root = agent.status()["provider_uuid"]
    shutil.copytree(agent.folder, tmp_path / "copy", ignore=lambda folder, names: {"agent.sock"})
    path = tmp_path / "copy" / "host_id"
    document = json.loads(path.read_text())
    document["host"] = {"name": "first.example", "machine": "1" * 32}
    path.write_text(json.dumps(document))
    before = client.providers_in_tree(root)
    ini = write_ini("copy.ini", DEFAULT=f"state_path = {tmp_path / 'copy'}\nlock_path = {tmp_path / 'locks'}")

    for command in (
        ["run"],
        ["run", "--dry-run"],
        ["release", "--provider"],
        ["release", "--dry-run"],
        ["config", "check"],
    ):
        done = agent.cli(*command, ini=ini)
        assert done.returncode == 1
        assert "belongs to the host first.example, but this is the host" in done.stdout + done.stderr
    assert client.providers_in_tree(root) == before
    assert not list((tmp_path / "copy").glob("released*"))

    # The operator says that this host replaces the other one.
    agent.kill()
    path.unlink()
    assert agent.cli("run", "--dry-run", ini=ini).returncode == 0
