"""Blocklists and allowlists of URLs and domains, matched with ``metadata.url`` of each document.

A list is a text file. Each line is a URL, a domain, a line of a hosts file (``0.0.0.0 domain``) or ``||domain^``.
Lines that begin with ``#``, ``;`` or ``!`` are comments. The lists of ad blockers have their own rules, see
`UrlBlocker`.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from feedmill.curation.documents import Batch, RowWithMetadata
from feedmill.curation.records import local_state
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.errors import ConfigError, MissingExtra
from feedmill.formats.documents import read_lines
from feedmill.storage import open_store, split_url

_ADBLOCK = re.compile(r"\|+([a-z0-9_.-]+)\^")
_NOWHERE = ("127.0.0.1", "0.0.0.0", "::1")  # noqa: S104 - hosts of URLs in texts; nothing listens  # nosec B104
_URLS = ("allowlist_wikidata_v1", "allowlist_wikidata_cleaned_v1", "link_blocklist_phishing_v1")
_DOMAINS = (
    *("domain_blocklist_utp_v1", "domain_blocklist_phishing_v1"),
    *(f"blocklist_project_{name}_v1" for name in ("nsfw", "social", "crime", "vice", "ads")),
    *(
        f"blocklist_firebog_{name}_v1"
        for name in ("ads", "crypto", "malicious", "nsfw", "social", "suspicious", "trackers")
    ),
    *(f"blocklist_hosts_{name}_v1" for name in ("adware_malware", "fakenews", "gambling", "porn", "social")),
)


_ADBLOCKS = ("oisd_small_abp_v1", "oisd_big_abp_v1", "oisd_nsfw_abp_v1", "brave_core_abp_v1", "brave_nsfw_abp_v1")


def clean_url(url: str) -> str:
    """Return the host, port and path of a URL in lower case, without scheme, query and trailing slash.

    >>> clean_url("https://www.Example.org/A/?q=1")
    'www.example.org/a'
    """
    text = url.strip().lower()
    if not text:
        return ""
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # not a URL, so in no list
        return ""
    return f"{parts.hostname or ''}{port}{parts.path}".rstrip("/")


def domain(url: str) -> str:
    """Return the host of a URL without ``www.``."""
    return re.sub(r"^www\.|:\d+$", "", clean_url(url).partition("/")[0])


def read_list(path: str, domains: bool) -> frozenset[str]:
    """Return the entries of a list file.

    Args:
        domains: Read the entries as domains instead of URLs.

    Raises:
        ConfigError: The list has no entries.
    """
    return _read_list(path, domains, local_state(path))


@lru_cache(8)
def _read_list(path: str, domains: bool, _state: tuple[int, int, int] | None) -> frozenset[str]:
    found = frozenset(entry for line in _lines(path) for entry in _entries(line.lower(), domains) if entry)
    if not found:
        raise ConfigError("this URL list has no entries", file=path, kind="empty-file", fix="Pass another file.")
    return found


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file, which may be compressed, without white space around them."""
    folder, name = split_url(path)
    for block in read_lines(open_store(folder), name):
        for line in block.splitlines():
            yield line.decode(errors="replace").strip()


def _entries(line: str, domains: bool) -> Iterator[str]:
    if not line or line[0] in "#;!":
        return
    clean = domain if domains else clean_url
    rules = _ADBLOCK.match(line)
    if rules:
        yield clean(rules[1])
        return
    first, *rest = line.split()
    if rest and _is_address(first):
        if first not in _NOWHERE:
            yield first
        first = rest[0]
        if first in ("localhost", "localdomain"):
            return
    yield clean(first)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class UrlBlocker:
    """Rules of ad blockers (Adblock Plus, uBlock Origin), as the engine of Brave applies them.

    Raises:
        MissingExtra: The package adblock is not installed.
    """

    def __init__(self, rules: Iterable[str]) -> None:
        try:
            from adblock import Engine, FilterSet
        except ImportError:
            raise MissingExtra("rules of ad blockers need the package adblock", "curation") from None
        filters = FilterSet()
        filters.add_filters(list(rules))
        self.engine: Any = Engine(filters)

    @classmethod
    def from_adb_paths(cls, *paths: str | os.PathLike[str]) -> UrlBlocker:
        """Read lists of rules from local files, which may be compressed. Raises `ConfigError` if they have none."""
        rules = {line for path in paths for line in _lines(os.fspath(path)) if line and line[0] not in "!["}
        if not rules:
            given = ", ".join(os.fspath(path) for path in paths)
            raise ConfigError("this list has no rules", file=given, kind="empty-file", fix="Pass another file.")
        return cls(sorted(rules))

    def check_network_urls(self, url: str, source_url: str | None = None, request_type: str = "") -> bool:
        """Return whether a request to a URL is blocked.

        Args:
            url: A URL; one without a scheme is of ``http``.
            source_url: The page that the request comes from.
            request_type: A type of Adblock Plus, such as ``image``; empty for any.
        """
        whole = url if "://" in url else f"http://{url}"
        return bool(self.engine.check_network_urls(whole, source_url or "", request_type).matched)


class _UrlTagger:
    """Base of the URL taggers: documents whose URL is listed get the score 1, others get no span."""

    metadata = True

    def has(self, url: str) -> bool:
        """Return whether a URL is listed."""
        raise NotImplementedError

    def tag(self, batch: Batch) -> Spans:
        scores = np.full(len(batch), np.nan)
        for k, row in enumerate(batch.rows):
            metadata = row.metadata if isinstance(row, RowWithMetadata) else None
            url = (metadata or {}).get("url")
            if isinstance(url, str) and self.has(url):
                scores[k] = 1.0
        return Spans.of_documents(batch.lengths, url=scores)


class _UrlList(_UrlTagger):
    domains = False

    def __init__(self, *paths: str) -> None:
        self.entries = frozenset[str]().union(*(read_list(path, self.domains) for path in paths))

    def has(self, url: str) -> bool:
        return (domain if self.domains else clean_url)(url) in self.entries


@register("url_list", *_URLS, file="")
class UrlList(_UrlList):
    """Documents whose whole URL is in the list."""


@register("domain_list", *_DOMAINS, file="")
class DomainList(_UrlList):
    """Documents whose host is in the list; ``www.`` is ignored."""

    domains = True


@register("adblock_list", *_ADBLOCKS, file="")
class AdblockList(_UrlTagger):
    """Documents whose URL is blocked by the rules of an ad blocker."""

    def __init__(self, *paths: str) -> None:
        self.blocker = UrlBlocker.from_adb_paths(*paths)

    def has(self, url: str) -> bool:
        return bool(url.strip()) and self.blocker.check_network_urls(url)
