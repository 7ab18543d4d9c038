"""Tests of cache ways and bandwidth claimed at OpenStack Placement, which has other names for their
classes.
"""

import functools

import pytest

from benchmarks.reference import ReferenceMissing
from compute_agent.report.client import PlacementClient
from tests.compute_agent.agent.cache_agent import CacheAgent, uid
from tests.compute_agent.builders import load_options
from tests.compute_agent.servers import running

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(write_host, files, tmp_path):
    folder = tmp_path / "stock"
    folder.mkdir()
    try:
        with running("stock", folder) as url:
            write = functools.partial(
                write_host, placement=f"auth_type = admin_token\nendpoint = {url}\ntoken = admin"
            )
            client = PlacementClient.from_conf(load_options(write("client.ini")))
            rig = CacheAgent(write, client, files)
            yield rig
            rig.close()
    except ReferenceMissing as error:
        pytest.skip(f"OpenStack Placement cannot be installed: {error}")


def test_a_claim_at_a_stock_server_becomes_a_group(rig):
    assert rig.inventory(rig.l3(1), "CUSTOM_LLC")["reserved"] == 2
    rig.claim_on(uid(1), {rig.l3(1): {"CUSTOM_LLC": 4, "CUSTOM_MBA": 30}})
    rig.run(uid(1), name="db")
    own = rig.groups()[f"compute-agent.guest.{uid(1)}"]
    assert (own["guests"], own["ways"]["1"], own["bandwidth_percent"]["1"]) == (["db"], 4, 30)
