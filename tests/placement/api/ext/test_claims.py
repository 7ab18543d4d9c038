"""Tests of ``POST /ext/v1/claims`` with single requests. Other modules test concurrent requests."""

import uuid

import pytest

from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    read_allocations,
    read_error,
    read_usages,
)
from tests.placement.running import Admin, application

PATH = "/ext/v1/claims"


@pytest.fixture
def admin(sqlite_url):
    return Admin(application(sqlite_url))


def test_a_claim_holds_the_candidate_that_was_found(admin):
    make_provider(admin, "small", VCPU=2)
    big = make_provider(admin, "big", VCPU=8, MEMORY_MB=1024)
    wanted = new_claim("resources1=VCPU:4,MEMORY_MB:512")
    answer = post_claims(admin, wanted)
    assert answer.status_code == 201
    allocations = {big: {"resources": {"VCPU": 4, "MEMORY_MB": 512}}}
    assert answer.json["claims"] == [
        {
            "consumer_uuid": wanted["consumer_uuid"],
            "consumer_generation": 1,
            "expires_at": None,
            "ends_at": None,
            "on_end": "none",
            "kept_until": None,
            "root_provider_uuid": big,
            "allocations": allocations,
            "mappings": {"1": [big]},
            "score": None,
            "warnings": [],
            "alternates": [],
        }
    ]
    found = read_allocations(admin, wanted["consumer_uuid"])
    assert found["allocations"][big]["resources"] == allocations[big]["resources"]
    shown = [found[name] for name in ("consumer_generation", "consumer_type", "project_id", "user_id")]
    assert shown == [1, "INSTANCE", "project", "user"]


def test_a_claim_without_a_candidate_is_explained_and_holds_nothing(admin, caplog):
    make_provider(admin, "cn", VCPU=8)
    wanted = new_claim("resources=VCPU:9")
    with caplog.at_level("INFO", "placement.api.errors"):
        answer = post_claims(admin, wanted)
    why = "0 of 1 host: 1 has less than 9 VCPU free (most: 8 on cn); asking for 8 VCPU would leave 1 host"
    detail = f"There is no candidate for consumer {wanted['consumer_uuid']}: {why}."
    assert read_error(answer) == (409, "placement.ext.no_candidate", detail)
    assert [line.getMessage() for line in caplog.records if "was refused" in line.msg] == [
        f"A claim or a reservation was refused: {detail}"
    ]
    explanation = answer.json["errors"][0]["explanation"]
    assert (explanation["summary"], explanation["candidate_hosts"]) == (why, 0)
    assert read_allocations(admin, wanted["consumer_uuid"]) == {"allocations": {}}


def test_a_whole_inventory_can_be_claimed_and_no_more(admin):
    hosts = [make_provider(admin, f"cn{number}", VCPU=4) for number in range(5)]
    answers = [post_claims(admin, new_claim("resources=VCPU:2")).status_code for _ in range(11)]
    assert answers == [201] * 10 + [409]
    assert [read_usages(admin, each) for each in hosts] == [{"VCPU": 4}] * 5


def test_the_limit_of_the_query_does_not_matter(admin):
    make_provider(admin, "cn", VCPU=4)
    assert (
        post_claims(
            admin, new_claim("resources=VCPU:2&limit=1"), new_claim("resources=VCPU:2&limit=1")
        ).status_code
        == 201
    )


def test_a_consumer_changes_its_allocation_without_room_for_both(admin):
    only = make_provider(admin, "cn", VCPU=8)
    wanted = new_claim("resources=VCPU:6")
    assert post_claims(admin, wanted).status_code == 201
    stale = post_claims(admin, {**wanted, "query": "resources=VCPU:8"})
    assert read_error(stale)[:2] == (409, "placement.concurrent_update")
    answer = post_claims(admin, {**wanted, "query": "resources=VCPU:8", "consumer_generation": 1})
    assert (answer.status_code, answer.json["claims"][0]["consumer_generation"]) == (201, 2)
    assert read_usages(admin, only) == {"VCPU": 8}
    assert read_allocations(admin, wanted["consumer_uuid"])["consumer_generation"] == 2


def test_several_are_claimed_together_or_not_at_all(admin):
    one, other = make_provider(admin, "one", VCPU=8), make_provider(admin, "other", VCPU=4)
    three = [new_claim("resources=VCPU:4") for _ in range(3)]
    assert post_claims(admin, *three, new_claim("resources=VCPU:1")).status_code == 409
    assert (read_usages(admin, one), read_usages(admin, other)) == ({"VCPU": 0}, {"VCPU": 0})
    assert post_claims(admin, *three).status_code == 201
    assert (read_usages(admin, one), read_usages(admin, other)) == ({"VCPU": 8}, {"VCPU": 4})


def test_the_explanation_of_several_claims_is_about_the_one_without_a_place(admin):
    make_provider(admin, "cn", VCPU=8)
    wanted = [new_claim("resources=VCPU:5"), new_claim("resources=VCPU:5")]
    status, code, detail = read_error(post_claims(admin, *wanted))
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert f"claim 2 of 2, consumer {wanted[1]['consumer_uuid']}: 0 of 1 host" in detail
    assert "(most: 3 on cn)" in detail


def test_too_many_equal_claims_are_refused_without_a_search_of_all_combinations(admin):
    for number in range(12):
        make_provider(admin, f"cn{number}", VCPU=4)
    answer = post_claims(admin, *[new_claim("resources=VCPU:1") for _ in range(49)])
    assert read_error(answer)[:2] == (409, "placement.ext.no_candidate")
    assert post_claims(admin, *[new_claim("resources=VCPU:1") for _ in range(48)]).status_code == 201


def test_a_claim_leaves_the_only_place_of_another_one_to_it(admin):
    make_provider(admin, "small", VCPU=4)
    big = make_provider(admin, "big", VCPU=8)
    for _ in range(8):  # whichever host is looked at first
        answer = post_claims(
            admin, new_claim("resources=VCPU:4"), new_claim("resources=VCPU:8"), dry_run=True
        )
        assert answer.status_code == 200
        assert answer.json["claims"][1]["root_provider_uuid"] == big


def test_a_dry_run_claims_nothing(admin):
    only = make_provider(admin, "cn", VCPU=4)
    wanted = new_claim("resources=VCPU:4")
    answer = post_claims(admin, wanted, dry_run=True)
    assert (answer.status_code, answer.json["claims"][0]["root_provider_uuid"]) == (200, only)
    assert read_allocations(admin, wanted["consumer_uuid"]) == {"allocations": {}}


def test_hosts_are_chosen_among_allowed_and_not_excluded_ones(admin):
    hosts = {make_provider(admin, f"cn{number}", VCPU=1) for number in range(4)}
    first, second, third, fourth = sorted(hosts)
    answer = post_claims(
        admin,
        new_claim("resources=VCPU:1", allowed_hosts=[first]),
        new_claim("resources=VCPU:1", excluded_hosts=[second, third]),
    )
    assert [each["root_provider_uuid"] for each in answer.json["claims"]] == [first, fourth]


def test_the_explanation_is_about_the_hosts_that_may_be_chosen(admin):
    small, large = make_provider(admin, "small", VCPU=4), make_provider(admin, "large", VCPU=8)
    detail = read_error(post_claims(admin, new_claim("resources=VCPU:9", excluded_hosts=[large])))[2]
    why = "0 of 1 host: 1 has less than 9 VCPU free (most: 4 on small); asking for 4 VCPU would leave 1 host"
    assert detail.endswith(f": {why}; 1 host is excluded by excluded_hosts.")
    answer = post_claims(admin, new_claim("resources=VCPU:5", allowed_hosts=[small]))
    detail = read_error(answer)[2]
    assert "asking for 4 VCPU would leave 1 host; 1 host is excluded by allowed_hosts" in detail
    explanation = answer.json["errors"][0]["explanation"]
    assert detail.endswith(f": {explanation['summary']}.")
    assert [explanation[name] for name in ("hosts", "candidate_hosts")] == [1, 0]
    assert [each["max_amount"] for each in explanation["max_amounts"]] == [4]
    detail = read_error(
        post_claims(admin, new_claim("resources=VCPU:1", allowed_hosts=[small], excluded_hosts=[small]))
    )[2]
    assert detail.endswith(
        ": no host may be chosen: 1 host is excluded by allowed_hosts, 1 by excluded_hosts."
    )


def test_the_explanation_does_not_count_on_an_excluded_pool(admin):
    aggregate = str(uuid.uuid4())
    in_rack(admin, make_provider(admin, "cn", VCPU=8), aggregate)
    pool = in_rack(admin, make_provider(admin, "pool", DISK_GB=100), aggregate, "MISC_SHARES_VIA_AGGREGATE")
    answer = post_claims(admin, new_claim("resources=VCPU:1,DISK_GB:10", excluded_hosts=[pool]))
    explanation = answer.json["errors"][0]["explanation"]
    assert explanation["candidate_hosts"] == 0
    assert [each["changes"][0]["names"] for each in explanation["relaxations"]] == [["DISK_GB"]]
    # the error does not report 0 free units of the pool, because some units are free
    assert "1 has no provider with 10 DISK_GB free that is not avoided; " in explanation["summary"]
    assert explanation["reasons"][0]["examples"][0]["actual"] is None


def test_allowed_and_excluded_hosts_are_roots(admin):
    root = make_provider(admin, "cn", VCPU=8)
    child = make_provider(admin, "child", parent=root, PCPU=8)
    for name in ("allowed_hosts", "excluded_hosts"):
        for other in (child, SAME):
            for dry_run in (False, True):
                wanted = new_claim("resources=VCPU:1", **{name: [root, other]})
                status, code, detail = read_error(post_claims(admin, wanted, dry_run=dry_run))
                assert (status, code) == (400, "placement.undefined_code")
                assert detail == f"There is no root provider {other}, which {name} names."


def test_an_order_may_use_a_number_of_a_provider(admin):
    root = make_provider(admin, "cn", VCPU=8)
    body = {"attributes": {"price": 1, "room": "b"}, "resource_provider_generation": 1}
    assert admin("PUT", f"/ext/v1/resource_providers/{root}/attributes", json=body).status_code == 200
    assert post_claims(admin, new_claim("resources=VCPU:1", order={"attribute:price": -1})).status_code == 201
    for name in ("prise", "room"):
        answer = post_claims(admin, new_claim("resources=VCPU:1", order={"pack": 1, f"attribute:{name}": -1}))
        detail = f"The order names the attribute {name}, but no provider has a number for it."
        assert read_error(answer) == (400, "placement.undefined_code", detail)


def test_an_excluded_shared_pool_provides_nothing(admin):
    aggregate = str(uuid.uuid4())
    compute = make_provider(admin, "cn", VCPU=8)
    pools = [make_provider(admin, f"pool{number}", DISK_GB=100) for number in range(2)]
    in_rack(admin, compute, aggregate)
    for each in pools:
        in_rack(admin, each, aggregate, "MISC_SHARES_VIA_AGGREGATE")
    for avoided, left in (pools, pools[::-1]):
        answer = post_claims(admin, new_claim("resources=VCPU:1,DISK_GB:10", excluded_hosts=[avoided]))
        assert set(answer.json["claims"][0]["allocations"]) == {compute, left}
        assert answer.json["claims"][0]["root_provider_uuid"] == compute


def in_rack(admin, provider, rack, *traits):
    """Give a provider an aggregate and these traits; return the provider."""
    body = {"aggregates": [rack], "resource_provider_generation": 1}
    assert admin("PUT", f"/resource_providers/{provider}/aggregates", json=body).status_code == 200
    body = {"traits": list(traits), "resource_provider_generation": 2}
    assert admin("PUT", f"/resource_providers/{provider}/traits", json=body).status_code == 200
    return provider


def test_alternates_are_on_other_hosts(admin):
    hosts = {make_provider(admin, f"cn{number}", VCPU=8) for number in range(4)}
    (answer,) = post_claims(admin, new_claim("resources=VCPU:1", alternates=2)).json["claims"]
    roots = [each["root_provider_uuid"] for each in (answer, *answer["alternates"])]
    assert len(roots) == len(set(roots)) == 3
    assert all(each["allocations"][each["root_provider_uuid"]] for each in answer["alternates"])
    (answer,) = post_claims(admin, new_claim("resources=VCPU:1", alternates=100)).json["claims"]
    roots = [each["root_provider_uuid"] for each in (answer, *answer["alternates"])]
    assert sorted(roots) == sorted(hosts)


def test_alternates_are_on_all_hosts_although_a_pool_is_excluded(admin):
    """One host has its first choice on the excluded pool. It comes after the second choices of other
    hosts.
    """
    racks = {"left": str(uuid.uuid4()), "right": str(uuid.uuid4())}
    pools = [
        in_rack(
            admin,
            make_provider(admin, f"pool{number}", DISK_GB=100),
            racks[rack],
            "MISC_SHARES_VIA_AGGREGATE",
        )
        for number, rack in enumerate(("left", "left", "right", "right"))
    ]
    hosts = {
        in_rack(admin, make_provider(admin, f"cn{number}", VCPU=8), racks[rack])
        for number, rack in enumerate(("right", "right", "left"))
    }
    for _ in range(12):
        wanted = new_claim("resources=VCPU:1,DISK_GB:10", alternates=2, excluded_hosts=pools[:1])
        (answer,) = post_claims(admin, wanted, dry_run=True).json["claims"]
        roots = [each["root_provider_uuid"] for each in (answer, *answer["alternates"])]
        assert sorted(roots) == sorted(hosts)


def test_the_best_by_the_order_is_claimed_and_scores_are_shown(admin):
    make_provider(admin, "free", VCPU=8)
    full = make_provider(admin, "full", VCPU=4)
    (answer,) = post_claims(
        admin, new_claim("resources=VCPU:2", order={"pack": 2, "numa_nodes": 1}, alternates=1)
    ).json["claims"]
    assert answer["root_provider_uuid"] == full
    assert answer["score"] == {"total": 2.0, "criteria": {"pack": 0.5, "numa_nodes": 1.0}}
    (other,) = answer["alternates"]
    assert other["score"] == {"total": 1.5, "criteria": {"pack": 0.25, "numa_nodes": 1.0}}


@pytest.mark.parametrize("version", ["1.0", "1.39"])
def test_the_microversion_of_the_client_does_not_matter(admin, version):
    make_provider(admin, "cn", VCPU=8)
    headers = {"OpenStack-API-Version": f"placement {version}"}
    body = {"claims": [new_claim("resources1=VCPU:1")]}
    assert admin("POST", PATH, json=body, headers=headers).status_code == 201


SAME = str(uuid.uuid4())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'claims' is a required property"),
        ({"claims": []}, "should be non-empty"),
        (
            {"claims": [new_claim("resources=VCPU:1") for _ in range(65)]},
            "65 items are too many, the maximum is 64",
        ),
        ({"claims": [new_claim("resources=VCPU:1")], "dry_run": 1}, "is not of type 'boolean'"),
        (
            {"claims": [new_claim("resources=VCPU:1", flavors={})]},
            "unknown name 'flavors' (did you mean flavor?)",
        ),
        ({"claims": [new_claim("resources=VCPU:1", consumer_type="x")]}, "does not match"),
        ({"claims": [new_claim("resources=VCPU:1", allowed_hosts=[])]}, "should be non-empty"),
        (
            {"claims": [new_claim("resources=VCPU:1"), {}]},
            "claims: 'project_id' is a required property (item 2 of 'claims')",
        ),
        (
            {"claims": [new_claim("resources=VCPU:1", excluded_hosts=[SAME, "cn"])]},
            "claims: excluded_hosts: 'cn' is not the UUID of a root provider"
            " (item 1 of 'claims', item 2 of 'excluded_hosts')",
        ),
        (
            {"claims": [new_claim("?resources=VCPU:1")]},
            "Invalid query string parameters: unknown name '?resources' (did you mean resources?)",
        ),
        (
            {"claims": [new_claim("resource=VCPU:1&lmit=1&x=2")]},
            "unknown names 'lmit' (did you mean limit?), 'resource' (did you mean resources?), 'x'",
        ),
        ({"claims": [new_claim("resources=VCPU:1", allowed_hosts=None)]}, "None is not of type 'array'"),
        ({"claims": [new_claim("resources=VCPU:1", group=None)]}, "None is not of type 'object'"),
        (
            {"claims": [new_claim("resources=VCPU:1", allowed_hosts=["cn"])]},
            "is not the UUID of a root provider",
        ),
        (
            {"claims": [new_claim("resources=VCPU:1", order={"price": 1})]},
            "'price' is not a criterion: pack, spread",
        ),
        (
            {"claims": [new_claim("resources=VCPU:1", order={"pack": -1})]},
            "The weight of pack is below zero; only attributes may have negative weights",
        ),
        ({"claims": [new_claim("resources=VCPU:1", alternates=101)]}, "greater than the maximum of 100"),
        (
            {"claims": [new_claim("resources=VCPU:1", consumer_uuid=SAME)] * 2},
            "Claim 1 and claim 2 both name",
        ),
        ({"claims": [new_claim("resources=CUSTOM_NONE:1")]}, "No such resource class CUSTOM_NONE"),
        (
            {"claims": [new_claim("resources=VCPU:1&resources1=VCPU:1", microversion="1.24")]},
            "unknown name 'resources1'",
        ),
    ],
)
def test_an_invalid_claim_is_refused(admin, body, said):
    status, code, detail = read_error(admin("POST", PATH, json=body))
    assert (status, code) == (400, "placement.undefined_code")
    assert said in detail


def test_a_claim_needs_the_rights_of_a_service(admin):
    body = {"claims": [new_claim("resources=VCPU:1")]}
    answer = admin("POST", PATH, json=body, headers={"X-Roles": "reader"})
    assert read_error(answer)[::2] == (
        403,
        "Policy does not allow placement:ext:claims:create to be performed.",
    )


def with_nodes(admin, name, *free):
    """Make a host with NUMA nodes that have these amounts of PCPU; return the uuids of the nodes."""
    root = make_provider(admin, name)
    nodes = []
    for number, total in enumerate(free):
        node = make_provider(admin, f"{name}_{number}", parent=root, PCPU=total)
        body = {"resource_provider_generation": 1, "traits": ["HW_NUMA_ROOT"]}
        assert admin("PUT", f"/resource_providers/{node}/traits", json=body).status_code == 200
        nodes.append(node)
    return nodes


def test_dedicated_cpus_are_split_where_the_topology_allows_it(admin):
    nodes = with_nodes(admin, "cn", 4, 4)
    assert read_error(post_claims(admin, new_claim("resources=PCPU:8")))[1] == "placement.ext.no_candidate"
    status, code, detail = read_error(
        post_claims(admin, new_claim("resources=PCPU:8", topology="single-numa-node"))
    )
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert detail.endswith(
        ": topology single-numa-node leaves no place, best-effort would fit, asking for 4 PCPU would"
        " leave 1 host; without a topology 0 of 1 host: 1 has no NUMA node with 8 PCPU free (most: 4 on cn)."
    )
    answer = post_claims(admin, new_claim("resources=PCPU:9", topology="best-effort"))
    assert "best-effort leaves no place, asking for 8 PCPU would leave 1 host; " in read_error(answer)[2]
    explanation = answer.json["errors"][0]["explanation"]
    changes = [each["changes"] for each in explanation["relaxations"]]
    assert changes == [[{"condition": "resources", "group": "", "names": ["PCPU"], "amount": 8}]]
    assert (explanation["max_amounts"], explanation["incomplete"]) == ([], [])
    wanted = new_claim("resources=PCPU:8", topology="restricted", order={"numa_nodes": 1})
    answer = post_claims(admin, wanted)
    assert answer.status_code == 201
    (made,) = answer.json["claims"]
    assert made["allocations"] == {each: {"resources": {"PCPU": 4}} for each in nodes}
    assert made["mappings"] == {"": nodes}
    assert made["score"]["criteria"] == {"numa_nodes": 0.5}
    assert [read_usages(admin, each) for each in nodes] == [{"PCPU": 4}] * 2
    moved = post_claims(
        admin, {**wanted, "consumer_generation": 1, "query": "resources=PCPU:2", "topology": "spread"}
    )
    assert [each["resources"] for each in moved.json["claims"][0]["allocations"].values()] == [
        {"PCPU": 1}
    ] * 2
    detail = read_error(
        post_claims(
            admin,
            new_claim(
                "resources=PCPU:3", topology="single-numa-node", excluded_hosts=[made["root_provider_uuid"]]
            ),
        )
    )[2]
    assert detail.endswith(": no host may be chosen: 1 host is excluded by excluded_hosts.")


@pytest.mark.parametrize(
    ("steps", "topology", "asked", "fits"),
    [
        # of each node 3 of 4 are free: 9 need three nodes of an empty host, but 4 to 8 need fewer
        ((1, 1, 1), "restricted", 12, 9),
        # 4 of one node and 3 of the other: no multiple of one step
        ((4, 3), "best-effort", 12, 7),
    ],
)
def test_the_suggested_amount_is_the_largest_that_fits(admin, steps, topology, asked, fits):
    root = make_provider(admin, "cn")
    for number, step in enumerate(steps):
        node = make_provider(admin, f"cn_{number}", parent=root)
        inventory = {"total": 4, "step_size": step}
        body = {"resource_provider_generation": 0, "inventories": {"PCPU": inventory}}
        assert admin("PUT", f"/resource_providers/{node}/inventories", json=body).status_code == 200
        body = {"resource_provider_generation": 1, "traits": ["HW_NUMA_ROOT"]}
        assert admin("PUT", f"/resource_providers/{node}/traits", json=body).status_code == 200
    if topology == "restricted":
        others = "&".join(f"resources{number}=PCPU:1" for number, _ in enumerate(steps, 1))
        assert post_claims(admin, new_claim(f"{others}&group_policy=isolate")).status_code == 201
    answer = post_claims(admin, new_claim(f"resources=PCPU:{asked}", topology=topology))
    (relaxation,) = answer.json["errors"][0]["explanation"]["relaxations"]
    assert relaxation["changes"] == [
        {"condition": "resources", "group": "", "names": ["PCPU"], "amount": fits}
    ]
    wanted = new_claim(f"resources=PCPU:{fits}", topology=topology)
    assert post_claims(admin, wanted).status_code == 201


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topology": "near"}, "near"),
        ({"topology": "spread", "query": "resources=VCPU:1"}, "PCPU and MEMORY_MB"),
        ({"topology": "spread", "query": "resources1=PCPU:1"}, "PCPU and MEMORY_MB"),
        ({"topology": "spread", "microversion": "1.28"}, "1.29"),
    ],
)
def test_an_invalid_topology_is_refused(admin, fields, why):
    status, _, detail = read_error(post_claims(admin, {**new_claim("resources=PCPU:1"), **fields}))
    assert status == 400
    assert why in detail


def test_an_amount_above_the_limit_of_an_allocation_is_refused_before_the_search(admin):
    make_provider(admin, "cn", VCPU=8)
    detail = "Requested resource VCPU requires amount <= 2147483647. Got: 18446744073709551616."
    answer = post_claims(admin, new_claim("resources=VCPU:18446744073709551616"))
    assert read_error(answer) == (400, "placement.undefined_code", detail)
    assert read_error(post_claims(admin, new_claim("resources=VCPU:2147483647")))[:2] == (
        409,
        "placement.ext.no_candidate",
    )


def test_the_number_of_criteria_of_an_order_is_limited(admin):
    root = make_provider(admin, "cn", VCPU=8)
    order = {f"attribute:a{number}": 1 for number in range(32)}
    body = {"attributes": {f"a{number}": 1 for number in range(32)}, "resource_provider_generation": 1}
    assert admin("PUT", f"/ext/v1/resource_providers/{root}/attributes", json=body).status_code == 200
    assert post_claims(admin, new_claim("resources=VCPU:1", order=order)).status_code == 201
    status, _, detail = read_error(
        post_claims(admin, new_claim("resources=VCPU:1", order={**order, "pack": 1}))
    )
    assert status == 400
    assert "33 properties are too many, the maximum is 32" in detail


def test_a_claim_makes_no_consumer_that_looks_like_a_reservation(admin):
    make_provider(admin, "cn", VCPU=8)
    wanted = new_claim("resources=VCPU:1", consumer_type="RESERVATION")
    status, _, detail = read_error(post_claims(admin, wanted))
    assert status == 400
    assert "only POST /ext/v1/reservations creates" in detail
    assert read_allocations(admin, wanted["consumer_uuid"]) == {"allocations": {}}
    assert post_claims(admin, {**wanted, "consumer_type": "INSTANCE"}).status_code == 201
    status, _, detail = read_error(post_claims(admin, {**wanted, "consumer_generation": 1}))
    assert (status, "only POST /ext/v1/reservations creates" in detail) == (400, True)


@pytest.mark.parametrize("which", ["allowed_hosts", "excluded_hosts"])
def test_the_number_of_named_hosts_is_limited(admin, which):
    make_provider(admin, "cn", VCPU=8)
    hosts = [str(uuid.UUID(int=number)) for number in range(1025)]
    status, _, detail = read_error(post_claims(admin, new_claim("resources=VCPU:1", **{which: hosts})))
    assert (status, which in detail, "1024" in detail) == (400, True, True)
    detail = read_error(post_claims(admin, new_claim("resources=VCPU:1", **{which: hosts[1:]})))[2]
    assert detail == f"There is no root provider {hosts[1]}, which {which} names."  # 1024 are accepted
