"""Tests that the page of the API reference is current, and loads no other files."""

import importlib.util
import re

import pytest

from tests.placement.api_ref.document import FOLDER, load, operations


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("api_ref_build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(build):
    page = build.render(build.load())
    assert build.PAGE.read_text(encoding="utf-8") == page, "run: python api-ref/build.py"


def test_the_page_shows_every_operation_parameter_property_code_and_microversion(build):
    page = build.PAGE.read_text(encoding="utf-8")
    for operation in operations():
        section = re.search(
            rf'<section class="operation" id="{operation.id}">(.*?)</section>', page, re.DOTALL
        )
        assert section, operation.id
        for parameter in operation.parameters:
            assert parameter["in"] == "header" or f"<code>{parameter['name']}</code>" in section[1]
        for status in operation.answers():
            assert f"<td>{status} " in section[1]
    for code in load()["components"]["schemas"]["ErrorCode"]["oneOf"]:
        assert f"<code>{code['const']}</code>" in page
    for version in load()["info"]["x-microversions"]:
        assert f"<tr><td>{version}</td>" in page


def test_the_page_loads_no_other_file_and_its_links_have_targets(build):
    page = build.PAGE.read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert not re.search(r"@import|url\(", page)
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets <= set(re.findall(r'id="([^"]+)"', page))
    assert {operation.id for operation in operations()} <= targets


def test_every_pattern_of_property_names_has_a_word_on_the_page(build):
    patterns = set()

    def collect(node):
        if isinstance(node, dict):
            patterns.update(node.get("patternProperties", ()))
            for each in node.values():
                collect(each)

    collect(load()["components"])
    uuids = {pattern for pattern in patterns if pattern.startswith("^[0-9a-f]{8}")}
    assert patterns - uuids <= set(build._NAMES)
