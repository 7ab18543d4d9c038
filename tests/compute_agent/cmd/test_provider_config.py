"""Tests that the agent, its checks and its dry run read the files of `[compute] provider_config_location`."""

import json

import pytest

from tests.compute_agent.builders import hold_resources
from tests.compute_agent.cmd.agents import run_here

GOOD = """
meta: {schema_version: '1.0'}
providers:
  - identification: {uuid: $COMPUTE_NODE}
    inventories: {additional: [{CUSTOM_LICENSE: {total: %d}}]}
    traits: {additional: [CUSTOM_SITE_A]}
"""


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "provider_config"
    folder.mkdir()
    return folder


def test_a_check_shows_what_is_added_and_refuses_what_the_start_would(configure, files):
    ini = configure(f"cpu_shared_set = 1\nprovider_config_location = {files}")
    (files / "a.yaml").write_text(GOOD % 7)
    done = run_here(ini, "config", "check", "-f", "json")
    found = [one for one in json.loads(done.stdout)["inventories"] if one["provider"] == "testhost"]
    assert ("CUSTOM_LICENSE", 7) in [(one["resource_class"], one["total"]) for one in found]
    (files / "b.yaml").write_text(GOOD % 7)
    done = run_here(ini, "config", "check", "-f", "json")
    assert done.returncode == 1
    assert "b.yaml: the provider $COMPUTE_NODE has a definition in" in done.stderr


def test_the_agent_follows_its_files_keeps_the_last_good_and_what_is_held(
    agent, write_ini, files, client, uid
):
    lines = "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost"
    write_ini(compute=f"{lines}\nprovider_config_location = {files}")
    (files / "a.yaml").write_text("meta: 1")
    done = agent.run_in_vain()
    assert done.returncode != 0
    assert f"[compute] provider_config_location: {files}/a.yaml: meta.schema_version has to be" in done.stderr

    (files / "a.yaml").write_text(GOOD % 7)
    changes = json.loads(agent.cli("run", "--dry-run", "-f", "json").stdout)
    assert any("CUSTOM_LICENSE none -> 7" in row["change"] for row in changes)
    agent.start()
    root = agent.status()["provider_uuid"]

    def total():
        inventories = client.get_inventories(root)[0] if agent.status()["placement"] == "up" else {}
        return inventories.get("CUSTOM_LICENSE", {}).get("total")

    agent.wait_for(lambda: total() == 7)
    assert "CUSTOM_SITE_A" in client.get_traits(root)[0]

    (files / "a.yaml").write_text("meta: 2")
    agent.wait_for(lambda: "a.yaml" in agent.status()["config_error"])
    assert total() == 7
    (files / "a.yaml").write_text(GOOD % 9)
    agent.wait_for(lambda: total() == 9)
    assert agent.status()["config_error"] == ""

    hold_resources(client, uid, {root: {"CUSTOM_LICENSE": 3}})
    (files / "a.yaml").unlink()
    agent.wait_for(lambda: agent.status()["waiting_removed_classes"])
    assert "there is no file *.yaml" in str(agent.status()["warnings"])
    agent.wait_for(lambda: client.get_inventories(root)[0]["CUSTOM_LICENSE"]["reserved"] == 9)
    assert "CUSTOM_SITE_A" not in client.get_traits(root)[0]
    hold_resources(client, uid, {})
    agent.reload()
    agent.wait_for(lambda: total() is None)
    agent.wait_for(lambda: agent.status()["waiting_removed_classes"] == [])
