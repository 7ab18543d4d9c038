"""Tests of which hosts have the settings of their group, compared with a simple count, and of attributes by
other clients.
"""

import math
from http import HTTPStatus

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import settings
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import READER, read_page
from tests.placement_extras.console.providers import provider

HOSTS = st.lists(
    st.tuples(
        st.sampled_from(["", "edge", "core"]), st.integers(0, 3), st.sampled_from(["", "no"]), st.booleans()
    ),
    max_size=8,
)


@given(HOSTS)
def test_followers_are_the_same_as_by_counting_one_by_one(hosts):
    providers = []
    for group, generation, trouble, beside in hosts:
        root = len(providers) + 1
        told: dict[str, str | float] = {settings.GROUP: group, settings.GENERATION: float(generation)}
        if trouble:
            told[settings.TROUBLE] = trouble
        told = told if group else {}
        providers += [provider(root, {} if beside else told), provider(root + 1, told, root=root)]
    shown = settings.make_page(ModelSnapshot(providers))
    of = {name: [each for each in hosts if each[0] == name] for name in ("core", "edge")}
    at = {name: at_of([each[1] for each in some]) for name, some in of.items() if some}
    assert [
        (each.name, each.common, each.hosts, each.behind, each.ahead, each.in_trouble)
        for each in shown.groups.rows
    ] == [
        (
            name,
            at[name],
            len(some),
            len([each for each in some if each[1] < at[name]]),
            len([each for each in some if each[1] > at[name]]),
            len([each for each in some if each[2]]),
        )
        for name, some in of.items()
        if some
    ]
    assert shown.without == len([each for each in hosts if not each[0]])
    assert [each.root.id for each in shown.apart.rows] == [
        2 * place + 1
        for place, (group, generation, trouble, _) in enumerate(hosts)
        if group and (trouble or generation != at[group])
    ]


def at_of(generations):
    """The newest generation that at least two hosts, or a tenth of them, have. For two hosts it is the older
    one, for one host its own.
    """
    wanted = min(len(generations), max(2, math.ceil(len(generations) / 10)))
    return max(one for one in generations if len([other for other in generations if other >= one]) >= wanted)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 3), st.integers(6, 10**30))
def test_fewer_hosts_than_a_tenth_and_than_two_move_nothing_whatever_they_say(honest, liars, said):
    few = max(each for each in range(liars + 1) if each < max(2, math.ceil((len(honest) + each) / 10)))
    found = settings.common_generation([*honest, *[said] * few])
    assert found <= max(honest)
    assert settings.common_generation(honest) == at_of(honest)


def test_one_host_with_a_huge_generation_is_ahead_and_no_other_is_behind():
    told = [
        {settings.GROUP: "edge", settings.GENERATION: generation} for generation in (1e300, *[7.0] * 30, 6.0)
    ]
    hosts = [provider(number, attributes) for number, attributes in enumerate(told, 1)]
    shown = settings.make_page(ModelSnapshot(hosts))
    (group,) = shown.groups.rows
    assert (group.common, group.behind, group.ahead) == (7, 1, 1)
    assert [(each.root.name, each.generation) for each in shown.apart.rows] == [("cn1", 2**53), ("cn32", 6)]


def test_pages_go_on_where_the_last_one_ended():
    told: dict[str, str | float] = {settings.GROUP: "edge", settings.TROUBLE: "no"}
    snapshot = ModelSnapshot([provider(number, told) for number in range(1, 121)])
    pages = [settings.make_page(snapshot, number).apart for number in (1, 2, 3, 4)]
    assert [each.root.id for page in pages[:3] for each in page.rows] == list(range(1, 121))
    assert pages[3] == pages[2]


def test_attributes_of_a_host_are_shown_as_text_and_odd_values_break_nothing(client):
    answer = client.get("/console/settings")
    assert "&lt;b&gt;[compute] cpu_dedicated_set&lt;/b&gt;: CPU 99" in answer.text
    text = read_page(client, "/console/settings")
    assert "edge 7 4 1 1 0" in text
    assert "compute-2 edge 6 It has not applied generation 7 yet." in text
    assert "compute-10 edge 8 It is ahead of its group" in text
    for page in ("0", "-1", "9" * 99, "x", "\N{SUPERSCRIPT TWO}"):
        assert client.get("/console/settings", query_string={"page": page}).status_code == HTTPStatus.OK
    for told in ({settings.GROUP: 5}, {settings.GROUP: "", settings.GENERATION: "x", settings.TROUBLE: 1}):
        settings.make_page(ModelSnapshot([provider(1, told)]), 1)


def test_the_page_of_a_host_shows_it_too_with_the_right_to_read_attributes(client):
    text = read_page(client, f"/console/providers/{world.uuid_of('compute-1')}")
    assert "settings of the fleet for edge generation 7" in text
    text = read_page(client, f"/console/providers/{world.uuid_of(world.LONG)}")
    assert "does not apply the settings of its group: the revision" in text
    assert client.get("/console/settings", headers=READER).status_code == HTTPStatus.FORBIDDEN
