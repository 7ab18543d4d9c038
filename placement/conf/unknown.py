"""Finds options in configuration files that the service does not have.

Such options are misspelt, or are options of OpenStack Placement.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from oslo_config import cfg

from placement.conf import opts

_OTHERS: Final = frozenset({"keystone_authtoken", "healthcheck", "oslo_policy", "cors", "oslo_middleware"})
"""Sections with options of libraries. They are not checked, because libraries register them later."""

_ONE_DATABASE: Final = "each answer is read from one database, so that none is older than the last write"
_REQUESTS_WAIT: Final = (
    "a worker starts without its database, and requests are answered 503 until the database answers; "
    "their limit is [placement_database] connect_timeout"
)
_IN_URL: Final = "parameters of the driver belong into the URL of [placement_database] connection"
_SQL_LOG: Final = "[DEFAULT] default_log_levels = sqlalchemy.engine=INFO logs statements"

STOCK: Final[dict[str, dict[str, str]]] = {
    "DEFAULT": {
        "state_path": "no file is kept there",
        "pybasedir": "nothing is read from there",
        "bindir": "nothing is read from there",
        "log_options": "options are not logged, as some are secrets",
    },
    "placement_database": {
        "max_retries": _REQUESTS_WAIT,
        "retry_interval": _REQUESTS_WAIT,
        "db_retry_interval": _REQUESTS_WAIT,
        "db_inc_retry_interval": _REQUESTS_WAIT,
        "db_max_retry_interval": _REQUESTS_WAIT,
        "db_max_retries": "use [placement] allocation_conflict_retry_count",
        "slave_connection": _ONE_DATABASE,
        "connection_parameters": _IN_URL,
        "mysql_sql_mode": "the mode of the server is used; no statement depends on it",
        "mysql_enable_ndb": "tables are made with the default engine of the server",
        "sqlite_synchronous": "SQLite always waits for its disk",
        "connection_debug": _SQL_LOG,
        "connection_trace": _SQL_LOG,
        "use_db_reconnect": "the service always reconnects",
    },
}
"""Options of OpenStack Placement that this service does not have, each with a reason or a replacement."""

STOCK_SECTIONS: Final = {
    "cache": "tokens are cached by [keystone_authtoken] memcached_servers",
    "oslo_concurrency": "no lock is taken in files",
    "oslo_reports": "there are no such reports",
    "profiler": "osprofiler is not supported",
    "workarounds": "there are no workarounds",
}
"""Sections that deployment tools write for OpenStack Placement, but that this service does not read."""

_SECTIONS: Final = tuple(group.name for group, _ in opts.list_opts())
"""The sections of the service and of registered extensions."""


def unknown_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Yield a sentence for each option or section in configuration files that the service does not have.

    In ``[DEFAULT]`` and in sections of libraries, only options of OpenStack Placement are found.
    """
    for file, section, options in _file_sections(conf):
        yield from _stock_options(conf, file, section, options)
        yield from _wrong_names(conf, file, section, options)


def misspelt_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Yield the sentences of :func:`unknown_options`, but none about options of OpenStack Placement."""
    for file, section, options in _file_sections(conf):
        yield from _wrong_names(conf, file, section, options)


def _file_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each section of each configuration file, with the names of the options in it."""
    for file in conf.config_file or ():
        # files are parsed again, because a configuration does not keep the unregistered options of its files
        found: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(file), found).parse()
        for section, options in found.items():
            yield str(file), section, sorted(options)


def _stock_options(conf: cfg.ConfigOpts, file: str, section: str, options: list[str]) -> Iterator[str]:
    if section in STOCK_SECTIONS:
        yield f"{file}: section [{section}] of OpenStack Placement is not used: {STOCK_SECTIONS[section]}"
        return
    stock, known = STOCK.get(section, {}), _known_options(conf, section)
    for option in options:
        name = option.replace("-", "_")
        if name in stock and name not in known:
            yield f"{file}: [{section}] {option} of OpenStack Placement is not used: {stock[name]}"


def _wrong_names(conf: cfg.ConfigOpts, file: str, section: str, options: list[str]) -> Iterator[str]:
    # _stock_options() yields one sentence about the whole section
    if section in STOCK_SECTIONS:
        return
    known = _known_options(conf, section)
    for option in options:
        # in a file, oslo.config accepts names with "-" and with "_"
        name = option.replace("-", "_")
        if section in _SECTIONS and name not in known and name not in STOCK.get(section, {}):
            yield f"{file}: [{section}] {option}: there is no such option{_like_name(option, known, '{}')}"
    if section not in (*_SECTIONS, *_OTHERS, "DEFAULT"):
        yield f"{file}: there is no section [{section}]{_like_name(section, (*_SECTIONS, *_OTHERS), '[{}]')}"


def _known_options(conf: cfg.ConfigOpts, section: str) -> set[str]:
    # the options of libraries are not known yet, because a library registers them when it uses them
    return set(conf[section]) if section in _SECTIONS else set()


def _like_name(name: str, known: "set[str] | tuple[str, ...]", form: str) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""
