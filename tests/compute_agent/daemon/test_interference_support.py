"""What is known of signals before anybody is read."""

import os

from compute_agent.daemon import interference_support
from compute_agent.interference.signals import SIGNALS


def test_of_every_signal_it_is_said_what_measures_it():
    assert interference_support._METRICS.keys() == SIGNALS.keys()


def test_looking_for_counters_leaves_no_file_open():
    before = os.listdir("/proc/self/fd")
    interference_support._without_counters()
    assert os.listdir("/proc/self/fd") == before
