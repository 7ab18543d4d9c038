"""Pages with requests of an administrator link to the section about tokens."""

from pathlib import Path

import pytest

from tests.doc.pages import SITE, blocks, pages

SECTION = SITE / "howto/index.md"


def sends_token(page: Path) -> bool:
    return any("X-Auth-Token: admin" in block.text for block in blocks(page))


@pytest.mark.parametrize(
    "page", [page for page in pages("howto") if sends_token(page)], ids=lambda one: one.stem
)
def test_a_page_with_a_token_links_to_the_section(page: Path) -> None:
    assert "(index.md#tokens)" in page.read_text(encoding="utf-8")


def test_the_section_replaces_the_token_of_the_pages() -> None:
    text = SECTION.read_text(encoding="utf-8").partition("\n## Tokens\n")[2]
    assert "`-H 'X-Auth-Token: admin'`" in text
    assert "$(openstack token issue -f value -c id)" in text
