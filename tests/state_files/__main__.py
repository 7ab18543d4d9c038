"""Keeps a state folder of a release for the tests: ``python -m tests.state_files VERSION FOLDER``."""

import json
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tests.state_files.reading import EXPECTED, RECORDED, copy_state, read_state
from tests.state_files.writing import write_missing


def main() -> int:
    """Copy the files, and record what the readers find."""
    parser = ArgumentParser(prog="python -m tests.state_files", description=__doc__)
    parser.add_argument("version", help="the version of the agent that wrote the folder")
    parser.add_argument("folder", type=Path, help="[DEFAULT] state_path of the agent")
    words = parser.parse_args()
    target = RECORDED / words.version
    copy_state(words.folder, target)
    write_missing(target)
    with tempfile.TemporaryDirectory() as name:
        copy_state(target, Path(name))
        found = read_state(Path(name))
    (target / EXPECTED).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
