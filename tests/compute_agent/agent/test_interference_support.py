"""Tests of whether a host can measure the signals of interference, without any guest."""

import os

from compute_agent.agent import config_warnings
from compute_agent.throttling.interference.signals import SIGNALS


def test_each_signal_names_the_metrics_that_measure_it():
    assert config_warnings._METRICS.keys() == SIGNALS.keys()


def test_looking_for_counters_leaves_no_file_open():
    before = os.listdir("/proc/self/fd")
    config_warnings._without_counters()
    assert os.listdir("/proc/self/fd") == before
