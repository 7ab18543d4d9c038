"""A small Debian for tests: copies of some packages of this machine, with all their dependencies.

The copy includes dpkg's database, so dpkg refuses packages with missing dependencies. Nothing is downloaded,
and no maintainer script runs: users are those of every Debian.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_DPKG: Final = Path("/var/lib/dpkg")
_INFO: Final = _DPKG / "info"
_SECONDS: Final = 300
Stanza = Mapping[str, str]


class DebianMissing(Exception):
    """This machine cannot make a Debian; the text has the reason."""


def make(root: Path, wanted: Sequence[str]) -> None:
    """Fill an empty folder with these packages, the essential ones, and all their dependencies.

    :raises DebianMissing: this machine is no Debian, or lacks a package
    """
    if shutil.which("dpkg-query") is None:
        raise DebianMissing("dpkg is not installed: this machine is no Debian")
    known = dict(_stanzas())
    names = _closure(known, wanted)
    _copy(root, [path for name in names for path in _files_of(name)])
    (root / "var/lib/dpkg/status").write_text("".join(f"{known[name]['']}\n\n" for name in names))
    for kind in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{kind}.master", root / "etc" / kind)
    for folder in ("proc", "sys", "dev", "run", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    root.chmod(0o755)  # readable by all users, whatever the mode of its parent
    shutil.copy(_INFO / "format", root / "var/lib/dpkg/info")  # the format of file names in this folder
    subprocess.run(["ldconfig", "-r", root], check=True, timeout=_SECONDS)


def needs_of(stanza: Stanza) -> list[list[str]]:
    """Parse dependencies: the package requires one name of each list."""
    groups = ", ".join(stanza[field] for field in ("Pre-Depends", "Depends") if field in stanza)
    return [
        [re.split(r"[ (:]", name.strip())[0] for name in group.split("|")]
        for group in groups.split(",")
        if group
    ]


def _stanzas() -> Iterator[tuple[str, Stanza]]:
    """Yield name and fields of each installed package in dpkg's database; the empty field is the text."""
    for text in (_DPKG / "status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], {**fields, "": text.strip()}


def _closure(known: Mapping[str, Stanza], wanted: Sequence[str]) -> list[str]:
    provided = {
        virtual.strip().partition(" ")[0]: name
        for name, stanza in known.items()
        for virtual in stanza.get("Provides", "").split(",")
        if virtual
    }
    found: dict[str, None] = {}
    open_ends = [*wanted, *(name for name, stanza in known.items() if stanza.get("Essential") == "yes")]
    while open_ends:
        name = open_ends.pop()
        if name in found:
            continue
        if name not in known:
            raise DebianMissing(f"the package {name} is not installed")
        found[name] = None
        for group in needs_of(known[name]):
            there = [each if each in known else provided.get(each) for each in group]
            open_ends += [each for each in there if each is not None][:1]
    return sorted(found)


def _files_of(name: str) -> Iterator[str]:
    for record in [*_INFO.glob(f"{name}.*"), *_INFO.glob(f"{name}:*.*")]:
        if record.suffix in (".list", ".md5sums", ".conffiles", ".triggers"):
            yield str(record)
        if record.suffix == ".list":
            yield from (line for line in record.read_text().splitlines() if line not in ("", "/."))


def _copy(root: Path, paths: Sequence[str]) -> None:
    """Copy files with tar; first link top folders into /usr, and skip documentation and deleted files."""
    for name in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
        if Path("/", name).is_symlink():
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    documents = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/")
    chosen = {path for path in paths if Path(path).exists() and not path.startswith(documents)}
    links = [name for name in ("bin", "sbin", "lib", "lib64") if (root / name).is_symlink()]
    real = {
        f"usr{path}" if path.split("/")[1] in links else path.lstrip("/")
        for path in chosen
        if path.lstrip("/") not in links
    }
    listing = root / ".files"
    listing.write_text("\0".join(sorted(real)))
    options = ["--no-recursion", "--null", "--verbatim-files-from", f"--files-from={listing}"]
    read = subprocess.Popen(["tar", "-C", "/", "-c", *options], stdout=subprocess.PIPE)
    try:
        subprocess.run(["tar", "-C", root, "-x"], stdin=read.stdout, check=True, timeout=_SECONDS)
    finally:
        if read.stdout is not None:
            read.stdout.close()
        status = read.wait(_SECONDS)
    listing.unlink()
    if status:
        raise DebianMissing(f"tar ended with {status}")
