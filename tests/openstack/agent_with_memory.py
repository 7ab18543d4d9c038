"""``python -m``: the compute agent, which never forgets settings by hand of guests that are elsewhere.

The usual agent forgets such settings after ten minutes, and on a slow machine a guest may be away for that
time before it comes back.
"""

import sys

from compute_agent.cmd.main import main
from compute_agent.pipeline import guest_settings

if __name__ == "__main__":
    guest_settings.GONE_SECONDS = float("inf")  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
