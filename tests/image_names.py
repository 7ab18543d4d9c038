"""An image of buildah without the names that buildah draws at random.

The configuration of an image has the id and the host name of the container of its build.
``python -m tests.image_names IMAGE`` removes these names, so that two builds of one commit have the same id.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_MANIFEST: Final = "manifest.json"
_SECONDS: Final = 600


def without_random_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of an image without the id and the host name of the build's container."""
    kept = {key: value for key, value in config.items() if key != "container"}
    for key in ("config", "container_config"):
        if key in kept:
            kept[key] = kept[key] | {"Hostname": ""}
    return kept


def rewrite_folder(folder: Path) -> None:
    """Replace the configuration in a folder that ``buildah push IMAGE dir:FOLDER`` made."""
    manifest = json.loads((folder / _MANIFEST).read_text())
    before = folder / manifest["config"]["digest"].removeprefix("sha256:")
    content = json.dumps(without_random_names(json.loads(before.read_text()))).encode()
    before.unlink()
    digest = hashlib.sha256(content).hexdigest()
    (folder / digest).write_bytes(content)
    manifest["config"] |= {"digest": f"sha256:{digest}", "size": len(content)}
    (folder / _MANIFEST).write_text(json.dumps(manifest))


def remove_random_names(buildah: Sequence[str], image: str) -> str:
    """Replace an image, and return its new id.

    :param buildah: the command, with the options that name the store
    :raises subprocess.CalledProcessError: buildah fails; the image is as it was
    """

    def call(*words: str) -> str:
        done = subprocess.run(
            [*buildah, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=_SECONDS
        )
        return done.stdout.strip()

    with tempfile.TemporaryDirectory() as name:
        call("push", "--quiet", image, f"dir:{name}")
        rewrite_folder(Path(name))
        made = call("pull", "--quiet", f"dir:{name}").splitlines()[-1]
    call("tag", made, image)
    return made


if __name__ == "__main__":
    print(remove_random_names(["buildah"], sys.argv[1]))
