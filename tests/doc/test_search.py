"""The search of the built site finds the page for questions of operators; the page begins with the answer."""

import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.doc.pages import SITE


def find_node() -> str | None:
    """Return the path of node: the machine's, or the one that playwright brings along."""
    if (found := shutil.which("node")) is not None:
        return found
    package = find_spec("playwright")
    bundled = Path(package.origin).parent / "driver/node" if package and package.origin else None
    return str(bundled) if bundled is not None and bundled.exists() else None


NODE: Final = find_node()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NODE is None, reason="node runs the scripts of the search"),
]

VISIBLE: Final = 900
"""Characters below a heading that a reader sees without scrolling."""

QUESTIONS: Final = {
    "how do I see why nothing fits": ("howto/why-nothing-fits", "the service logs a line"),
    "what happens to guests when the agent stops": (
        "concepts/pipeline#what-happens-to-guests-when-the-agent-stops",
        "Guests continue to run",
    ),
    "which options do I need behind Keystone": (
        "howto/behind-keystone#which-options-do-i-need-behind-keystone",
        "auth_strategy = keystone",
    ),
    "how do I roll back": (
        "operations/upgrade#how-do-i-roll-back",
        "point /opt/placement-compute to the old environment",
    ),
    "what does BE mean": ("reference/glossary#what-does-be-mean", "best effort"),
    "can I run it beside nova-compute": ("howto/beside-nova", "can run beside nova-compute"),
    "how many workers": ("operations/scaling#how-many-workers", "as many workers as the machine has CPUs"),
    "where are my CPUs": ("host/guests#where-are-my-cpus", "compute-agent guest show GUEST"),
    "what is stranded": ("reference/glossary#what-is-stranded", "no guest can use it"),
    "how do I leave": ("howto/leave-a-host#how-do-i-leave", "compute-agent host disable"),
}
"""For each question the first result, and words of the answer near its beginning."""

SHORTER: Final = {
    "nothing fits": "howto/why-nothing-fits",
    "no valid host": "howto/why-nothing-fits",
    "agent stopped": "concepts/pipeline#what-happens-to-guests-when-the-agent-stops",
    "keystone options": "howto/behind-keystone#which-options-do-i-need-behind-keystone",
    "rollback": "operations/upgrade#how-do-i-roll-back",
    "roll back": "operations/upgrade#how-do-i-roll-back",
    "downgrade": "operations/upgrade#index-0",
    "BE": "reference/glossary#index-0",
    "beside nova-compute": "howto/beside-nova",
    "workers": "operations/scaling#how-many-workers",
    "my CPUs": "host/guests#where-are-my-cpus",
    "stranded": "reference/glossary#what-is-stranded",
    "uninstall": "howto/leave-a-host#how-do-i-leave",
    "remove the agent": "howto/leave-a-host",
}
"""The same questions in the words of a hurry."""

FOREIGN: Final = {
    "no candidates reason": "howto/why-nothing-fits",
    "agent crash running VMs": "concepts/pipeline#what-happens-to-guests-when-the-agent-stops",
    "keystone auth settings": "howto/behind-keystone#which-options-do-i-need-behind-keystone",
    "revert upgrade": "operations/upgrade#how-do-i-roll-back",
    "BE class": "reference/glossary#what-does-be-mean",
    "nova-compute same host": "howto/beside-nova",
    "number of worker processes": "operations/scaling#how-many-workers",
    "which CPUs guest pinned": "host/guests#where-are-my-cpus",
    "stranded CPUs meaning": "reference/glossary#what-is-stranded",
    "migrate away to OpenStack Placement": "howto/move-from-openstack-placement",
    "VM slowed by noisy neighbour": "host/interference",
    "put hypervisor into maintenance mode": "host/maintenance",
    "hugepages settings": "host/huge-pages",
    "prometheus scrape endpoint": "operations/monitoring",
    "postgres high availability": "howto/postgresql-failover",
    "reserve capacity for a customer": "howto/reserve",
    "deploy with kolla ansible": "howto/deployment-tools",
    "test without touching production Placement": "howto/try-beside-openstack-placement",
    "restore lost database": "howto/restore-the-database",
    "remaining capacity for a flavor": "howto/how-much-more-fits",
    "cheapest host first": "howto/choose-by-price",
    "changed rows since last poll": "howto/follow-changes",
    "disk bandwidth limit for VMs": "host/blockio",
    "upload one config to all hypervisors": "howto/share-settings",
    "hypervisor died": "host/maintenance#what-happens-when-a-host-dies",
    "why are CPUs missing": "host/cpu-sets#why-are-cpus-missing-from-the-inventory",
    "which flavor gives a guest its own CPUs": "host/guest-features",
}
"""Questions in words that our pages do not use, or with a word that the page lacks."""


@pytest.fixture(scope="module")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with its index, unless ``make test`` has just built it."""
    if "PLACEMENT_BUILT_SITE" in os.environ:
        return Path(os.environ["PLACEMENT_BUILT_SITE"])
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(SITE), str(folder)],
        check=True,
        timeout=300,
    )
    return folder


def find_first_results(site: Path, questions: list[str]) -> dict[str, str]:
    """Return the address of the first result for each question, without `.html`."""
    assert NODE is not None
    printed = subprocess.run(
        [NODE, str(Path(__file__).with_name("search.js")), str(site), *questions],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.splitlines()
    results = [json.loads(line) for line in printed]
    return {
        question: found[0][0] if found else "" for question, found in zip(questions, results, strict=True)
    }


def visible_text(site: Path, address: str) -> str:
    """Return the text that a reader sees first at an address."""
    page, _, anchor = address.partition("#")
    html = (site / f"{page}.html").read_text(encoding="utf-8").partition('role="main"')[2]
    if anchor:
        _, found, html = html.partition(f'id="{anchor}"')
        assert found, f"{page} has no {anchor}"
    text = re.sub(r"<[^>]*>", "", html.partition(">")[2])
    return " ".join(unescape(text).split())[:VISIBLE]


def test_ten_questions_of_operators_find_their_page_first_and_the_answer_at_its_beginning(
    built_site: Path,
) -> None:
    found = find_first_results(built_site, list(QUESTIONS))
    assert found == {question: address for question, (address, _) in QUESTIONS.items()}
    hidden = [
        question
        for question, (address, answer) in QUESTIONS.items()
        if answer not in visible_text(built_site, address)
    ]
    assert hidden == []


def test_the_same_questions_in_a_few_words_find_the_same_pages(built_site: Path) -> None:
    assert find_first_results(built_site, list(SHORTER)) == SHORTER


def test_words_of_operators_find_the_page_that_uses_other_words(built_site: Path) -> None:
    assert find_first_results(built_site, list(FOREIGN)) == FOREIGN


def test_a_question_without_any_known_word_finds_nothing(built_site: Path) -> None:
    assert find_first_results(built_site, ["xyzzy plugh"]) == {"xyzzy plugh": ""}
