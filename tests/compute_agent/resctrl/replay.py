"""Sends random commands to a resctrl mount and records the results, in order to compare a kernel with the
fake tree.

`python -m tests.compute_agent.resctrl.replay MOUNT COMMANDS OUTCOMES` plays a JSON file of commands.
"""

import json
import random
import sys
import time
from pathlib import Path

from compute_agent.resctrl.filesystem import STATUS_FILE, ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import NOT_GROUPS

GROUPS = ("", "a", "b", "c")
FILES = ("schemata", "size", "mode")


def commands(seed, count, l3, domains, ways, mb_most, cdp=False):
    """A strategy for commands, as lists of an operation and its arguments. Many of the commands are wrong in
    some way.
    """
    chance = random.Random(seed)
    names = ("L3CODE", "L3DATA") if cdp else ("L3",)

    def mask():
        first = chance.randrange(ways)
        run = ((1 << chance.randint(1, ways)) - 1 << first) & (1 << ways) - 1
        odd = [0, chance.getrandbits(ways), 1 << ways, 5, 0xA0]
        return f"{run if chance.random() < 0.8 else chance.choice(odd):x}"

    def value(resource):
        if resource.startswith("L3"):
            return mask() if chance.random() < 0.95 else chance.choice(["", "x", "-1", "0x", " 3 ", "0x3"])
        odd = ["", "x", "-1", "0", str(mb_most + 1), " 20 ", "3.5"]
        return str(chance.randint(1, mb_most)) if chance.random() < 0.8 else chance.choice(odd)

    def line():
        resource = chance.choice([*names, "MB"] if chance.random() < 0.95 else ["L2", "", "l3"])
        ids = chance.sample(l3 if resource != "MB" else domains, chance.randint(1, len(l3)))
        if chance.random() < 0.05:
            ids.append(chance.choice([ids[0], 99]))
        text = ";".join(f"{domain}={value(resource)}" for domain in ids)
        return chance.choice(
            [f"{resource}:{text}"] * 20 + [f"  {resource}: {text}", resource, f"{resource}:"]
        )

    def one():
        group = chance.choice(GROUPS)
        inside = f"{group}/" if group else ""
        kind = chance.random()
        if kind < 0.15:
            paths = [*GROUPS[1:], "a/x", "info/x", f"{inside}mon_groups/m", "none/x"]
            return ["make_folder", chance.choice(paths)]
        if kind < 0.22:
            paths = [*GROUPS[1:], "info", "a/mon_groups", "a/mon_groups/m", "none"]
            return ["remove_folder", chance.choice(paths)]
        if kind < 0.29:
            mode = chance.choice(["shareable", "shareable", "shareable", "exclusive", "other"])
            return ["write_file", f"{inside}mode", f"{mode}\n"]
        text = "\n".join(line() for _ in range(chance.choice([1, 1, 1, 2]))) + "\n"
        return ["write_file", f"{inside}schemata", text if chance.random() < 0.97 else text[:-1]]

    return [one() for _ in range(count)]


def play(files, todo, patience=0.0):
    """Execute commands; return for each the number and the text of its error, and the files of all groups
    afterwards.
    """
    outcomes = []
    for operation, *arguments in todo:
        number = attempt(files, operation, arguments, patience)
        outcomes.append(
            {
                "errno": number,
                "status": files.read_file(STATUS_FILE),
                "groups": {
                    name: {file: files.read_optional(f"{name}/{file}" if name else file) for file in FILES}
                    for name in ("", *files.list_folders())
                    if name not in NOT_GROUPS
                },
            }
        )
    return outcomes


def attempt(files, operation, arguments, patience):
    deadline = time.monotonic() + patience
    while True:
        try:
            getattr(files, operation)(*arguments)
        except ResctrlError as error:
            if error.errno == 16 and time.monotonic() < deadline:  # an RMID that is busy for a while
                time.sleep(0.2)
                continue
            return error.errno
        return 0


def main(root, todo, target):
    """Execute the commands in a file, write their results to another file, and restore the mount."""
    files = ResctrlFilesystem(Path(root))
    before = files.read_file("schemata")
    Path(target).write_text(json.dumps(play(files, json.loads(Path(todo).read_text()), patience=60)))
    for name in files.list_folders():
        if name not in NOT_GROUPS:
            files.remove_folder(name)
    for name in files.list_folders("mon_groups"):
        files.remove_folder(f"mon_groups/{name}")
    files.write_file("mode", "shareable\n")
    files.write_file("schemata", before)


if __name__ == "__main__":
    main(*sys.argv[1:])
