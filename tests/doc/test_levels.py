"""Options that are not stable say so where an operator reads them, as the page about stability does."""

import re
from pathlib import Path

from tests.doc.extensions import generated, options

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "doc/reference/stability.md"
SAMPLES = {
    "placement": ROOT / "etc/placement/placement.conf.sample",
    "compute-agent": ROOT / "etc/compute-agent/compute-agent.conf.sample",
}


def levels_of_page() -> dict[str, dict[str, str]]:
    """Levels by program, and by section or ``[section] option``, from the table of the page."""
    found: dict[str, dict[str, str]] = {"placement": {}, "compute-agent": {}}
    for part, level in re.findall(r"^\| (.+?) \| (\w+)", PAGE.read_text(), re.MULTILINE):
        program = "compute-agent" if part.startswith("agent:") else "placement"
        for name in re.findall(r"`(\[[^`]+)`", part):
            found[program][name] = level.capitalize()
    return found


def levels_of_help(program: str) -> dict[str, str]:
    """The mark of each option, by ``[section] option``."""
    found = {}
    for section, listed in options.sections(program).items():
        for name, option in listed.items():
            mark = re.match(r"\s*(Experimental|Beta)\. ", option.help or "")
            found[f"[{section}] {name}"] = mark[1] if mark else "Stable"
    return found


def test_each_option_has_the_level_of_the_page() -> None:
    for program, levels in levels_of_page().items():
        for option, level in levels_of_help(program).items():
            section = option.partition(" ")[0]
            expected = levels.get(option, levels.get(section, "Stable"))
            assert level == expected, f"{program} {option}"


def test_all_sections_and_options_of_the_page_exist() -> None:
    for program, levels in levels_of_page().items():
        marks = levels_of_help(program)
        known = {*marks, *(option.partition(" ")[0] for option in marks)}
        assert set(levels) - known == set()


def test_samples_and_the_reference_have_the_marks() -> None:
    for program, sample in SAMPLES.items():
        text = " ".join(sample.read_text().replace("#", " ").split())
        page = generated.expand(f"<!-- generated: options {program} -->")
        marked = {name: level for name, level in levels_of_help(program).items() if level != "Stable"}
        assert marked
        for level in set(marked.values()):
            number = list(marked.values()).count(level)
            assert len(re.findall(rf"\b{level}\. ", text)) == number
            assert len(re.findall(rf"^{level}\. ", page, re.MULTILINE)) == number


def test_pages_about_experimental_parts_say_so() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.endswith("| experimental |")]
    pages = [PAGE.parent / link for row in rows for link in re.findall(r"\]\((\S+\.md)\)", row)]
    assert len(pages) > 3
    for page in pages:
        assert "\n\nThis part is [experimental](../reference/stability.md).\n" in page.read_text(), page


def test_extra_specs_and_metrics_have_their_level() -> None:
    for page in ("host/guest-features.md", "reference/metrics.md"):
        assert re.search(r"are \[beta\]\(\S*stability\.md\)", (ROOT / "doc" / page).read_text()), page
