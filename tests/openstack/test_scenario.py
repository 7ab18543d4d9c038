"""Nova writes the same data in a cloud on this service and in one on OpenStack Placement."""

import pytest

from tests.openstack.cloud import cloud
from tests.openstack.ground import Ground
from tests.openstack.placement import KINDS
from tests.openstack.scenario import play
from tests.openstack.table import differences, table

pytestmark = [pytest.mark.slow, pytest.mark.openstack]


def test_nova_writes_the_same_data_on_both_services(
    openstack: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    stories = {}
    for kind in KINDS:
        with cloud(openstack, kind) as running:
            stories[kind] = list(play(running))
    with capsys.disabled():
        print(table(stories["ours"], stories["stock"]))
    assert differences(stories["ours"], stories["stock"]) == []
