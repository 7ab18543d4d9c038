"""Nova and this distribution in one environment: installed by pip, and used.

Versions are those with which Nova's functional tests run (``tests/nova/requirements.txt``). The environment
has no OpenStack Placement, which has the same import name.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

import requests

from tests.builds import build_distributions, run
from tests.ports import free_port
from tests.programs import run_program, wait_for_answer

ROOT: Final = Path(__file__).parents[2]
VERSIONS: Final = ROOT / "tests/nova/requirements.txt"
_ASK: Final = """
import sys
from keystoneauth1 import adapter, session, token_endpoint
from nova import conf, context, objects
from nova.scheduler.client import report

conf.CONF([], project="nova", default_config_files=[])
objects.register_all()
auth = token_endpoint.Token(sys.argv[1], "admin")
placement = adapter.Adapter(session.Session(auth=auth), service_type="placement")
client = report.SchedulerReportClient(adapter=placement)
asked = context.get_admin_context()
uuid = "00000000-0000-4000-8000-000000000034"
client.get_provider_tree_and_ensure_root(asked, uuid, name="cn")
tree = client.get_provider_tree_and_ensure_root(asked, uuid, name="cn")
tree.update_inventory("cn", {"VCPU": {"total": 8}})
client.update_from_provider_tree(asked, tree)
"""


def nova_pin() -> str:
    """Return the pinned Nova, such as ``nova==34.0.0``."""
    return next(line for line in VERSIONS.read_text().splitlines() if line.startswith("nova=="))


def check_environment() -> None:
    """Install Nova and the service, and let Nova's client ask the service.

    :raises BuildFailed: pip or a program fails; the message has its output.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, wheel = build_distributions(ROOT, folder, "1790000000")
        environment = folder / "environment"
        run(sys.executable, "-m", "venv", environment)
        pip = (environment / "bin/pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "install", "--no-compile", "--constraint", VERSIONS, nova_pin(), wheel)
        run(*pip, "check")
        programs = environment / "bin"
        print(run(programs / "nova-manage", "--version"), run(programs / "compute-agent", "--version"))
        _ask_as_nova(programs, folder)


def _ask_as_nova(programs: Path, folder: Path) -> None:
    """Start the service, and create and read a provider by Nova's own client."""
    config = folder / "placement.conf"
    config.write_text(
        "[api]\nauth_strategy = noauth2\n[placement_database]\n"
        f"connection = sqlite:///{folder}/placement.sqlite\nsync_on_startup = true\n"
    )
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    words = (programs / "placement-api", "--config-file", config, "--bind", f"127.0.0.1:{port}")
    with run_program(words, folder / "service.log") as process:
        wait_for_answer(f"{base}/", process, folder / "service.log")
        run(programs / "python", "-c", _ASK, base, folder=folder)
        headers = {"X-Auth-Token": "admin"}
        found = requests.get(f"{base}/resource_providers?name=cn", headers=headers, timeout=60).json()
        assert len(found["resource_providers"]) == 1, found
