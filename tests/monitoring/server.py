"""A Prometheus server of Debian's package, for tests of rules and dashboards."""

import contextlib
import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.kit import RULES
from tests.ports import free_port


class Prometheus:
    """A real Prometheus with its data in a folder."""

    def __init__(self, folder: Path, targets: dict[str, list[str]]) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        jobs = [
            {"job_name": name, "static_configs": [{"targets": addresses}]}
            for name, addresses in targets.items()
        ]
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(RULES)],
                    "scrape_configs": jobs,
                }
            )
        )
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("needs prometheus, of Debian's package of that name")
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(program, f"--config.file={folder}/prometheus.yml"),
                    *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
                ],
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, expression: str) -> list[Any]:
        """Return the result of a query; empty while the server does not answer."""
        asked = urllib.parse.urlencode({"query": expression})
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}") as answer,
        ):
            result: list[Any] = json.load(answer)["data"]["result"]
            return result
        return []

    def rules(self) -> list[dict[str, Any]]:
        """Return the evaluated rules with their state."""
        with urllib.request.urlopen(f"{self.url}/api/v1/rules") as answer:
            return [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
