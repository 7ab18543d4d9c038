"""Tests of the annotation of guests with cache shares, in the spelling of Koordinator."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.classes.guest_classes import parse_annotation
from compute_agent.resctrl.bandwidth import BandwidthRate
from compute_agent.resctrl.share_spec import BadShareError, ShareSpec, WayRange

DESIGN = """{"LLC": {"schemata": {"range": [20, 80]},
                     "schemataPerCache": [{"cacheid": 0, "range": [20, 50]}]},
             "MB": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheid": 1, "percent": 40}]}}"""


def test_both_spellings_of_koordinator_mean_the_same():
    api = DESIGN.replace("LLC", "llc").replace("MB", "mb").replace("cacheid", "cacheID")
    wish = ShareSpec(WayRange(20, 80), {0: WayRange(20, 50)}, 20, {1: 40})
    assert parse_annotation(DESIGN) == parse_annotation(api) == wish
    assert wish.range_on(0) == WayRange(20, 50)
    assert wish.range_on(1) == WayRange(20, 80)
    assert (wish.cap_on(0), wish.cap_on(1)) == (20, 40)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("", ShareSpec()),
        ("{}", ShareSpec()),
        ('{"LLC": {}}', ShareSpec()),
        ('{"LLC": {"schemata": {}}}', ShareSpec()),
        ('{"MB": {"schemata": {"percent": 0}}}', ShareSpec(mb=0)),
        ('{"mb": {"schemataPerCache": [{"cacheID": 3, "percent": 100}]}}', ShareSpec(mb_per_cache={3: 100})),
        ('{"llc": {"schemataPerCache": null}, "mb": null}', ShareSpec()),
        (
            '{"llc":{"schemata":{},"schemataPerCache":[{"range":[20,50]},{"cacheID":1,"range":[20,60]}]},"mb":{}}',
            ShareSpec(llc_per_cache={0: WayRange(20, 50), 1: WayRange(20, 60)}),
        ),
        ('{"mb":{"schemataPerCache":[{"percent":40}]}}', ShareSpec(mb_per_cache={0: 40})),
        (
            '{"MB": {"schemata": {"mbps": 4000}, "schemataPerCache": [{"cacheid": 1, "mbps": 500}]}}',
            ShareSpec(mb=BandwidthRate(4000), mb_per_cache={1: BandwidthRate(500)}),
        ),
        (
            '{"llc": {"schemata": {"codeRange": [0, 20], "dataRange": [20, 60]}},'
            ' "l2": {"schemata": {"range": [0, 50]}}}',
            ShareSpec(code=WayRange(0, 20), data=WayRange(20, 60), l2=WayRange(0, 50)),
        ),
    ],
)
def test_parts_may_be_missing(text, wish):
    assert parse_annotation(text) == wish
    assert bool(wish) == (wish != ShareSpec())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "the annotation is not an object"),
        ("[" * 100000, "nested too deeply"),
        ('{"LLC": ' + "1" * 5000 + "}", "not JSON"),
        ('{"L3": {}}', "unknown key 'L3'"),
        ('{"L2": {"schemata": {"codeRange": [0, 20]}}}', "L2.schemata has an unknown key 'codeRange'"),
        ('{"L2": {"schemataPerCache": [{"range": [0, 20]}]}}', "level-2 caches have no shares of their own"),
        ('{"LLC": {}, "llc": {}}', "LLC twice"),
        ('{"LLC": {}, "LLC": {}}', "'LLC' twice"),
        ('{"LLC": {"schema": {}}}', "LLC has an unknown key 'schema'"),
        ('{"LLC": {"schemata": {"percent": 20}}}', "LLC.schemata has an unknown key 'percent'"),
        ('{"MB": {"schemata": {"range": [0, 5]}}}', "MB.schemata has an unknown key 'range'"),
        ('{"LLC": {"schemata": {"range": [80, 20]}}}', "LLC.schemata.range: range 80-20 has to end"),
        ('{"LLC": {"schemata": {"range": [20, 20]}}}', "has to end above its beginning"),
        ('{"LLC": {"schemata": {"range": [-1, 20]}}}', "-1 is not within 0..100"),
        ('{"LLC": {"schemata": {"range": [0, 101]}}}', "101 is not within 0..100"),
        ('{"LLC": {"schemata": {"range": [0]}}}', "not a pair"),
        ('{"LLC": {"schemata": {"range": [0, 1.5]}}}', "1.5 is not a whole number"),
        ('{"LLC": {"schemata": {"range": [false, true]}}}', "False is not a whole number"),
        ('{"LLC": {"schemata": {"range": "0-30"}}}', "not a pair"),
        ('{"LLC": {"schemata": []}}', "LLC.schemata is not an object"),
        ('{"MB": {"schemata": {"percent": "20"}}}', "'20' is not a whole number"),
        ('{"MB": {"schemata": {"percent": 101}}}', "MB.schemata.percent: 101 is not within"),
        ('{"MB": {"schemata": {"mbps": 0}}}', "MB.schemata.mbps: 0 is not within 1..10000000 MB/s"),
        ('{"MB": {"schemata": {"mbps": 1, "percent": 1}}}', "percent and mbps exclude each other"),
        ('{"MB": {"schemataPerCache": [{"mbps": 1, "percent": 1}]}}', "has both percent and mbps"),
        ('{"LLC": {"schemataPerCache": [{"codeRange": [0, 5]}]}}', "unknown key 'codeRange'"),
        ('{"MB": {"schemataPerCache": {}}}', "MB.schemataPerCache is not a list"),
        (
            '{"mb": {"schemataPerCache": [{"percent": 1}, {"cacheID": 0, "percent": 2}]}}',
            "MB.schemataPerCache[1]: cache 0 is named twice",
        ),
        ('{"MB": {"schemataPerCache": [{"cacheid": 1}]}}', "has no percent"),
        ('{"MB": {"schemataPerCache": [{"cacheid": 1, "cacheID": 1, "percent": 1}]}}', "cacheid twice"),
        (
            '{"MB": {"schemataPerCache": [{"cacheid": 1, "percent": 1}, {"cacheid": 1, "percent": 2}]}}',
            "MB.schemataPerCache[1]: cache 1 is named twice",
        ),
        ('{"MB": {"schemataPerCache": [{"cacheid": true, "percent": 1}]}}', "True is not a whole number"),
    ],
)
def test_a_bad_annotation_is_refused_with_the_reason(text, reason):
    with pytest.raises(BadShareError) as caught:
        parse_annotation(text)
    assert reason in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 105) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["LLC", "mb", "schemata", "schemataPerCache", "cacheID", "range", "percent"]),
                inner,
            )
        ),
    )
)
@settings(deadline=None)
def test_any_json_is_a_wish_or_is_refused(body):
    try:
        wish = parse_annotation(json.dumps(body))
    except BadShareError:
        return
    for asked in (wish.llc, *wish.llc_per_cache.values()):
        assert asked is None or 0 <= asked.first < asked.last <= 100
