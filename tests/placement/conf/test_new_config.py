"""Tests of the sources from which the service reads its options."""

import pytest
from oslo_config import cfg

from placement.cmd.api import main
from placement.conf import files_from_environment, new_config

ALL = {
    ("api", "auth_strategy"): "keystone",
    ("placement", "randomize_allocation_candidates"): False,
    ("placement", "incomplete_consumer_project_id"): "00000000-0000-0000-0000-000000000000",
    ("placement", "incomplete_consumer_user_id"): "00000000-0000-0000-0000-000000000000",
    ("placement", "allocation_conflict_retry_count"): 10,
    ("placement", "max_allocation_candidates"): -1,
    ("placement", "allocation_candidates_generation_strategy"): "depth-first",
    ("placement", "additional_resource_classes"): ["LLC", "MBA"],
    ("placement_database", "connection"): "sqlite:////var/lib/placement/placement.sqlite",
    ("placement_database", "sync_on_startup"): False,
    ("placement_database", "connection_recycle_time"): 3600,
    ("placement_database", "max_pool_size"): 5,
    ("oslo_policy", "policy_file"): "policy.yaml",
    ("oslo_policy", "enforce_new_defaults"): True,
    ("cors", "allowed_origin"): None,
    ("oslo_middleware", "enable_proxy_headers_parsing"): False,
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("OS_PLACEMENT_CONFIG_DIR", raising=False)
    monkeypatch.delenv("OS_PLACEMENT_CONFIG", raising=False)


@pytest.mark.parametrize(("group", "name"), ALL)
def test_an_option_that_is_not_set_has_the_default_of_openstack_placement(group, name):
    conf = new_config(config_files=[])
    assert conf[group][name] == ALL[group, name]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("auth_strategy = noauth2   # comment", "found 'noauth2   # comment' (in "),
        ("auth_strategy = nauth", "found 'nauth'"),
    ],
)
def test_a_value_that_is_refused_is_told_with_section_option_and_remedy(tmp_path, capsys, line, reason):
    (tmp_path / "placement.conf").write_text(f"[api]\n{line}\n")
    assert main(["--config-file", str(tmp_path / "placement.conf")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("placement-api: [api] auth_strategy: Valid values are [keystone, noauth2], but ")
    assert reason in told
    assert ("in an ini file all text after the equals sign is the value" in told) == ("#" in line)


def test_every_configuration_is_a_fresh_one():
    first, second = new_config(config_files=[]), new_config(config_files=[])
    first.set_override("auth_strategy", "noauth2", group="api")
    assert second.api.auth_strategy == "keystone"


def test_the_file_of_the_folder_in_the_environment_is_read(tmp_path, monkeypatch):
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = noauth2\n")
    monkeypatch.setenv("OS_PLACEMENT_CONFIG_DIR", str(tmp_path))
    assert new_config().api.auth_strategy == "noauth2"


def test_a_file_on_the_command_line_counts_instead_of_the_one_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "placement.conf").write_text("[api]\nauth_strategy = noauth2\n")
    (tmp_path / "other.conf").write_text("[placement]\nmax_allocation_candidates = 7\n")
    monkeypatch.setenv("OS_PLACEMENT_CONFIG_DIR", str(tmp_path))
    conf = new_config(["--config-file", str(tmp_path / "other.conf")])
    assert (conf.api.auth_strategy, conf.placement.max_allocation_candidates) == ("keystone", 7)


def test_an_environment_variable_counts_more_than_the_file(tmp_path, monkeypatch):
    file = tmp_path / "placement.conf"
    file.write_text("[placement_database]\nconnection = sqlite:///file\n")
    monkeypatch.setenv("OS_PLACEMENT_DATABASE__CONNECTION", "sqlite:///environment")
    conf = new_config(config_files=[str(file)])
    assert conf.placement_database.connection == "sqlite:///environment"


def test_the_old_place_of_auth_strategy_still_counts(tmp_path):
    file = tmp_path / "placement.conf"
    file.write_text("[DEFAULT]\nauth_strategy = noauth2\n")
    assert new_config(config_files=[str(file)]).api.auth_strategy == "noauth2"


def test_options_of_a_command_are_read_beside_those_of_all():
    conf = new_config(["--bind", "[::1]:80"], config_files=[], cli_opts=[cfg.StrOpt("bind")])
    assert conf.bind == "[::1]:80"


@pytest.mark.parametrize(
    ("environ", "files"),
    [
        ({}, None),
        ({"OS_PLACEMENT_CONFIG_DIR": "  "}, None),
        ({"OS_PLACEMENT_CONFIG_DIR": "/srv"}, ["/srv/placement.conf"]),
        ({"OS_PLACEMENT_CONFIG": "/srv/a.conf"}, ["/srv/a.conf"]),
        ({"OS_PLACEMENT_CONFIG_DIR": "/srv", "OS_PLACEMENT_CONFIG": "a.conf"}, ["/srv/a.conf"]),
        ({"OS_PLACEMENT_CONFIG_DIR": "/srv", "OS_PLACEMENT_CONFIG": "/etc/a.conf"}, ["/etc/a.conf"]),
    ],
)
def test_files_from_environment(environ, files):
    assert files_from_environment(environ) == files


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("api", "auth_strategy", "none"),
        ("placement", "max_allocation_candidates", "many"),
        ("placement", "max_allocation_candidates", "-2"),
        ("placement", "allocation_candidates_generation_strategy", "random"),
        ("placement", "additional_resource_classes", "LLC,mba"),
        ("placement", "additional_resource_classes", "CUSTOM_FPGA"),
        ("placement", "additional_resource_classes", "A" * 256),
        ("placement_database", "max_pool_size", "0"),
        ("placement_database", "lock_timeout", "0"),
        ("flavors", "pci_alias", "gpu"),
        ("flavors", "pci_alias", '["gpu"]'),
        ("flavors", "pci_alias", '{"name": "gpu"}'),
        ("flavors", "pci_alias", '{"resource_class": "VGPU"}'),
        ("flavors", "pci_alias", '{"name": "gpu", "resource_class": 1}'),
        ("flavors", "pci_alias", '{"name": "gpu", "resource_class": "VGPU", "colour": "red"}'),
        ("flavors", "pci_alias", '{"name": "nic", "vendor_id": "8086", "product_id": "x540"}'),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_at_once_and_by_name(tmp_path, group, name, value):
    file = tmp_path / "placement.conf"
    file.write_text(f"[{group}]\n{name} = {value}\n")
    with pytest.raises(cfg.ConfigFileValueError) as raised:
        new_config(config_files=[str(file)])
    assert name in str(raised.value)
    assert str(file) in str(raised.value)


def test_no_additional_resource_classes_if_the_option_is_empty(tmp_path):
    file = tmp_path / "placement.conf"
    file.write_text("[placement]\nadditional_resource_classes =\n")
    assert new_config(config_files=[str(file)]).placement.additional_resource_classes == []


def test_a_missing_configuration_file_is_named():
    with pytest.raises(cfg.ConfigFilesNotFoundError, match=r"/nowhere/placement\.conf"):
        new_config(config_files=["/nowhere/placement.conf"])
