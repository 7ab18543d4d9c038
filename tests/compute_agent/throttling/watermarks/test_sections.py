"""Tests of sections [watermark:NAME]: their meaning, and refused or unenforceable ones."""

from pathlib import Path

import pytest
from oslo_config import cfg

from compute_agent import conf as agent_conf
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.model.messages import ConfigError
from compute_agent.resctrl.bandwidth import BandwidthRate
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from compute_agent.throttling.settings import build_rules, read_settings
from compute_agent.throttling.watermarks.metrics import MetricRegistry, MetricUnit
from compute_agent.throttling.watermarks.sections import WatermarkAction, find_unenforceable
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold, parse_threshold
from tests.compute_agent.builders import load_options, load_text
from tests.compute_agent.throttling.watermarks.builders import line, rules

CPU = "[watermark:cpu]\nmetric = cpu_usage\n"
MEMORY = "[watermark:memory]\nmetric = memory_usage\n"


@pytest.fixture
def read(tmp_path):
    """The watermarks and QoS classes of an ini file."""

    def load(text):
        loaded = load_text(tmp_path, text)
        classes = parse_classes(loaded)
        return build_rules(loaded, MetricRegistry(), classes), classes

    return load


def test_section_becomes_a_watermark(read):
    rules, _ = read(
        "[qos]\nstep = 25\nmin_share = 20\nmargin = 5\nhighest_class = LS\n"
        "[watermark:cpu]\nmetric = cpu_usage\nthrottle_down = 80%\nthrottle_up = 70%\nevict = 95%\n"
        "disable_scheduling = 75%\nfor_samples = 5\ncool_down = 60\nmode = preview\n"
        "qos_classes = BE, LS\nmax_priority = 7\n"
    )
    (line,) = rules.watermarks
    assert (line.name, line.metric, line.preview) == ("cpu", "cpu_usage", True)
    percents = {"throttle_down": 80.0, "throttle_up": 70.0, "evict": 95.0, "disable_scheduling": 75.0}
    assert line.thresholds == {name: WatermarkThreshold(one, relative=True) for name, one in percents.items()}
    assert (line.for_samples, line.cool_down) == (5, 60.0)
    assert (line.qos_classes, line.max_priority) == ({"BE", "LS"}, 7)
    assert (rules.steps.step, rules.steps.min_share, rules.margin) == (0.25, 0.2, 0.05)


def test_defaults_are_those_of_the_specification(read):
    rules, classes = read("")
    assert rules.watermarks == ()
    assert (rules.steps.step, rules.margin) == (0.2, 0.1)
    assert {name: one.rank for name, one in classes.classes.items()} == {"BE": 0, "LS": 10, "LSR": 20}
    assert [name for name in ("BE", "LS", "LSR", "other") if not classes.is_protected(name, False)] == ["BE"]
    assert classes.is_protected("BE", dedicated=True)


@pytest.mark.parametrize(
    ("text", "unit", "level"),
    [
        ("12", MetricUnit.CORES, WatermarkThreshold(12.0)),
        (" 1.5 ", MetricUnit.CORES, WatermarkThreshold(1.5)),
        ("80%", MetricUnit.CORES, WatermarkThreshold(80.0, True)),
        ("80 %", MetricUnit.BYTES, WatermarkThreshold(80.0, True)),
        ("5", MetricUnit.BYTES, WatermarkThreshold(5.0)),
        ("3M", MetricUnit.BYTES, WatermarkThreshold(3.0 * 1024**2)),
        ("2G", MetricUnit.BYTES, WatermarkThreshold(2.0 * 1024**3)),
        ("4T", MetricUnit.BYTES_PER_SECOND, WatermarkThreshold(4.0 * 1024**4)),
        ("100%", MetricUnit.BYTES, WatermarkThreshold(100.0, True)),
        ("1.5K", MetricUnit.BYTES_PER_SECOND, WatermarkThreshold(1536.0)),
        ("40", MetricUnit.PERCENT, WatermarkThreshold(40.0)),
        ("40%", MetricUnit.PERCENT, WatermarkThreshold(40.0)),
        ("150%", MetricUnit.PERCENT, WatermarkThreshold(150.0)),
    ],
)
def test_levels(text, unit, level):
    assert parse_threshold(text, unit) == level


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", MetricUnit.CORES), ("-1", MetricUnit.CORES), ("eighty", MetricUnit.CORES),
        ("1e3", MetricUnit.CORES),
        ("nan", MetricUnit.CORES), ("101%", MetricUnit.CORES), ("2G", MetricUnit.CORES),
        ("2g", MetricUnit.BYTES), ("5%", MetricUnit.OTHER), ("٣", MetricUnit.CORES),
        ("9" * 400, MetricUnit.CORES),
    ],
)  # fmt: skip
def test_levels_that_are_none(text, unit):
    with pytest.raises(ValueError, match=r"."):
        parse_threshold(text, unit)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[watermark:x]\nthrottle_down = 1", r"\[watermark:x\] metric: the option is missing; choose one of"),
        ("[watermark:x]\nmetric = cpu_usages\nevict = 1", r"\[watermark:x\] metric: there is no metric"),
        (CPU, r"\[watermark:cpu\] has no threshold"),
        (CPU + "throttle_down = 8x\nthrottle_up = 1", r"\[watermark:cpu\] throttle_down: .8x. is not a"
                                                       " thres"),
        (CPU + "throttle_down = 80%", r"\[watermark:cpu\] throttle_down: without a throttle_up"),
        (CPU + "throttle_up = 80%", r"\[watermark:cpu\] throttle_up: nothing is throttled for cpu_usage"),
        (CPU + "throttle_down = 80%\nthrottle_up = 90%", r"throttle_up = 90% is not below .*n = 80%"),
        (CPU + "throttle_down = 8\nthrottle_up = 8", r"throttle_up = 8 is not below"),
        (CPU + "throttle_down = 80%\nthrottle_up = 70%\nevict = 75%", r"cpu\] evict = 75% is below"),
        (CPU + "reclaim = 80%", r"cpu\] reclaim: a reclaim of memory does not lower cpu_usage"),
        (MEMORY + "reclaim = 80%\nevict = 75%", r"evict = 75% is below reclaim = 80%.* are reclaimed from"),
        (MEMORY + "reclaim = 8G\nthrottle_down = 7G\nthrottle_up = 6G", r"is below reclaim = 8589934592"),
        (CPU + "throttle_down = 80%\nthrottle_up = 4", r"\[watermark:cpu\] mixes percentages and amounts"),
        (CPU + "evict = 95%\nqos_classes = BX", r"\[watermark:cpu\] qos_classes: there is no class 'BX'"),
        (CPU + "evict = 95%\nqos_classes = LS", r"\[watermark:cpu\] qos_classes: LS is above"),
        (
            CPU + "evict = 95%\n[watermark:b]\nmetric = cpu_usage\nevict = 12",
            r"\[watermark:cpu\] has percentages of cpu_usage and \[watermark:b\] has amounts",
        ),
        (
            CPU + "throttle_down = 80%\nthrottle_up = 70%\n"
            "[watermark:b]\nmetric = cpu_usage\nthrottle_down = 60%",
            r"\[watermark:cpu\] throttle_up = 70% is not below \[watermark:b\] throttle_down = 60%",
        ),
        (
            CPU + "throttle_down = 80%\nthrottle_up = 70%\n[watermark:b]\nmetric = cpu_usage\nevict = 65%",
            r"\[watermark:cpu\] throttle_up = 70% is not below \[watermark:b\] evict = 65%",
        ),
        (
            "[watermark:m]\nmetric = reclaimed_cpu_oversold\nthrottle_down = 2\nthrottle_up = 1",
            r"\[watermark:m\] throttle_down: guests cannot be throttled for reclaimed_cpu_oversold",
        ),
        ("[watermark:p]\nmetric = io_pressure\nevict = 50", r"\[watermark:p\] evict: guests cannot"),
        ("[qos]\nhighest_class = HIGH", r"\[qos\] highest_class: there is no class 'HIGH'"),
        ("[qos_class:gold]\nmb_percent = 5", r"\[qos_class:gold\] rank: a class with a name other than"),
        ("[qos_class:a/b]\nrank = 5", r"\[qos_class:a/b\]: a name has 1 to 64 letters"),
        ("[qos_class:BE]\nllc_range = 30-10", r"\[qos_class:BE\] llc_range: range 30-10"),
        ("[qos_class:BE]\nmb_percent_per_cache = 0=5", r"\[qos_class:BE\] mb_percent_per_cache: '0=5'"),
        ("[qos_class:BE]\nmb_mbps = 4 GB", r"\[qos_class:BE\] mb_mbps: '4 GB' is not a whole number of MB/s"),
        ("[qos_class:BE]\nmb_mbps_per_cache = 1:0", r"mb_mbps_per_cache: bandwidth: 0 is not"),
        ("[qos_class:BE]\nmb_mbps = 4\nmb_percent = 5", r"mb_mbps: mb_percent and mb_mbps exclude"),
        (
            "[qos_class:BE]\nmb_mbps_per_cache = 1:4\nmb_percent_per_cache = 1:5",
            r"mb_mbps_per_cache: cache 1 has a percent and a bandwidth",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_section_and_option(read, text, told):
    with pytest.raises(ConfigError, match=told):
        read(text + "\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[watermark:x]\nmetrics = cpu_usage", r"\[watermark:x\] metrics: there is no such option; there"),
        ("[qos]\nsteps = 5", r"\[qos\] steps: there is no such option"),
        ("[qos]\nstep = 0", r"\[qos\] step: .*greater than or equal to 1"),
        ("[qos_class:BE]\nranks = 5", r"\[qos_class:BE\] ranks: there is no such option"),
        ("[qos_class:BE]\nrank = low", r"\[qos_class:BE\] rank: .*invalid literal"),
        ("[watermark:x]\nfor_samples = 0", r"\[watermark:x\] for_samples: "),
        ("[watermark:x]\ncool_down = -1", r"\[watermark:x\] cool_down: "),
        ("[watermark:x]\nmode = try", r"\[watermark:x\] mode: .*act, preview"),
        ("[watermark:]\nmetric = cpu_usage", r"\[watermark:\]: a name is missing"),
        ("[watermarks:x]\nmetric = cpu_usage", r"\[watermarks:x\]: there is no such section"),
        ("[watermark]\nmetric = cpu_usage", r"\[watermark\]: there is no such section"),
        ("[qos_clas:BE]\nrank = 1", r"\[qos_clas:BE\]: there is no such section"),
        ("[watermark:a]\nevict = 1\n[watermark:A]\nevict = 2", r"differ in upper and lower case only"),
    ],
)  # fmt: skip
def test_misspelt_configuration_is_refused_by_section_and_option(read, text, told):
    with pytest.raises(cfg.Error, match=told):
        read(text + "\n")


def test_lines_in_preview_may_contradict_those_in_force(read):
    rules, _ = read(
        CPU + "throttle_down = 80%\nthrottle_up = 70%\n"
        "[watermark:try]\nmetric = cpu_usage\nthrottle_down = 60%\nthrottle_up = 50%\nmode = preview\n"
    )
    assert [line.name for line in rules.with_preview(preview=True).watermarks] == ["try"]
    assert [line.name for line in rules.with_preview(preview=False).watermarks] == ["cpu"]


def test_classes_are_configured_on_top_of_the_default_ones(read):
    _, classes = read(
        "[qos]\nhighest_class = bronze\n"
        "[qos_class:BE]\nllc_range_per_cache = 1:0-50\nmb_percent = 40\n"
        "[qos_class:bronze]\nrank = 5\nllc_range = 0-60\n"
        "[qos_class:tin]\nrank = 4\nmb_mbps = 4000\nmb_mbps_per_cache = 1:500\nmb_percent_per_cache = 0:30\n"
    )
    best_effort = ShareSpec(WayRange(0, 30), {1: WayRange(0, 50)}, 40, {})
    assert classes.classes["BE"].share == best_effort
    assert classes.classes["bronze"].share == ShareSpec(WayRange(0, 60))
    tin = ShareSpec(mb=BandwidthRate(4000), mb_per_cache={0: 30, 1: BandwidthRate(500)})
    assert classes.classes["tin"].share == tin
    assert [name for name in ("BE", "bronze", "LS") if not classes.is_protected(name, False)] == [
        "BE",
        "bronze",
    ]


def test_sample_file_is_a_configuration_without_watermarks(read):
    sample = Path(__file__).parents[4] / "etc/compute-agent/compute-agent.conf.sample"
    text = sample.read_text()
    assert "[watermark:name]\n" in text
    assert "[qos_class:name]\n" in text
    rules, classes = read(text)
    assert rules.watermarks == ()
    assert set(classes.classes) == {"BE", "LS", "LSR"}


def test_files_of_a_configuration_folder_are_checked_as_well(tmp_path):
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "more.conf").write_text("[watermark:cpu]\nthrotle_down = 1\n")
    with pytest.raises(cfg.Error, match=r"\[watermark:cpu\] throtle_down"):
        agent_conf.load(["--config-dir", str(folder)], [])


def test_evict_command_that_is_none_is_refused(tmp_path):
    conf = load_text(tmp_path, "[qos]\nevict_command = migrate 'away\n")
    with pytest.raises(ConfigError, match=r"\[qos\] evict_command: .*No closing quotation"):
        read_settings(conf, MetricRegistry())
    assert read_settings(load_options(), MetricRegistry()).evict_command is None


@pytest.mark.parametrize("order", [1, -1])
def test_watermarks_are_found_by_metric_and_action(order):
    lines = [
        line("cpu", throttle_down=80, throttle_up=60),
        line("cpu-evict", evict=90),
        line("bandwidth", "bandwidth_usage", throttle_down=70),
        line("memory", "memory_usage", throttle_down=50, evict=90),
    ][::order]
    found = rules(*lines).of_metric

    def names(metric, action):
        return {one.name for one in found(metric, action)}

    assert names("cpu_usage", WatermarkAction.THROTTLE_DOWN) == {"cpu"}
    assert names("cpu_usage", WatermarkAction.EVICT) == {"cpu-evict"}
    assert names("memory_usage", WatermarkAction.THROTTLE_DOWN) == {"memory"}
    assert names("memory_usage", WatermarkAction.THROTTLE_UP) == set()
    assert names("bandwidth_usage", WatermarkAction.THROTTLE_DOWN) == {"bandwidth"}


def test_watermarks_are_selected_by_mode():
    both = rules(line("real", throttle_down=80), line("tried", throttle_down=70, preview=True))
    assert [one.name for one in both.with_preview(preview=False).watermarks] == ["real"]
    assert [one.name for one in both.with_preview(preview=True).watermarks] == ["tried"]


UNMEASURED = {"memory_bandwidth": "there are no counters"}
UNUSABLE = {"memory_bandwidth": "there is no control", "cpu_quota": "there are no groups"}


@pytest.mark.parametrize(
    ("metric", "thresholds", "unmeasured", "unusable", "told"),
    [
        ("cpu_usage", {"throttle_down": 8, "throttle_up": 6}, {}, {}, None),
        ("cpu_usage", {"throttle_down": 8, "throttle_up": 6}, UNMEASURED, {}, None),
        (
            "cpu_usage", {"throttle_down": 8, "throttle_up": 6}, {}, UNUSABLE,
            "throttle_down: no guest is throttled, because there are no groups",
        ),
        ("cpu_usage", {"evict": 8}, {}, UNUSABLE, None),
        ("memory_usage", {"evict": 8}, UNMEASURED, UNUSABLE, None),
        (
            "memory_usage", {"reclaim": 8}, {}, {"memory_high": "there is no swap"},
            "reclaim: no memory is reclaimed, because there is no swap",
        ),
        (
            "memory_bandwidth", {"throttle_down": 8, "throttle_up": 6}, UNMEASURED, UNUSABLE,
            "metric = memory_bandwidth: the agent never acts, because there are no counters",
        ),
        (
            "memory_bandwidth", {"evict": 8}, UNMEASURED, {},
            "metric = memory_bandwidth: the agent never acts, because there are no counters",
        ),
        (
            "memory_bandwidth", {"throttle_down": 8, "throttle_up": 6}, {}, UNUSABLE,
            "throttle_down: no guest is throttled, because there is no control",
        ),
    ],
)  # fmt: skip
def test_an_impossible_action_of_a_watermark_has_a_reason(metric, thresholds, unmeasured, unusable, told):
    watermark = line("w", metric, **thresholds)
    fine = line("fine", "memory_usage", evict=5)
    found = list(find_unenforceable([fine, watermark, fine], MetricRegistry(), unmeasured, unusable))
    assert found == ([f"[watermark:w] {told}"] if told else [])
