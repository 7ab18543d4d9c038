"""Tests of files in the format of Nova's provider.yaml, which are read or refused, and added to the
providers.
"""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.inventory.provider_files import (
    ProviderConfigs,
    gather_configs,
    read_provider_configs,
    with_additions,
)
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import ConfigError

ROOT = "8f0c0000-0000-4000-8000-000000000000"
NODE = "8f0c0000-0000-4000-8000-000000000001"
LARGEST = 2**31 - 1
TREE = ProviderTree(
    (
        ProviderNode("host", ROOT, None, {"VCPU": ProviderInventory(4)}, frozenset({"COMPUTE_NODE"})),
        ProviderNode("host_NUMA_0", NODE, ROOT, {}, frozenset({"HW_NUMA_ROOT", "CUSTOM_MEMORY_TIER_DRAM"})),
    )
)


def document(*providers, version="1.0"):
    return yaml.safe_dump({"meta": {"schema_version": version}, "providers": list(providers)}).encode()


def entry(inventories=None, traits=None, **identification):
    found = {"identification": identification or {"uuid": "$COMPUTE_NODE"}}
    if inventories is not None:
        found["inventories"] = {"additional": inventories}
    if traits is not None:
        found["traits"] = {"additional": traits}
    return found


def parse(*contents):
    return gather_configs({Path(f"{index}.yaml"): content for index, content in enumerate(contents)})


def add(*entries, tree=TREE):
    return with_additions(tree, parse(document(*entries)).configs)


def test_inventories_and_traits_are_added_with_the_defaults_of_placement():
    tree, warnings = add(entry([{"CUSTOM_A": {"total": 5}}, {"CUSTOM_B": {"total": 2}}], ["CUSTOM_T"]))
    assert warnings == ()
    assert tree.root.inventories == {
        "VCPU": ProviderInventory(4),
        "CUSTOM_A": ProviderInventory(5, max_unit=LARGEST),
        "CUSTOM_B": ProviderInventory(2, max_unit=LARGEST),
    }
    assert tree.root.traits == {"COMPUTE_NODE", "CUSTOM_T"}
    assert tree.nodes[1] == TREE.nodes[1]


def test_all_fields_are_taken_and_hold_whatever_is_set_through_the_api():
    amounts = {
        "total": 22,
        "reserved": 2,
        "min_unit": 1,
        "max_unit": 20,
        "step_size": 2,
        "allocation_ratio": 1.5,
    }
    tree, _ = add(entry([{"CUSTOM_A": amounts}], uuid=NODE.upper()))
    assert tree.nodes[1].inventories == {"CUSTOM_A": ProviderInventory(**amounts)}
    assert tree.configured == {("CUSTOM_A", "reserved"), ("CUSTOM_A", "allocation_ratio")}


def test_a_root_that_is_named_itself_gets_nothing_of_what_is_for_all():
    tree, _ = add(entry(traits=["CUSTOM_ALL"]), entry(traits=["CUSTOM_MINE"], name="host"))
    assert "CUSTOM_MINE" in tree.root.traits
    assert "CUSTOM_ALL" not in tree.root.traits


def test_a_provider_that_is_not_there_is_skipped_with_a_word():
    tree, (warning,) = add(entry(traits=["CUSTOM_T"], name="other"))
    assert tree.nodes == TREE.nodes
    assert "there is no provider other of this host" in warning


def test_a_root_of_nova_compute_gets_no_additions_but_its_children_do():
    beside = ProviderTree(TREE.nodes, beside=True)
    tree, (warning,) = add(entry(traits=["CUSTOM_T"]), entry(traits=["CUSTOM_T"], uuid=NODE), tree=beside)
    assert tree.root == TREE.root
    assert "CUSTOM_T" in tree.nodes[1].traits
    assert "put it into the [compute] provider_config_location of nova-compute" in warning


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            [entry(traits=["CUSTOM_T"], uuid=ROOT), entry(traits=["CUSTOM_U"], name="host")],
            "the same provider",
        ),
        ([entry(traits=["CUSTOM_MEMORY_TIER_DRAM"], uuid=NODE)], "are the agent's own: CUSTOM_MEMORY_TIER"),
        ([entry([{"CUSTOM_LLC": {"total": 1}}])], "are the agent's own: CUSTOM_LLC"),
        ([entry([{"CUSTOM_RECLAIMED_VCPU": {"total": 1}}])], "are the agent's own: CUSTOM_RECLAIMED_VCPU"),
    ],
)
def test_classes_of_the_agent_and_repeated_providers_are_refused(entries, said):
    with pytest.raises(ConfigError, match=said) as error:
        add(*entries)
    assert "[compute] provider_config_location: 0.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"providers: [", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"a: !!timestamp x", "not YAML"),
        (b"[" * 50_000, "not YAML"),
        (b"", "schema_version has to be a text"),
        (b"meta: {}", "schema_version has to be a text such as '1.0', and is None"),
        (b"meta: {schema_version: 1.0}", "has to be a text such as '1.0', and is 1.0"),
        (document(version="2.0"), "schema version 2.0 is not supported"),
        (document(version="1"), "has to be a text"),
        (document(version="latest"), "has to be a text"),
        (b"meta: {schema_version: '1.0'}\nproviders:", "providers is not a list: None"),
        (document("x"), r"providers\[0\] is not a mapping"),
        (document({}), r"providers\[0\].identification is not a mapping"),
        (document(entry(traits=["CUSTOM_T"], uuid=ROOT, name="host")), "one of uuid and name"),
        (document(entry(traits=["CUSTOM_T"], ip="::1")), "one of uuid and name"),
        (document(entry(traits=["CUSTOM_T"], uuid="x")), "is neither a uuid nor"),
        (document(entry(traits=["CUSTOM_T"], name="n" * 201)), "not a text of 1 to 200"),
        (document(entry(traits=["HW_CPU_X86_AVX"])), "may only have names of CUSTOM_"),
        (document(entry(traits=["CUSTOM_a"])), "may only have names of CUSTOM_"),
        (document(entry(traits="CUSTOM_T")), "is not a list"),
        (document(entry([{"VCPU": {"total": 1}}])), "may only have names of CUSTOM_.*'VCPU'"),
        (document(entry([{"CUSTOM_A": {}}])), "has no total"),
        (document(entry([{"CUSTOM_A": {"total": 1, "used": 1}}])), "'used', which no inventory has"),
        (
            document(entry([{"CUSTOM_A": {"total": 0}}])),
            "total of CUSTOM_A in .* is not a whole number from 1",
        ),
        (document(entry([{"CUSTOM_A": {"total": True}}])), "is not a whole number"),
        (document(entry([{"CUSTOM_A": {"total": 1, "reserved": 2}}])), "more than its total"),
        (document(entry([{"CUSTOM_A": {"total": 1, "allocation_ratio": 0}}])), "not a number above 0"),
        (document(entry([{"CUSTOM_A": {"total": 1, "allocation_ratio": float("nan")}}])), "not a number"),
        (document(entry([{"CUSTOM_A": {"total": 1}}, {"CUSTOM_A": {"total": 1}}])), "has CUSTOM_A twice"),
    ],
)
def test_content_that_nova_or_placement_would_refuse_is_refused(content, said):
    with pytest.raises(ConfigError, match=said):
        parse(content)


def test_two_files_that_say_something_of_one_provider_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"1.yaml: the provider host has a definition in 0.yaml already"):
        parse(*[document(entry(traits=["CUSTOM_T"], name="host"))] * 2)


def test_a_later_minor_version_and_entries_that_add_nothing_are_warned_of():
    one = {**entry(traits=["CUSTOM_T"]), "later": 1}
    found = parse(document(one, entry([], [], name="empty"), entry(name="empty"), version="1.7"))
    assert [config.provider_id for config in found.configs] == ["$COMPUTE_NODE"]
    assert "has schema version 1.7, but 1.0 is known" in found.warnings[0]
    assert found.warnings[1].endswith("empty has no additional inventories or traits and is ignored")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["1.0", "CUSTOM_A", ROOT]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["uuid", "name", "additional", "CUSTOM_A", "total", "traits", "inventories"]),
            inner,
        )
    ),
    max_leaves=10,
)


@given(st.lists(values | st.fixed_dictionaries({"identification": values}, optional={"traits": values})))
def test_whatever_is_in_a_file_it_is_taken_or_refused(providers):
    try:
        with_additions(TREE, parse(document(*providers)).configs)
    except ConfigError as error:
        said = str(error)
    else:
        said = "0.yaml"
    assert "0.yaml" in said
    assert said.isprintable()


@pytest.mark.parametrize("endless", ["0x" + "F" * 9000, "1" + ":59" * 3000])
def test_infinite_and_huge_numbers_are_refused(endless):
    text = document(entry([{"CUSTOM_A": {"total": "HERE"}}])).decode()
    for hostile in (text.replace("HERE", endless), text.replace("'1.0'", endless)):
        with pytest.raises(ConfigError, match="a number without end"):
            parse(hostile.encode())


def test_merges_of_merges_have_an_end():
    merged = ["a0: &a0 {CUSTOM_A: 1, CUSTOM_B: 2}"]
    merged += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 20)]
    with pytest.raises(ConfigError, match=r"yaml: the merge keys .* expand to more than"):
        parse("\n".join(merged).encode() + b"\n" + document())
    shared = "x: &x {total: 3, reserved: 1}\n"
    text = document(entry([{"CUSTOM_A": {"<<": "X"}}])).decode().replace("'<<': X", "<<: *x")
    (config,) = parse((shared + text).encode()).configs
    assert config.inventories["CUSTOM_A"] == ProviderInventory(3, reserved=1, max_unit=LARGEST)


def test_files_are_read_in_the_order_of_their_names_and_others_are_not(tmp_path):
    for name in ("b.yaml", "a.yaml"):
        (tmp_path / name).write_bytes(document(entry(traits=["CUSTOM_T"], name=name)))
    for name in ("c.yml", ".d.yaml", "e.yaml~"):
        (tmp_path / name).write_bytes(b"[")
    assert [config.provider_id for config in read_provider_configs(str(tmp_path)).configs] == [
        "a.yaml",
        "b.yaml",
    ]


def test_without_a_folder_or_files_there_is_a_word_and_without_the_option_nothing(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        (warning,) = read_provider_configs(str(folder)).warnings
        assert warning == f"[compute] provider_config_location: there is no file *.yaml in {folder}"
    assert read_provider_configs("") == ProviderConfigs()


def test_pipes_and_large_files_are_refused_without_waiting(tmp_path):
    odd = tmp_path / "a.yaml"
    os.mkfifo(odd)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_provider_configs(str(tmp_path))
    odd.unlink()
    odd.write_bytes(b"#" * ((1 << 18) + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        read_provider_configs(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_provider_configs(str(odd))
