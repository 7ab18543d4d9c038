"""Recipes of packages and image are right; these tests build none."""

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from compute_agent import conf as agent_conf
from placement.conf import new_config
from placement.conf.unknown import unknown_options

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "etc/packages"
SCRIPTS = [PACKAGES / "build-deb"]
for kind in ("preinst", "postinst", "prerm", "postrm"):
    SCRIPTS += PACKAGES.glob(f"debian/*.{kind}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_understands_a_script(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if script.parent.name == "debian":
        assert "\nset -e\n" in script.read_text()
        assert script.read_text().endswith("\n#DEBHELPER#\n")


def test_every_program_is_a_command_of_a_package() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    entries = setup["options.entry_points"]["console_scripts"].split("\n")
    files = setup["options"]["scripts"].split()
    programs = {line.partition(" =")[0] for line in entries if line} | {Path(each).name for each in files}
    links = [
        line.split() for each in PACKAGES.glob("debian/*.links") for line in each.read_text().splitlines()
    ]
    assert sorted(links) == [
        [f"opt/placement-compute/bin/{name}", f"usr/bin/{name}"] for name in sorted(programs)
    ]


def uncommented(text: str) -> str:
    """Uncomment the first example of each option in a sample."""
    lines: list[str] = []
    for line in text.splitlines():
        example = re.sub(r"^# (?=\w+ = )", "", line)
        if not any(example.split(" = ")[0] == each.split(" = ")[0] for each in lines if " = " in each):
            lines.append(example)
    return "\n".join(lines)


def test_the_first_configuration_of_the_service_has_existing_options(tmp_path: Path) -> None:
    file = tmp_path / "placement.conf"
    for sample in (PACKAGES / "placement.conf", PACKAGES / "kolla/placement.conf"):
        file.write_text(uncommented(sample.read_text()))
        conf = new_config(config_files=[str(file)])
        assert [*unknown_options(conf)] == []
    file.write_text((PACKAGES / "placement.conf").read_text())
    assert new_config(config_files=[str(file)]).placement_database.sync_on_startup is True


def test_the_first_configuration_of_the_agent_has_existing_options(tmp_path: Path) -> None:
    file = tmp_path / "compute-agent.conf"
    file.write_text(uncommented((PACKAGES / "compute-agent.conf").read_text()))
    conf = agent_conf.load([], [str(file)])
    assert conf.compute.cpu_dedicated_set == "2-31"
    sections = configparser.ConfigParser(default_section="", interpolation=None)
    sections.read(file)
    login = {"username", "password", "project_name", "user_domain_name", "project_domain_name", "auth_url"}
    for section in sections.sections():
        known = set(conf if section == "DEFAULT" else conf[section])
        known |= login if section == "placement" else set()
        assert set(sections[section]) <= known


def test_the_image_runs_without_root_and_has_the_pinned_versions() -> None:
    text = re.sub(r"\\\n\s*", "", (PACKAGES / "Containerfile").read_text())
    lines = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    words = [(name, rest) for name, _, rest in lines]
    assert re.fullmatch(r"BASE=\S+:3\.11-\S+", words[0][1])
    assert [rest for name, rest in words if name == "USER"] == ["placement"]
    assert not [rest for name, rest in words if name in ("ADD", "COPY") and "://" in rest]
    (install,) = [rest for name, rest in words if name == "RUN" and "pip install" in rest]
    assert "--constraint etc/constraints.txt" in install


def test_samples_for_ansible_are_yaml() -> None:
    assert set(yaml.safe_load((PACKAGES / "kolla/globals.yml").read_text())) == {
        "placement_api_image",
        "placement_tag",
    }
