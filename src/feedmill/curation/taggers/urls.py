"""Blocklists and allowlists of URLs and domains, matched with ``metadata.url`` of each document.

A list is a text file. Each line is a URL, a domain, a line of a hosts file (``0.0.0.0 domain``) or ``||domain^``.
Lines that begin with ``#``, ``;`` or ``!`` are comments.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import urlsplit

import numpy as np

from feedmill.curation.documents import Batch, RowWithMetadata
from feedmill.curation.records import local_state
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.errors import ConfigError

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
    with open(path, encoding="utf-8", errors="replace") as lines:
        found = frozenset(entry for line in lines for entry in _entries(line.strip().lower(), domains) if entry)
    if not found:
        raise ConfigError("this URL list has no entries", file=path, kind="empty-list", fix="Pass another file.")
    return found


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


class _UrlList:
    """Base of the URL taggers: documents whose URL is in the list get the score 1, others get no span."""

    metadata = True
    domains = False

    def __init__(self, path: str) -> None:
        self.entries = read_list(path, self.domains)

    def tag(self, batch: Batch) -> Spans:
        clean = domain if self.domains else clean_url
        scores = np.full(len(batch), np.nan)
        for k, row in enumerate(batch.rows):
            metadata = row.metadata if isinstance(row, RowWithMetadata) else None
            url = (metadata or {}).get("url")
            if isinstance(url, str) and clean(url) in self.entries:
                scores[k] = 1.0
        return Spans.of_documents(batch.lengths, url=scores)


@register("url_list", *_URLS, file="")
class UrlList(_UrlList):
    """Documents whose whole URL is in the list."""


@register("domain_list", *_DOMAINS, file="")
class DomainList(_UrlList):
    """Documents whose host is in the list; ``www.`` is ignored."""

    domains = True
