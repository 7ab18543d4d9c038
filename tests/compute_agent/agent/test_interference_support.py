"""What is known of signals before anybody is read."""

import os

from compute_agent.agent import config_warnings
from compute_agent.throttling.interference.signals import SIGNALS


def test_of_every_signal_it_is_said_what_measures_it():
    assert config_warnings._METRICS.keys() == SIGNALS.keys()


def test_looking_for_counters_leaves_no_file_open():
    before = os.listdir("/proc/self/fd")
    config_warnings._without_counters()
    assert os.listdir("/proc/self/fd") == before
