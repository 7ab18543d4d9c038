"""OpenStack-Ansible's role os_placement accepts our sample, and the service runs with the result.

The role is in no index of packages. Rendering of its templates needs a checkout of
openstack/openstack-ansible-os_placement, which PLACEMENT_COMPUTE_OS_PLACEMENT names.
"""

import os
from configparser import ConfigParser
from io import StringIO
from pathlib import Path

import pytest
import yaml
from sqlalchemy.engine import make_url

from tests.packages.deployed import assert_the_service_runs, run

SAMPLE = Path(__file__).parents[2] / "etc/packages/openstack-ansible/user_placement.yml"
ROLE = os.environ.get("PLACEMENT_COMPUTE_OS_PLACEMENT", "")

# Variables that other roles and the deployment set.
DEPLOYMENT = """\
keystone_service_internaluri_insecure: false
keystone_service_adminuri: http://127.0.0.1:5000/v3
keystone_service_publicuri: http://127.0.0.1:5000/v3
keystone_service_region: RegionOne
placement_service_password: secret
placement_galera_password: "{password}"
galera_address: 127.0.0.1
galera_port: {port}
memcached_servers: 127.0.0.1:11211
memcached_encryption_key: secret
"""
PLAYBOOK = """\
- hosts: localhost
  connection: local
  gather_facts: false
  vars_files: [defaults.yml]
  tasks:
    - template: {src: "{{ role }}/templates/placement.conf.j2", dest: placement.conf}
    - copy: {content: "{{ placement_pip_packages + placement_git_constraints }}", dest: packages.json}
"""


def test_the_sample_sets_variables_of_the_role() -> None:
    sample = yaml.safe_load(SAMPLE.read_text())
    assert set(sample) == {
        "placement_git_repo",
        "placement_git_install_branch",
        "placement_upper_constraints_url",
        "placement_git_constraints",
        "placement_pip_packages",
        "placement_placement_conf_overrides",
    }
    assert sample["placement_placement_conf_overrides"] == {"placement_database": {"adopt": True}}


@pytest.mark.packages
@pytest.mark.slow
@pytest.mark.mysql
@pytest.mark.skipif(not ROLE, reason="PLACEMENT_COMPUTE_OS_PLACEMENT names no checkout of the role")
def test_the_service_runs_with_the_configuration_of_the_role(
    kolla: Path, database: str, tmp_path: Path
) -> None:
    """The test uses kolla-ansible's Ansible, and merges overrides itself instead of the role's plug-in."""
    url = make_url(database)
    (tmp_path / "defaults.yml").write_text((Path(ROLE) / "defaults/main.yml").read_text())
    (tmp_path / "deployment.yml").write_text(DEPLOYMENT.format(port=url.port, password=url.password or ""))
    (tmp_path / "site.yml").write_text(PLAYBOOK)
    extra = [f"@{SAMPLE}", "@deployment.yml", f"role={ROLE}"]
    extra += [f"placement_galera_user={url.username}", f"placement_galera_database={url.database}"]
    options = [word for each in extra for word in ("--extra-vars", each)]
    run(kolla / "ansible-playbook", *options, "site.yml", folder=tmp_path)

    packages = yaml.safe_load((tmp_path / "packages.json").read_text())
    assert packages[0] == (
        "placement-compute[mysql,memcached] @ git+https://git.example.org/placement-compute.git@v1.0.0"
    )
    assert packages[-1] == (
        "--constraint https://git.example.org/placement-compute/raw/v1.0.0/etc/constraints.txt"
    )
    conf = ConfigParser(interpolation=None)
    conf.read(tmp_path / "placement.conf")
    for section, options in yaml.safe_load(SAMPLE.read_text())["placement_placement_conf_overrides"].items():
        conf[section].update({name: str(value) for name, value in options.items()})
    conf["DEFAULT"]["use_journal"] = "false"  # systemd-python is not in the environment of the tests
    with StringIO() as text:
        conf.write(text)
        assert_the_service_runs(text.getvalue(), database, tmp_path)
