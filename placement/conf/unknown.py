"""Options in the files that there are not, misspelt ones and those of OpenStack Placement, to be told of."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from oslo_config import cfg

from placement.conf import opts

_OTHERS: Final = frozenset({"keystone_authtoken", "healthcheck", "oslo_policy", "cors", "oslo_middleware"})
"""Sections of libraries, which know their options themselves, some only with a plugin."""

_ONE_DATABASE: Final = "every answer is read from one database, so that none is older than what was written"
_REQUESTS_WAIT: Final = (
    "a worker starts without its database; requests are answered 503 until it is there, "
    "[placement_database] connect_timeout is their limit"
)
_IN_URL: Final = "what the driver is to know goes into the URL of [placement_database] connection"
_SQL_LOG: Final = "[DEFAULT] default_log_levels = sqlalchemy.engine=INFO logs statements"

STOCK: Final[dict[str, dict[str, str]]] = {
    "DEFAULT": {
        "state_path": "nothing is kept in files",
        "pybasedir": "nothing is read from there",
        "bindir": "nothing is read from there",
        "log_options": "they are not logged, as there are secrets among them",
    },
    "placement_database": {
        "max_retries": _REQUESTS_WAIT,
        "retry_interval": _REQUESTS_WAIT,
        "db_retry_interval": _REQUESTS_WAIT,
        "db_inc_retry_interval": _REQUESTS_WAIT,
        "db_max_retry_interval": _REQUESTS_WAIT,
        "db_max_retries": "it is [placement] allocation_conflict_retry_count",
        "slave_connection": _ONE_DATABASE,
        "connection_parameters": _IN_URL,
        "mysql_sql_mode": "the mode of the server is used; no statement depends on it",
        "mysql_enable_ndb": "tables are made with the engine that is the server's default",
        "sqlite_synchronous": "SQLite always waits for its disk",
        "connection_debug": _SQL_LOG,
        "connection_trace": _SQL_LOG,
        "use_db_reconnect": "it always does",
    },
}
"""Options of OpenStack Placement in sections of ours that are none of ours, with what is in their place."""

STOCK_SECTIONS: Final = {
    "cache": "[keystone_authtoken] memcached_servers is what remembers tokens",
    "oslo_concurrency": "no lock is taken in files",
    "oslo_reports": "there are no such reports",
    "profiler": "osprofiler is not supported",
    "workarounds": "there are none",
}
"""Sections that deployment tools write for OpenStack Placement and that nobody here reads."""

_SECTIONS: Final = tuple(group.name for group, _ in opts.list_opts())


def unknown_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """What stands in the files of ``conf`` and is no option of the service, a sentence for each."""
    for file, section, options in _sections(conf):
        yield from _of_stock(conf, file, section, options)
        yield from _misspelt(conf, file, section, options)


def misspelt_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """As :func:`unknown_options`, of those that OpenStack Placement has not either."""
    for file, section, options in _sections(conf):
        yield from _misspelt(conf, file, section, options)


def _sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, str, list[str]]]:
    """Of each file the sections with the names of their options."""
    for file in conf.config_file or ():
        found: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(file), found).parse()
        for section, options in found.items():
            yield str(file), section, sorted(options)


def _of_stock(conf: cfg.ConfigOpts, file: str, section: str, options: list[str]) -> Iterator[str]:
    if section in STOCK_SECTIONS:
        yield f"{file}: section [{section}] of OpenStack Placement is not used: {STOCK_SECTIONS[section]}"
        return
    stock, known = STOCK.get(section, {}), _known(conf, section)
    for option in options:
        name = option.replace("-", "_")
        if name in stock and name not in known:
            yield f"{file}: [{section}] {option} of OpenStack Placement is not used: {stock[name]}"


def _misspelt(conf: cfg.ConfigOpts, file: str, section: str, options: list[str]) -> Iterator[str]:
    if section in STOCK_SECTIONS:
        return
    known = _known(conf, section)
    for option in options:
        name = option.replace("-", "_")
        if section in _SECTIONS and name not in known and name not in STOCK.get(section, {}):
            yield f"{file}: [{section}] {option}: there is no such option{_instead(option, known, '{}')}"
    if section not in (*_SECTIONS, *_OTHERS, "DEFAULT"):
        yield f"{file}: there is no section [{section}]{_instead(section, (*_SECTIONS, *_OTHERS), '[{}]')}"


def _known(conf: cfg.ConfigOpts, section: str) -> set[str]:
    return set(conf[section]) if section in _SECTIONS else set()


def _instead(name: str, known: "set[str] | tuple[str, ...]", form: str) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""
