"""Tests of withholding units: they are reserved as far as no consumer holds them, at Placement's allocation
ratio.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.report.held_amounts import keep_withheld, most_reserved
from compute_agent.report.plan import OwnedNames, ReportedProvider
from compute_agent.report.reporter import HostReporter
from tests.compute_agent.builders import hold_resources

VCPU = ProviderInventory(16, 2, max_unit=16, allocation_ratio=4.0)
OWNED = {"n": OwnedNames(frozenset({"VCPU"}), written=frozenset({("VCPU", "reserved", 2)}))}


def tree(withheld, inventory=VCPU, configured=()):
    node = ProviderNode("node", "n", None, {"VCPU": inventory}, withheld={"VCPU": withheld})
    return ProviderTree((node,), frozenset(configured))


def there(**fields):
    return {"n": ReportedProvider("n", "node", None, 1, {"VCPU": replace(VCPU, **fields)})}


def kept(derived, reported, used, owned=OWNED):
    found, (said,) = keep_withheld(derived, reported, owned, lambda uuid, name: used)
    return found.root.inventories["VCPU"].reserved, said


def test_withheld_units_add_to_the_reserve():
    reserved, said = kept(tree(5), there(), 30)
    assert reserved == 7
    assert (said.in_full, said.reserved) == (True, 7)
    assert said.outcome_text == "reserved of VCPU, 2 of it for other reasons"


def test_no_more_than_leaves_what_is_held():
    reserved, said = kept(tree(5), there(), 41)  # 11 CPUs
    assert reserved == 5
    assert str(said) == (
        "node (n): 5 VCPU are to be withheld; 5 reserved of VCPU, 2 of it for other reasons: more is not"
        " possible while 41 are held at an allocation ratio of 4"
    )


def test_the_ratio_is_that_of_placement_unless_an_option_sets_it():
    assert kept(tree(5), there(allocation_ratio=2.0), 20)[0] == 6
    assert kept(tree(5, configured=[("VCPU", "allocation_ratio")]), there(allocation_ratio=2.0), 20)[0] == 7


def test_a_reserve_set_through_the_api_stays_and_is_reported():
    _, said = kept(tree(5), there(reserved=4), 0)
    assert said.outcome_text == (
        "reserved of VCPU was set to 4 through the API and stays, so nothing is withheld:"
        " set it to 7 to withhold all"
    )
    assert not said.in_full
    assert str(said) == f"node (n): 5 VCPU are to be withheld; {said.outcome_text}"
    overruled = tree(5, configured=[("VCPU", "reserved")])
    assert kept(overruled, there(reserved=4), 0)[1].in_full


def test_held_amounts_are_not_read_without_units_to_withhold():
    for derived, reported in ((tree(0), there()), (tree(3), {})):
        keep_withheld(derived, reported, {}, lambda uuid, name: 1 / 0)
    assert kept(tree(99), {}, 0)[0] == 16


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.floats(0.01, 20) | st.sampled_from([0.1, 1.0, 1.5, 4.0, 16.0]),
    st.integers(0, 600),
)
def test_the_reserve_is_the_largest_that_leaves_held_amounts(total, reserved, ratio, used):
    reserved = min(reserved, total)
    inventory = ProviderInventory(total, reserved)
    fitting = [r for r in range(reserved, total + 1) if int((total - r) * ratio) >= used]
    assert most_reserved(inventory, ratio, used) == max(fitting, default=reserved)


def test_placement_takes_it_and_gives_no_more_out(client):
    """A claim that comes between two reports keeps its amount, and less is reserved then."""
    reporter = HostReporter(client, {}, lambda owned: None)
    uuid = "5b0c0000-0000-4000-8000-00000000aa01"
    node = replace(tree(12).root, uuid=uuid)
    derived = ProviderTree((node,))
    reporter.report_tree(replace(derived, nodes=(replace(node, withheld={}),)))
    hold_resources(client, "5b0c0000-0000-4000-8000-00000000aa02", {uuid: {"VCPU": 16}})
    reporter.report_tree(derived)
    assert client.get_inventories(uuid)[0]["VCPU"]["reserved"] == 12
    (said,) = reporter.waiting.withheld
    assert (said.asked, said.reserved, said.held, said.in_full) == (12, 12, 16, False)
    assert reporter.adjustments == ()
