"""The table of features is that of the code: each cell about a setting is applied, and no row misses."""

import fnmatch
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from compute_agent import conf as agent_conf
from compute_agent.classification.resolution import (
    ClassificationPolicy,
    ResolvedSettings,
    parse_policy,
    resolve_settings,
)
from compute_agent.classification.rules import GuestFacts
from compute_agent.cmd.guest import GuestSet
from compute_agent.conf.guests import FLAVOR_SETTINGS
from compute_agent.conf.qos import QOS_CLASS_OPTS
from compute_agent.model.guest import GuestIdentity
from compute_agent.model.guest_settings import DEFAULT_VALUES, SETTING_NAMES, read_setting, setting_text
from compute_agent.model.resource import RESOURCE_CLASSES
from placement_extras.flavors.flavor import NovaFlavor, TranslationRules
from placement_extras.flavors.translation import translate_flavor
from tests.doc.pages import SITE

PAGE = SITE / "host/guest-features.md"
SPEC = re.compile(r"([\w-]+:\w+)=(.+)")
RULE = re.compile(r"\[guest_rule:NAME\] (\w+) = (.+)")
SET = "compute-agent guest set GUEST "
CLASSES = (
    "[blockio_class:bulk]\nwrite_bytes = 1M\ndevices = guest\n[cpu_class:fast]\ngovernor = performance\n"
)
"""The sections that cells name."""

Row = list[str]


def table(title: str) -> list[Row]:
    """The rows of the table below a title: feature, name, and how it is chosen in three ways."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.split("|")] for row in rows if not row.startswith(" ---")][1:]


def literals(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def extra_specs(cell: str) -> dict[str, str]:
    found = (SPEC.fullmatch(text) for text in literals(cell))
    return {spec[1]: spec[2] for spec in found if spec is not None}


SETTINGS, EFFECTS, RESOURCES = table("Settings"), table("Effects of the class"), table("Resources")
CHOSEN = [(literals(row[1])[0], row) for row in SETTINGS] + [("qos_class", row) for row in EFFECTS]
"""A setting, and a row of the table. Each way in the row has to set the setting."""


def identified(setting_and_row: tuple[str, Row] | str | Row) -> str | None:
    return setting_and_row if isinstance(setting_and_row, str) else None


def test_every_setting_option_of_classes_and_resource_class_has_a_row() -> None:
    assert sorted(name for row in SETTINGS for name in literals(row[1])) == sorted(SETTING_NAMES)
    assert {name for row in EFFECTS for name in literals(row[1])} == {each.name for each in QOS_CLASS_OPTS}
    patterns = {name for row in RESOURCES for name in literals(row[1])}
    known = {each.name for each in RESOURCE_CLASSES}
    assert {name for name in known if not any(fnmatch.fnmatch(name, each) for each in patterns)} == set()
    assert {each for each in patterns if not fnmatch.filter(known, each)} == set()


@pytest.mark.parametrize(
    "title", ["Settings", "Effects of the class", "Resources", "Settings of a host"], ids=lambda title: title
)
def test_no_cell_is_empty(title: str) -> None:
    rows = table(title)
    assert rows
    for row in rows:
        assert len(row) == 5
        assert all(re.search(r"\w{3}", cell) for cell in row), row


def resolve(policy: ClassificationPolicy, specs: dict[str, str] | None = None) -> ResolvedSettings:
    identity = GuestIdentity(extra_specs=specs or {}, project_name="lab")
    return resolve_settings(policy, GuestFacts("libvirt", identity=identity))


@pytest.mark.parametrize(("setting", "row"), CHOSEN, ids=identified)
def test_the_extra_spec_of_a_cell_sets_its_setting(setting: str, row: Row, tmp_path: Path) -> None:
    (key, text), *_ = extra_specs(row[2]).items()
    named = [name for name in literals(row[2]) if name in SETTING_NAMES]
    conf = load(tmp_path, f"[guests]\nflavor_settings = {','.join([*FLAVOR_SETTINGS, *named])}\n")
    found = resolve(parse_policy(conf), {key: text})
    assert found.problems == ()
    assert found.sources[setting] == "flavor"
    assert getattr(found.settings, setting) == read_setting(setting, text) != DEFAULT_VALUES[setting]
    # Without the words of the cell about flavor_settings it does not count.
    bare = resolve(parse_policy(load(tmp_path, "")), {key: text})
    assert (bare.sources[setting] == "flavor") is not bool(named)


@pytest.mark.parametrize(("setting", "row"), CHOSEN, ids=identified)
def test_the_rule_of_a_cell_sets_its_setting(setting: str, row: Row, tmp_path: Path) -> None:
    option, text = next(rule.groups() for rule in map(RULE.fullmatch, literals(row[3])) if rule is not None)
    conf = load(tmp_path, f"[guest_rule:lab]\nmatch_project = lab\n{option} = {text}\n")
    found = resolve(parse_policy(conf))
    assert (option, found.sources[setting], found.problems) == (setting, "rule lab", ())
    assert getattr(found.settings, setting) == read_setting(setting, text)


@pytest.mark.parametrize(("setting", "row"), CHOSEN, ids=identified)
def test_the_command_of_a_cell_sets_its_setting_as_the_rule_does(setting: str, row: Row) -> None:
    command = next(each for each in literals(row[4]) if each.startswith(SET))
    parser = GuestSet(None, None).get_parser("guest set")
    given = vars(parser.parse_args(["GUEST", *shlex.split(command.removeprefix(SET))]))
    chosen: dict[str, Any] = {name: given[name] for name in SETTING_NAMES if given[name] is not None}
    text = next(rule[2] for rule in map(RULE.fullmatch, literals(row[3])) if rule is not None)
    assert {name: setting_text(value) for name, value in chosen.items()} == {setting: text}


@pytest.mark.parametrize("row", RESOURCES, ids=lambda row: row[0])
def test_a_flavor_with_the_extra_specs_of_a_cell_holds_its_resource_class(row: Row) -> None:
    specs = extra_specs(row[2])
    translation = translate_flavor(
        NovaFlavor(4, 2048, 8, extra_specs=tuple(specs.items())), TranslationRules()
    )
    assert translation.warnings == ()
    held = {name for group in translation.request.groups for name in group.resources}
    own = {each.name: each.stock_name or each.name for each in RESOURCE_CLASSES}
    if row[1] != "`CUSTOM_HUGE_PAGES_*`":  # Nova counts these itself
        assert {own[name] for name in literals(row[1])} <= held
    assert not {name for name in ("VCPU", "MEMORY_MB") if specs.get(f"resources:{name}") == "0"} & held


def load(folder: Path, text: str) -> Any:
    file = folder / "agent.conf"
    file.write_text(CLASSES + text)
    return agent_conf.load([], [str(file)])
