"""Runs `openstack` commands in one process, one after the other, because each start takes a second.

The program reads the arguments of a command as a line of JSON. Its answer is a line with `[status, stdout,
stderr]`.
:mod:`tests.placement.client.shell` starts this program. It is a separate process, because the client changes
the logging of its process.
"""

import contextlib
import io
import json
import sys

from openstackclient.shell import OpenStackShell


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Run the program `openstack`; return its exit status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = OpenStackShell().run(arguments)
        except SystemExit as ended:  # argparse
            status = ended.code if isinstance(ended.code, int) else 1
    return status, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
