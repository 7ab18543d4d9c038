"""Tests of flavors instead of queries in the request bodies of ``/ext/v1``."""

import logging

import pytest

from placement.db import migration
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    read_allocations,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import after
from tests.placement.running import Admin, application

FLAVOR = {"vcpus": 4, "ram": 2048, "disk": 10, "swap": 1500}
SIZES = {"MEMORY_MB": 8192, "DISK_GB": 100}


@pytest.fixture
def url(sqlite_url):
    return sqlite_url


def serving(url, config_files=(), **options):
    """Return an administrator of a service with these options of ``[flavors]``."""
    return Admin(application(url, config_files, flavors=options))


@pytest.fixture
def admin(url):
    return serving(url)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """An administrator of a service. All tests of refused requests share the service."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ext')}/placement.sqlite"
    migration.upgrade_schema(url)
    return serving(url)


def asks(flavor=FLAVOR, **specs):
    """Return the body of a claim of a new consumer."""
    claimed = new_claim("", flavor={**flavor, "extra_specs": specs})
    del claimed["query"]
    return claimed


def have(admin, uuid, *traits):
    """Set the traits of a provider; custom traits are created."""
    for trait in traits:
        if trait.startswith("CUSTOM_"):
            assert admin("PUT", f"/traits/{trait}").status_code in (201, 204)
    generation = admin("GET", f"/resource_providers/{uuid}").json["generation"]
    body = {"resource_provider_generation": generation, "traits": list(traits)}
    assert admin("PUT", f"/resource_providers/{uuid}/traits", json=body).status_code == 200


def test_a_claim_of_a_flavor_takes_the_amounts_that_nova_would_ask_for(admin):
    uuid = make_provider(admin, "cn", VCPU=8, **SIZES)
    wanted = asks()
    answer = post_claims(admin, wanted)
    assert answer.status_code == 201
    expected = {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 12}
    assert answer.json["claims"][0]["allocations"] == {uuid: {"resources": expected}}
    assert read_allocations(admin, wanted["consumer_uuid"])["allocations"][uuid]["resources"] == expected


def test_dedicated_cpus_and_traits_decide_about_the_host(admin):
    make_provider(admin, "shared", VCPU=8, **SIZES)
    threaded = make_provider(admin, "threaded", PCPU=8, **SIZES)
    have(admin, threaded, "HW_CPU_HYPERTHREADING", "CUSTOM_GOLD")
    whole = make_provider(admin, "whole", PCPU=8, **SIZES)
    have(admin, whole, "CUSTOM_GOLD")
    specs = {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate", "trait:CUSTOM_GOLD": "required"}
    answer = post_claims(admin, asks(**specs))
    assert (answer.status_code, answer.json["claims"][0]["root_provider_uuid"]) == (201, whole)
    assert answer.json["claims"][0]["allocations"][whole]["resources"]["PCPU"] == 4


def test_hosts_with_a_disabled_service_get_no_guest(admin):
    have(admin, make_provider(admin, "cn", VCPU=8, **SIZES), "COMPUTE_STATUS_DISABLED")
    answer = post_claims(admin, asks())
    assert read_error(answer)[:2] == (409, "placement.ext.no_candidate")
    assert "COMPUTE_STATUS_DISABLED" in answer.json["errors"][0]["explanation"]["summary"]


def test_a_flavor_and_a_query_are_claimed_together(admin):
    make_provider(admin, "cn", VCPU=8, **SIZES)
    assert post_claims(admin, asks(), new_claim("resources=VCPU:5")).status_code == 409
    assert post_claims(admin, asks(), new_claim("resources=VCPU:4")).status_code == 201


def test_an_impossible_flavor_is_refused(admin):
    status, code, detail = read_error(post_claims(admin, asks(**{"hw:numa_nodes": "3"})))
    assert (status, code) == (400, "placement.ext.invalid_flavor")
    assert detail == (
        "No guest can have this flavor and image: 4 CPUs and 2048 MiB cannot be divided into 3 nodes."
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Either a 'query' or a 'flavor' is needed, and not both."),
        ({"query": "resources=VCPU:1", "flavor": FLAVOR}, "Either a 'query' or a 'flavor' is needed"),
        ({"query": "resources=VCPU:1", "flavor": None}, "None is not of type 'object'"),
        ({"query": None, "flavor": FLAVOR}, "None is not of type 'string'"),
        ({"flavor": {**FLAVOR, "image": {"disk_format": None}}}, "None is not of type 'string'"),
        ({"flavor": {"ram": 1}}, "flavor: 'vcpus' is a required property"),
        (
            {"flavor": {"vcpu": 1, "ram": 1}},
            "flavor: 'vcpus' is a required property; unknown name 'vcpu' (did you mean vcpus?)",
        ),
        ({"flavor": {**FLAVOR, "vcpus": 4097}}, "4097 is greater than the maximum of 4096"),
        ({"flavor": {**FLAVOR, "extra_specs": {"a": 1}}}, "1 is not of type 'string'"),
        ({"flavor": {**FLAVOR, "extra_specs": {"a": "b" * 256}}}, "is too long"),
        ({"flavor": {**FLAVOR, "image": {"name": "cirros"}}}, "flavor: image: unknown name 'name'"),
        (
            {"flavor": {**FLAVOR, "image": {"properties": {"a": "b" * 40_000, "c": "d" * 40_000}}}},
            "together may have at most 65535 characters",
        ),
        ({"flavor": {**FLAVOR, "extra_specs": {"resources:CUSTOM_NONE": "1"}}}, "No such resource class"),
    ],
)
@pytest.mark.parametrize("path", ["claims", "explanations", "capacity"])
def test_an_invalid_flavor_is_refused(refusing, path, fields, said):
    claimed = new_claim("")
    del claimed["query"]
    bodies = {
        "claims": {"claims": [{**claimed, **fields}]},
        "explanations": fields,
        "capacity": {"flavors": [{"name": "small", **fields}]},
    }
    status, code, detail = read_error(refusing("POST", f"/ext/v1/{path}", json=bodies[path]))
    assert (status, code) == (400, "placement.undefined_code")
    assert said in detail


def test_a_flavor_is_explained(admin):
    make_provider(admin, "cn", VCPU=8, **SIZES)
    specs = {"hw:cpu_policy": "dedicated"}
    answer = admin("POST", "/ext/v1/explanations", json={"flavor": {**FLAVOR, "extra_specs": specs}})
    assert answer.status_code == 200
    assert (answer.json["microversion"], answer.json["candidate_hosts"]) == ("1.39", 0)
    assert "PCPU" in answer.json["summary"]


def test_flavors_are_counted(admin):
    make_provider(admin, "cn", VCPU=8, **SIZES)
    flavors = [{"name": "small", "flavor": FLAVOR}, {"name": "tiny", "query": "resources=VCPU:1"}]
    answer = admin("POST", "/ext/v1/capacity", json={"flavors": flavors, "microversion": "1.30"})
    assert answer.status_code == 200
    assert {each["name"]: each["lower_bound"] for each in answer.json["flavors"]} == {"small": 2, "tiny": 8}
    assert answer.json["microversion"] == "1.30"


def test_an_impossible_flavor_to_count_is_named(admin):
    flavors = [{"name": "odd", "flavor": {**FLAVOR, "extra_specs": {"hw:cpu_policy": "own"}}}]
    status, code, detail = read_error(admin("POST", "/ext/v1/capacity", json={"flavors": flavors}))
    assert (status, code) == (400, "placement.ext.invalid_flavor")
    assert detail.startswith("Flavor 'odd': No guest can have this flavor and image: hw:cpu_policy cannot be")


def test_ignored_parts_of_a_flavor_are_logged(admin, caplog):
    make_provider(admin, "cn", VCPU=8, **SIZES)
    logger = "placement_extras.flavors.form"
    with caplog.at_level(logging.WARNING, logger):
        assert post_claims(admin, asks(**{"resources:vgpu": "1"})).status_code == 201
    warnings = [record.getMessage() for record in caplog.records if record.name == logger]
    assert warnings == [
        "A part of a flavor was ignored, as in Nova: "
        "resources:vgpu names no resource class (did you mean VGPU?)"
    ]


WARNED = {"hw:cpu_polic": "dedicated"}
WARNING = "hw:cpu_polic is not an extra spec that Nova knows (did you mean hw:cpu_policy?)"


def bodies(**specs):
    """Return, by path, a request body with a flavor, and a function that finds the flavor's part of the
    answer.
    """
    flavor = {**FLAVOR, "extra_specs": specs}
    owned = {"flavor": flavor, "project_id": "web", "user_id": "ann"}
    return {
        "explanations": ({"flavor": flavor}, lambda answer: answer),
        "capacity": ({"flavors": [{"name": "a", "flavor": flavor}]}, lambda answer: answer["flavors"][0]),
        "claims": ({"claims": [asks(**specs)]}, lambda answer: answer["claims"][0]),
        "reservations": ({**owned, "expires_in": 60}, lambda answer: answer),
    }


@pytest.mark.parametrize("path", bodies())
def test_unknown_parts_of_a_flavor_are_answered_as_warnings(admin, path):
    make_provider(admin, "cn", VCPU=8, **SIZES)
    for specs, warnings in ((WARNED, [WARNING]), ({}, [])):
        body, of_flavor = bodies(**specs)[path]
        answer = admin("POST", f"/ext/v1/{path}", json=body)
        assert answer.status_code in (200, 201)
        assert of_flavor(answer.json)["warnings"] == warnings


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("resource:LLC", "resources:LLC"),
        ("Resources:LLC", "resources:LLC"),
        ("resouces1:LLC", "resources:LLC"),
        ("tait:CUSTOM_FAST", "trait:CUSTOM_FAST"),
        ("HW:cpu_policy", "hw:cpu_policy"),
        ("capability:hypervisor_type", "capabilities:hypervisor_type"),
        ("group_polcy", "group_policy"),
    ],
)
def test_a_misspelt_namespace_of_a_flavor_is_answered_and_refused(admin, spec, meant):
    make_provider(admin, "cn", VCPU=8, LLC=10, **SIZES)
    warning = f"{spec} is not an extra spec that Nova knows (did you mean {meant}?)"
    assert post_claims(admin, asks(**{spec: "1"})).json["claims"][0]["warnings"] == [warning]
    refusal_error = post_claims(admin, {**asks(**{spec: "1"}), "strict": True})
    assert read_error(refusal_error)[:2] == (400, "placement.ext.invalid_flavor")
    assert warning in read_error(refusal_error)[2]


def test_namespaces_of_other_programs_pass_a_strict_claim(admin):
    make_provider(admin, "cn", VCPU=8, LLC=10, **SIZES)
    foreign = {"billing:rate": "7", "compute_agent:qos_class": "BE", "trove:kind": "x", "cpu_model": "y"}
    claimed = post_claims(admin, {**asks(**foreign, **{"resources:LLC": "2"}), "strict": True})
    assert claimed.status_code == 201
    assert claimed.json["claims"][0]["warnings"] == []


@pytest.mark.parametrize("path", bodies())
def test_unknown_parts_of_a_flavor_are_refused_by_a_strict_request(admin, path):
    make_provider(admin, "cn", VCPU=8, **SIZES)
    body, _ = bodies(**WARNED)[path]
    strict = [{**each, "strict": True} for each in body["claims"]] if path == "claims" else None
    answer = admin("POST", f"/ext/v1/{path}", json={"claims": strict} if strict else {**body, "strict": True})
    status, code, detail = read_error(answer)
    assert (status, code) == (400, "placement.ext.invalid_flavor")
    assert f"The flavor is not understood: {WARNING}" in detail


def test_a_refused_claim_lists_ignored_parts_of_its_flavor(admin):
    make_provider(admin, "cn", VCPU=2, **SIZES)
    answer = post_claims(admin, asks(**WARNED))
    assert read_error(answer)[2].endswith(f" Ignored parts of the flavor: {WARNING}.")
    assert answer.json["errors"][0]["explanation"]["warnings"] == [WARNING]


@pytest.mark.parametrize("path", bodies())
def test_a_flavor_gets_the_cache_that_it_asks_for(admin, path):
    make_provider(admin, "without", VCPU=8, **SIZES)
    body, _ = bodies(**{"resources:LLC": "4"})[path]
    first = admin("POST", f"/ext/v1/{path}", json=body)
    if path in ("claims", "reservations"):
        assert first.status_code == 409
    elif path == "capacity":
        assert first.json["flavors"][0]["lower_bound"] == 0
    else:
        assert first.json["candidate_hosts"] == 0
    cached = make_provider(admin, "cached", VCPU=8, LLC=10, **SIZES)
    second = admin("POST", f"/ext/v1/{path}", json=body)
    assert second.status_code in (200, 201)
    if path == "claims":
        assert second.json["claims"][0]["allocations"][cached]["resources"]["LLC"] == 4
    elif path == "reservations":
        assert second.json["reservation"]["allocations"][cached]["resources"]["LLC"] == 4
    elif path == "capacity":
        assert second.json["flavors"][0]["lower_bound"] == 2
    else:
        assert second.json["candidate_hosts"] == 1


@pytest.mark.parametrize(
    ("option", "trait", "image"),
    [
        ("query_placement_for_image_type_support", "COMPUTE_IMAGE_TYPE_QCOW2", {"disk_format": "qcow2"}),
        ("image_metadata_prefilter", "HW_ARCH_AARCH64", {"properties": {"architecture": "AArch64"}}),
        ("require_owner_nova", "OWNER_NOVA", {}),
    ],
)
def test_options_add_required_traits_of_hosts(url, option, trait, image):
    flavor = {**FLAVOR, "image": image}
    uuid = make_provider(serving(url), "cn", VCPU=8, **SIZES)
    assert post_claims(serving(url), asks(flavor)).status_code == 201
    filtered = serving(url, **{option: True})
    answer = post_claims(filtered, asks(flavor))
    assert read_error(answer)[:2] == (409, "placement.ext.no_candidate")
    assert trait in answer.json["errors"][0]["explanation"]["summary"]
    have(filtered, uuid, trait)
    assert post_claims(filtered, asks(flavor)).status_code == 201


def test_pci_devices_come_from_providers_with_the_class_of_their_alias(url, tmp_path):
    conf = tmp_path / "placement.conf"
    conf.write_text(
        "[flavors]\n"
        'pci_alias = {"name": "nic", "vendor_id": "8086", "product_id": "154d"}\n'
        'pci_alias = {"name": "gpu", "resource_class": "a100", "traits": "gold"}\n'
    )
    admin = serving(url, config_files=[str(conf)])
    assert admin("PUT", "/resource_classes/CUSTOM_A100").status_code == 201
    root = make_provider(admin, "cn", VCPU=8, **SIZES)
    gpu = admin("POST", "/resource_providers", json={"name": "gpu", "parent_provider_uuid": root}).json[
        "uuid"
    ]
    body = {"resource_provider_generation": 0, "inventories": {"CUSTOM_A100": {"total": 2}}}
    assert admin("PUT", f"/resource_providers/{gpu}/inventories", json=body).status_code == 200
    have(admin, gpu, "CUSTOM_GOLD")
    answer = post_claims(admin, asks(**{"pci_passthrough:alias": "gpu:2"}))
    assert answer.status_code == 201
    (claimed,) = answer.json["claims"]
    assert claimed["allocations"][gpu] == {"resources": {"CUSTOM_A100": 2}}
    assert (claimed["mappings"]["_PCI_0"], claimed["mappings"]["_PCI_1"]) == ([gpu], [gpu])


def test_a_repeated_pci_alias_keeps_the_service_from_starting(url, tmp_path):
    conf = tmp_path / "placement.conf"
    conf.write_text("[flavors]\n" + 'pci_alias = {"name": "gpu", "resource_class": "VGPU"}\n' * 2)
    with pytest.raises(ValueError, match=r"\[flavors\] pci_alias: gpu occurs more than once"):
        serving(url, config_files=[str(conf)])


def test_dedicated_cpus_fall_back_to_shared_ones_if_so_configured(url):
    uuid = make_provider(serving(url), "old", VCPU=8, **SIZES)
    pinned = asks(**{"hw:cpu_policy": "dedicated"})
    assert read_error(post_claims(serving(url), pinned))[:2] == (409, "placement.ext.no_candidate")
    falling = serving(url, disable_fallback_pcpu_query=False)
    answer = post_claims(falling, pinned)
    assert (answer.status_code, answer.json["claims"][0]["allocations"][uuid]["resources"]["VCPU"]) == (
        201,
        4,
    )


def test_a_host_that_has_dedicated_cpus_goes_before_one_to_fall_back_to(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    old, new = make_provider(falling, "old", VCPU=8, **SIZES), make_provider(falling, "new", PCPU=6, **SIZES)
    pinned = [asks(**{"hw:cpu_policy": "dedicated"}) for _ in range(3)]
    answer = post_claims(falling, *pinned)
    assert answer.status_code == 201
    assert [each["root_provider_uuid"] for each in answer.json["claims"]] == [new, old, old]


def test_a_claim_that_ends_falls_back_only_if_no_host_has_dedicated_cpus(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    # a claim that ends is placed on few hosts at a time
    old = {make_provider(falling, f"old-{number}", VCPU=8, **SIZES) for number in range(9)}
    new = make_provider(falling, "new", PCPU=4, **SIZES)
    pinned = [asks(**{"hw:cpu_policy": "dedicated"}) for _ in range(2)]
    roots = [
        post_claims(falling, each, ends_at=after(3600)).json["claims"][0]["root_provider_uuid"]
        for each in pinned
    ]
    assert (roots[0], roots[1] in old) == (new, True)


def test_one_claim_falls_back_beside_another_one_that_cannot(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    old, new = make_provider(falling, "old", VCPU=8, **SIZES), make_provider(falling, "new", PCPU=4, **SIZES)
    answer = post_claims(falling, asks(**{"hw:cpu_policy": "dedicated"}), new_claim("resources=PCPU:4"))
    assert answer.status_code == 201
    assert [each["root_provider_uuid"] for each in answer.json["claims"]] == [old, new]


def test_hosts_to_fall_back_to_are_alternates_after_those_with_dedicated_cpus(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    old = make_provider(falling, "old", VCPU=8, **SIZES)
    new = {make_provider(falling, f"new-{number}", PCPU=8, **SIZES) for number in range(2)}
    answer = post_claims(falling, {**asks(**{"hw:cpu_policy": "dedicated"}), "alternates": 5})
    (claimed,) = answer.json["claims"]
    roots = [claimed["root_provider_uuid"], *(each["root_provider_uuid"] for each in claimed["alternates"])]
    assert (set(roots[:2]), roots[2:]) == (new, [old])


def test_a_fallback_may_have_nothing_to_split(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    old = make_provider(falling, "old", VCPU=8, DISK_GB=100)
    pinned = asks({**FLAVOR, "ram": 0}, **{"hw:cpu_policy": "dedicated"})
    answer = post_claims(falling, {**pinned, "topology": "best-effort"})
    assert (answer.status_code, answer.json["claims"][0]["root_provider_uuid"]) == (201, old)


def test_claims_that_fall_back_are_made_together_or_not_at_all(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    old, new = make_provider(falling, "old", VCPU=8, **SIZES), make_provider(falling, "new", PCPU=6, **SIZES)
    pinned = [asks(**{"hw:cpu_policy": "dedicated"}) for _ in range(4)]
    assert read_error(post_claims(falling, *pinned))[:2] == (409, "placement.ext.no_candidate")
    assert [read_usages(falling, each)["MEMORY_MB"] for each in (old, new)] == [0, 0]
    assert post_claims(falling, *pinned[:3]).status_code == 201


def test_an_explanation_covers_the_fallback_if_it_does_not_help_either(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    make_provider(falling, "old", VCPU=2, **SIZES)
    answer = post_claims(falling, asks(**{"hw:cpu_policy": "dedicated"}))
    assert read_error(answer)[:2] == (409, "placement.ext.no_candidate")
    explanation = answer.json["errors"][0]["explanation"]
    assert explanation["summary"].startswith("0 of 1 host: 1 has no PCPU")
    assert "for the fallback of the flavor: 0 of 1 host: 1 has less than 4 VCPU" in explanation["summary"]
    (reason,) = explanation["fallback"]["reasons"]
    assert (reason["condition"], reason["names"]) == ("capacity", ["VCPU"])


def test_the_fallback_of_a_flavor_is_explained_and_counted(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    make_provider(falling, "old", VCPU=9, **SIZES)
    make_provider(falling, "new", PCPU=4, **SIZES)
    flavor = {**FLAVOR, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    explained = falling("POST", "/ext/v1/explanations", json={"flavor": flavor}).json
    assert (explained["candidate_hosts"], explained["fallback"]["candidate_hosts"]) == (1, 1)
    body = {"flavors": [{"name": "pinned", "flavor": flavor}]}
    (counted,) = falling("POST", "/ext/v1/capacity", json=body).json["flavors"]
    assert (counted["lower_bound"], counted["candidate_hosts"]) == (1, 1)
    assert counted["fallback"] == {
        "lower_bound": 2,
        "upper_bound": 2,
        "capable_hosts": 1,
        "candidate_hosts": 1,
    }
    (counted,) = serving(url)("POST", "/ext/v1/capacity", json=body).json["flavors"]
    assert counted["fallback"] is None


def test_combined_counts_include_fallbacks(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    make_provider(falling, "old", VCPU=9, **SIZES)
    make_provider(falling, "new", PCPU=4, **SIZES)
    flavor = {**FLAVOR, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    body = {"flavors": [{"name": "pinned", "flavor": flavor, "proportion": 1}]}
    body["flavors"].append({"name": "cpu", "query": "resources=VCPU:1", "proportion": 1})
    # one guest takes the dedicated CPUs, the other one 4 of the 9 shared CPUs
    assert falling("POST", "/ext/v1/capacity", json=body).json["combined"]["guests"] == {
        "pinned": 2,
        "cpu": 2,
    }
    assert serving(url)("POST", "/ext/v1/capacity", json=body).json["combined"]["lower_bound"] == 1


def test_no_moves_are_needed_where_a_flavor_can_fall_back(url):
    falling = serving(url, disable_fallback_pcpu_query=False)
    make_provider(falling, "old", VCPU=4, **SIZES)
    flavor = {**FLAVOR, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    body = {"flavors": [{"name": "pinned", "flavor": flavor}], "moves": True}
    (told,) = falling("POST", "/ext/v1/capacity", json=body).json["flavors"]
    assert (told["moves"]["host"], told["moves"]["steps"], told["moves"]["lower_bound"]) == ("old", [], 0)
    (told,) = serving(url)("POST", "/ext/v1/capacity", json=body).json["flavors"]
    assert (told["moves"]["host"], told["moves"]["steps"], told["moves"]["lower_bound"]) == (None, None, None)
