"""kolla's own tools accept our samples, and the service runs with the resulting configuration."""

from configparser import ConfigParser
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.packages.deployed import assert_the_service_runs, run

pytestmark = [pytest.mark.packages, pytest.mark.slow, pytest.mark.mysql]

SAMPLES = Path(__file__).parents[2] / "etc/packages/kolla"

PLAYBOOK = """\
- hosts: all
  connection: local
  tasks:
    - import_role:
        name: placement
        tasks_from: config
"""
INVENTORY = """\
[placement-api]
localhost
[memcached]
localhost
[loadbalancer]
[all:vars]
ansible_become=false
ansible_python_interpreter={python}
"""
GLOBALS = """\
network_interface: lo
kolla_internal_vip_address: 127.0.0.1
kolla_same_external_internal_vip: true
enable_placement: true
node_config_directory: {folder}/kolla
node_custom_config: {folder}/custom
config_owner_user: root
config_owner_group: root
placement_database_address: 127.0.0.1:{port}
placement_database_user: {user}
placement_database_password: "{password}"
placement_database_name: {database}
placement_keystone_password: secret
memcache_secret_key: secret
nova_api_database_password: secret
"""


def test_images_of_kolla_have_this_service(kolla: Path, tmp_path: Path) -> None:
    sdist = tmp_path / "placement_compute-1.0.0.tar.gz"
    sdist.touch()
    settings = (SAMPLES / "kolla-build.conf").read_text()
    assert str(sdist.name) in settings
    conf = tmp_path / "kolla-build.conf"
    conf.write_text(settings)
    options = ["--config-file", conf, "--template-override", SAMPLES / "template-override.j2"]
    made = tmp_path / "made"
    run(kolla / "kolla-build", *options, "--template-only", "--work-dir", made, "^placement", folder=tmp_path)
    (dockerfile,) = made.rglob("placement-base/Dockerfile")
    text = dockerfile.read_text()
    assert "ADD placement-base-archive /placement-base-source" in text
    assert "cp -r /placement/etc/placement/* /etc/placement/" in text
    ours = "install --upgrade --constraint /placement/etc/constraints.txt '/placement[mysql,memcached]'"
    assert text.index("ln -s placement-base-source/* placement") < text.index(ours)
    assert text.count("/requirements/upper-constraints.txt") == 1
    assert "-c /requirements/upper-constraints.txt pip " in text.replace("\\\n", " ")


@pytest.fixture(scope="module")
def rendered(kolla: Path, database: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that kolla-ansible writes for its container, from its template and our sample."""
    folder = tmp_path_factory.mktemp("kolla")
    (folder / "custom").mkdir()
    (folder / "custom/placement.conf").write_text((SAMPLES / "placement.conf").read_text())
    url = make_url(database)
    (folder / "globals.yml").write_text(
        (SAMPLES / "globals.yml").read_text()
        + GLOBALS.format(
            folder=folder,
            port=url.port,
            user=url.username,
            password=url.password or "",
            database=url.database,
        )
    )
    (folder / "site.yml").write_text(PLAYBOOK)
    (folder / "inventory").write_text(INVENTORY.format(python=kolla / "python"))
    ansible = kolla.parent / "share/kolla-ansible/ansible"
    (folder / "group_vars").symlink_to(ansible / "group_vars")
    run(
        *(kolla / "ansible-playbook", "--inventory", "inventory", "--extra-vars", "@globals.yml", "site.yml"),
        folder=folder,
        ANSIBLE_ROLES_PATH=str(ansible / "roles"),
        ANSIBLE_FILTER_PLUGINS=str(ansible / "filter_plugins"),
        ANSIBLE_ACTION_PLUGINS=str(ansible / "action_plugins"),
        ANSIBLE_LIBRARY=str(ansible / "library"),
    )
    return folder / "kolla/placement-api"


def test_the_configuration_of_kolla_ansible_has_the_options_of_the_sample(rendered: Path) -> None:
    conf = ConfigParser(interpolation=None)
    conf.read(rendered / "placement.conf")
    assert conf["placement_database"]["adopt"] == "true"
    assert conf["placement_database"]["max_overflow"] == "50"
    assert conf["placement_database"]["connection"].startswith("mysql+pymysql://")
    assert conf["keystone_authtoken"]["memcached_servers"] == "127.0.0.1:11211"
    uwsgi = (rendered / "placement-api-uwsgi.ini").read_text()
    assert "module = placement.wsgi.api:application" in uwsgi


def test_the_service_runs_with_the_configuration_of_kolla_ansible(
    rendered: Path, database: str, tmp_path: Path
) -> None:
    text = (rendered / "placement.conf").read_text()
    assert_the_service_runs(text.replace("/var/log/kolla/placement", str(tmp_path)), database, tmp_path)
