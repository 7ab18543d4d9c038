"""The compute agent on a host with a simulated kernel interface for caches: run it with ``python -m``."""

import sys

from compute_agent.cmd.main import main
from compute_agent.resctrl import mount
from tests.compute_agent.resctrl.fake import FakeResctrl

if __name__ == "__main__":
    mount.ResctrlFilesystem = FakeResctrl  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
