"""Names have two words, or are in the glossary; ``doc/developer/style.md`` has the rule."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("placement", "placement_extras", "compute_agent")
FOLDERS = (*PACKAGES, "benchmarks")
GLOSSARY = yaml.safe_load((ROOT / "doc/developer/glossary.yaml").read_text())
NOUNS = frozenset(GLOSSARY["nouns"])
WORDS = frozenset(GLOSSARY["words"])

GERUNDS = re.compile(r"[a-z]+ing$")
NOUNS_IN_ING = {
    "backtracking",
    "monitoring",
    "packing",
    "pinning",
    "rendering",
    "setting",
    "spelling",
    "tracing",
}


def modules(*packages):
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path.relative_to(ROOT), ast.parse(path.read_text())


def is_bare(name):
    words = re.findall("[A-Z][a-z0-9]*", name) if name[:1].isupper() else name.strip("_").split("_")
    return len(words) <= 1


def definitions(tree):
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and not node.name.startswith("__")]


@pytest.mark.parametrize("package", FOLDERS)
def test_a_class_has_a_name_of_two_words_or_of_a_noun_of_the_field(package):
    bare = {
        f"{path}: {node.name}"
        for path, tree in modules(package)
        for node in definitions(tree)
        if isinstance(node, ast.ClassDef) and is_bare(node.name.lstrip("_")) and node.name not in NOUNS
    }
    assert bare == set()


def test_a_class_name_occurs_once_in_the_distribution():
    places = defaultdict(list)
    for path, tree in modules(*FOLDERS):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_function_has_a_name_of_two_words_or_a_word_of_the_glossary(package):
    bare = {
        f"{path}: {node.name}"
        for path, tree in modules(package)
        for node in definitions(tree)
        if not isinstance(node, ast.ClassDef) and is_bare(node.name) and node.name.lstrip("_") not in WORDS
    }
    assert bare == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_is_a_noun(package):
    gerunds = {
        str(path)
        for path, _ in modules(package)
        if GERUNDS.match(path.stem) and path.stem not in NOUNS_IN_ING
    }
    assert gerunds == set()


def test_each_term_of_the_glossary_names_a_place_that_exists():
    named = {place for term in GLOSSARY["terms"] for place in re.findall(r"[\w./]+/[\w./]+", term["used in"])}
    assert {place for place in named if not (ROOT / place).exists()} == set()


@pytest.mark.parametrize("words", ["nouns", "words"])
def test_words_of_the_glossary_are_sorted_and_occur_once(words):
    assert GLOSSARY[words] == sorted(set(GLOSSARY[words]))
