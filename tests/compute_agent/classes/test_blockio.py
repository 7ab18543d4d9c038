"""Tests of sections [blockio_class:NAME]: their meaning, refused values, and options without effect."""

import pytest
from oslo_config import cfg

from compute_agent import conf
from compute_agent.classes.blockio_classes import blockio_warnings, parse_blockio_classes
from compute_agent.host.block_devices import BlockDevice, BlockDevices
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import BlockIoClass, DeviceRates


@pytest.fixture
def parse(tmp_path):
    def parse(text):
        (tmp_path / "agent.ini").write_text(text)
        return parse_blockio_classes(conf.load(config_files=[str(tmp_path / "agent.ini")]))

    return parse


def test_a_section_is_a_class(parse):
    found = parse(
        "[blockio_class:bulk]\nweight = 20\nread_bytes = 1.5K\nwrite_bytes = 20M\nwrite_operations = 300\n"
        "latency_ms = 2.5\ndevices = nvme*n1, by-id/wwn-0x5000, guest\n[blockio_class:gold]\nweight = 400\n"
    )
    assert found == {
        "bulk": BlockIoClass(
            "bulk", 20, DeviceRates(1536, 20 << 20, None, 300), 2500, ("nvme*n1", "by-id/wwn-0x5000", "guest")
        ),
        "gold": BlockIoClass("gold", 400),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[blockio_class:a b]\nweight = 1", r"\[blockio_class:a b\]: a name has 1 to 64 letters"),
        ("[blockio_class:a]\nwrite_bytes = fast\ndevices = vda", r"\[blockio_class:a\] write_bytes: 'fast'"),
        ("[blockio_class:a]\nread_operations = 0\ndevices = vda", r"\[blockio_class:a\] read_operations = 0"),
        (
            "[blockio_class:a]\nread_bytes = 1M",
            r"\[blockio_class:a\] devices: rates and latency need devices",
        ),
        ("[blockio_class:a]\nlatency_ms = 1", r"\[blockio_class:a\] devices: rates and latency need devices"),
    ],
)
def test_impossible_values_are_refused_with_section_and_option(parse, text, told):
    with pytest.raises(ConfigError, match=told):
        parse(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[blockio_class:a]\nwieght = 1", r"\[blockio_class:a\] wieght: there is no such option; there are"),
        ("[blockio_class:a]\nweight = 0", r"\[blockio_class:a\] weight: "),
        ("[blockio_class:a]\nweight = 10001", r"\[blockio_class:a\] weight: "),
        ("[blockio_class:]\nweight = 1", "a name is missing"),
        ("[blockio]\nweight = 1", "there is no such section"),
    ],
)
def test_misspelt_values_are_refused_where_they_are_read(parse, text, told):
    with pytest.raises(cfg.Error, match=told):
        parse(text)


def test_absent_devices_and_weights_without_effect_are_warnings():
    classes = {
        "bulk": BlockIoClass("bulk", None, DeviceRates(1), None, ("vda", "sdz", "guest")),
        "gold": BlockIoClass("gold", 400),
    }
    vda = BlockDevice("vda", "254:0")
    assert list(blockio_warnings(classes, BlockDevices((vda,)))) == [
        "[blockio_class:bulk] devices: this host has no device sdz; it has vda",
        "[blockio_class:gold] weight has no effect: no device of this host divides by weight; choose bfq in"
        " /sys/block/NAME/queue/scheduler, or enable io.cost.qos",
    ]
    weighted = BlockDevices((BlockDevice("vda", "254:0", by_weight=True),))
    assert [text for text in blockio_warnings(classes, weighted) if "weight" in text] == []
