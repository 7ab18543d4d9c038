"""Generated parts of the reference agree with the programs, and pages name existing parts."""

import re
from pathlib import Path

import pytest
import yaml

from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.throttling.telemetry import ThrottleTelemetry
from tests.doc.extensions import (
    PLUGIN,
    PROGRAMS,
    UNKNOWN,
    command_target,
    generated,
    option_target,
    options,
    sources,
)
from tests.doc.pages import ROOT, SITE, pages

PACKAGES = [ROOT / each for each in ("placement", "placement_extras", "compute_agent")]
REMEDIES = SITE / "reference" / "messages.yaml"
METRICS = {metric.name for metric in sources.metrics(ROOT / "compute_agent")}


def test_every_error_of_the_log_has_a_remedy() -> None:
    known = sources.remedies(REMEDIES)
    errors = {m.template for package in PACKAGES for m in sources.messages(package) if m.level == "error"}
    assert errors - known.keys() == set()


def test_every_remedy_belongs_to_a_line_that_is_logged() -> None:
    logged = {message.template for package in PACKAGES for message in sources.messages(package)}
    assert sources.remedies(REMEDIES).keys() - logged == set()


@pytest.mark.parametrize(
    "template",
    [
        "Guest %s does not get the CPUs that it needs: %s",
        "The agent cannot take its second lock against other agents in %s, and continues without it: %s",
    ],
)
def test_warnings_that_an_operator_has_to_act_on_are_listed(template: str) -> None:
    assert ("warning", template) in {(m.level, m.template) for m in sources.messages(ROOT / "compute_agent")}


def test_all_metrics_that_the_agent_registers_are_listed() -> None:
    registry = AgentMetrics().registry
    ThrottleTelemetry(registry)
    registered = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()
    }
    assert registered <= METRICS


@pytest.mark.parametrize("page", [*pages(), ROOT / "README.md"], ids=lambda page: page.stem)
def test_metrics_on_a_page_exist(page: Path) -> None:
    named = set(re.findall(r"\bcompute_agent_[a-z_]+", page.read_text(encoding="utf-8")))
    assert named <= METRICS


def test_options_and_commands_are_looked_up() -> None:
    assert option_target("[compute] cpu_dedicated_set") == (
        "reference/compute-agent-options",
        "option-compute-agent-compute-cpu-dedicated-set",
    )
    assert option_target("[watermark:cpu] metric = cpu_usage") is not UNKNOWN
    assert option_target("[compute] cpu_dedicate_set") == UNKNOWN
    assert option_target("a word") is None
    assert command_target("compute-agent guest run --vcpus 2 -- sleep") == (
        "reference/compute-agent",
        "command-compute-agent-guest-run",
    )
    assert command_target("compute-agent guest run --vcpu 2") == UNKNOWN
    assert command_target("compute-agent gust run") == UNKNOWN
    assert command_target("placement-manage --config-file FILE db sync") is not UNKNOWN
    assert command_target("virsh list") is None
    assert command_target("openstack allocation claim create --dry-run") == (
        "reference/openstack",
        "command-openstack-allocation-claim-create",
    )
    assert command_target("openstack allocation claim create --dry") == UNKNOWN
    assert command_target("openstack server create --flavor small") is None  # others have commands, too


def test_options_and_commands_in_notes_of_changes_exist() -> None:
    for note in sorted((SITE / "changes").glob("*.md")):
        for named in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", note.read_text(encoding="utf-8")):
            assert UNKNOWN not in (option_target(named), command_target(named)), f"{note.name}: {named}"


@pytest.mark.parametrize("program", options.PROGRAMS)
def test_every_option_has_a_place_in_the_reference(program: str) -> None:
    text = generated.expand(f"<!-- generated: options {program} -->")
    for section, listed in options.sections(program).items():
        assert f"## [{section}]" in text
        for name in listed:
            assert f"({options.anchor(program, section, name)})=" in text


@pytest.mark.parametrize("program", [*PROGRAMS, PLUGIN])
def test_every_program_has_its_commands_in_the_reference(program: str) -> None:
    assert f"## {program}" in generated.expand(f"<!-- generated: commands {program} -->")


def test_notes_have_an_existing_kind() -> None:
    kinds = {"upgrade", "security", "feature", "fix", "deprecation"}
    for note in (ROOT / "doc/changes").glob("*.md"):
        if note.name != "README.md":
            assert note.name.split(".")[-2] in kinds, note.name
            assert note.read_text(encoding="utf-8").strip()


def test_the_table_of_differences_is_on_its_page() -> None:
    table = yaml.safe_load((SITE / "reference" / "deviations.yaml").read_text(encoding="utf-8"))
    text = generated.expand("<!-- generated: deviations -->")
    for group in table:
        assert f"## {group['about']}" in text
        for case in group["cases"]:
            assert f"| {case['theirs']} | {case['ours']} | {case['why']} |" in text
