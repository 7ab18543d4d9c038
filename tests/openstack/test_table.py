"""Two stories are compared step by step, and differences are named."""

from tests.openstack.record import Record
from tests.openstack.table import differences, table


def claim(amount: int) -> Record:
    """A host with one guest of this size."""
    amounts = {"host": {"VCPU": amount}}
    providers = {"host": {"parent": None, "usages": {"VCPU": amount}, "traits": ["CUSTOM_A"]}}
    return Record(providers, {"guest": {"consumer_type": "INSTANCE", "allocations": amounts}}, ("CUSTOM_A",))


def test_equal_stories_have_no_differences():
    assert differences([("boot", claim(1))], [("boot", claim(1))]) == []


def test_a_difference_is_named_by_its_step_and_its_place():
    ours, stock = [("boot", claim(1)), ("resize", claim(1))], [("boot", claim(1)), ("resize", claim(2))]
    assert differences(ours, stock) == [
        "resize: allocations.guest.allocations.host.VCPU: 1 instead of 2",
        "resize: providers.host.usages.VCPU: 1 instead of 2",
    ]


def test_an_object_on_one_side_is_a_difference():
    assert differences([("boot", Record())], [("boot", Record({}, {}, ("CUSTOM_A",)))]) == [
        "boot: custom: () instead of ('CUSTOM_A',)"
    ]


def test_a_story_that_ends_early_differs():
    found = differences([("boot", claim(1))], [("boot", claim(1)), ("delete", Record())])
    assert found == ["step '' is 'delete'"]


def test_the_table_has_a_row_with_the_changes_of_each_step():
    ours = [("boot", claim(1)), ("stop", claim(1)), ("delete", Record())]
    rows = table(ours, [("boot", claim(1)), ("stop", claim(1)), ("delete", claim(1))])
    assert rows.splitlines()[2:] == [
        "| boot | guest: host VCPU=1 | yes |",
        "| stop | - | yes |",
        "| delete | guest: nothing | **no** |",
    ]
