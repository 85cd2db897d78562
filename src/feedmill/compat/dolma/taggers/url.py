"""Dolma's taggers of URLs as classes. Lists are not downloaded: pass the path of the list as `file`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from feedmill.curation.plugin_types import DocumentWithMetadata
from feedmill.curation.plugins import BuiltInTagger
from feedmill.curation.taggers.urls import AdblockList, DomainList, UrlList


class BaseUrlTagger(BuiltInTagger):
    """Base class of taggers with lists of URLs in local files: set `BLOCKLIST_PATHS`."""

    BLOCKLIST_PATHS: ClassVar[Sequence[str]] = ()
    DOCUMENT = DocumentWithMetadata

    def __init__(self) -> None:
        self.inner = UrlList(*self.BLOCKLIST_PATHS)


class BaseDomainTagger(BaseUrlTagger):
    """Base class of taggers with lists of domains."""

    def __init__(self) -> None:
        self.inner = DomainList(*self.BLOCKLIST_PATHS)


class AdbUrlTagger(BaseUrlTagger):
    """Base class of taggers with rules of ad blockers."""

    def __init__(self) -> None:
        self.inner = AdblockList(*self.BLOCKLIST_PATHS)


class DomainBlocklistUniversiteToulouseCapitoleTagger(BuiltInTagger, tagger="domain_blocklist_utp_v1"):
    """Documents whose host is in the lists of Université Toulouse Capitole."""


class LinkBlocklistPhishingTagger(BuiltInTagger, tagger="link_blocklist_phishing_v1"):
    """Documents whose whole URL is in a list of phishing sites."""


class DomainBlocklistPhishingTagger(BuiltInTagger, tagger="domain_blocklist_phishing_v1"):
    """Documents whose host is in a list of phishing sites."""


class OISDSmallAdblockPlusTagger(BuiltInTagger, tagger="oisd_small_abp_v1"):
    """Documents whose URL is blocked by the small OISD list."""


class OISDBigAdblockPlusTagger(BuiltInTagger, tagger="oisd_big_abp_v1"):
    """Documents whose URL is blocked by the big OISD list."""


class OISDNSFWAdblockPlusTagger(BuiltInTagger, tagger="oisd_nsfw_abp_v1"):
    """Documents whose URL is blocked by the NSFW list of OISD."""


class BraveCoreAdblockPlusTagger(BuiltInTagger, tagger="brave_core_abp_v1"):
    """Documents whose URL is blocked by Brave's main list."""


class BraveNSFWAdblockPlusTagger(BuiltInTagger, tagger="brave_nsfw_abp_v1"):
    """Documents whose URL is blocked by Brave's NSFW list."""


class BlocklistProjectNsfwTagger(BuiltInTagger, tagger="blocklist_project_nsfw_v1"):
    """Documents whose host is in the "NSFW" list of The Block List Project."""


class BlocklistProjectSocialTagger(BuiltInTagger, tagger="blocklist_project_social_v1"):
    """Documents whose host is in the "social" list of The Block List Project."""


class BlocklistProjectCrimeTagger(BuiltInTagger, tagger="blocklist_project_crime_v1"):
    """Documents whose host is in the "crime" list of The Block List Project."""


class BlocklistProjectViceTagger(BuiltInTagger, tagger="blocklist_project_vice_v1"):
    """Documents whose host is in the "vice" list of The Block List Project."""


class BlocklistProjectAdsTagger(BuiltInTagger, tagger="blocklist_project_ads_v1"):
    """Documents whose host is in the "ads" list of The Block List Project."""


class BlocklistFirebogAdsTagger(BuiltInTagger, tagger="blocklist_firebog_ads_v1"):
    """Documents whose host is in the "ads" list of Firebog."""


class BlocklistFirebogCryptoTagger(BuiltInTagger, tagger="blocklist_firebog_crypto_v1"):
    """Documents whose host is in the "crypto" list of Firebog."""


class BlocklistFirebogMaliciousTagger(BuiltInTagger, tagger="blocklist_firebog_malicious_v1"):
    """Documents whose host is in the "malicious" list of Firebog."""


class BlocklistFirebogNsfwTagger(BuiltInTagger, tagger="blocklist_firebog_nsfw_v1"):
    """Documents whose host is in the "NSFW" list of Firebog."""


class BlocklistFirebogSocialTagger(BuiltInTagger, tagger="blocklist_firebog_social_v1"):
    """Documents whose host is in the "social" list of Firebog."""


class BlocklistFirebogSuspiciousTagger(BuiltInTagger, tagger="blocklist_firebog_suspicious_v1"):
    """Documents whose host is in the "suspicious" list of Firebog."""


class BlocklistFirebogTrackersTagger(BuiltInTagger, tagger="blocklist_firebog_trackers_v1"):
    """Documents whose host is in the "trackers" list of Firebog."""


class BlocklistHostsAdwareMalwareTagger(BuiltInTagger, tagger="blocklist_hosts_adware_malware_v1"):
    """Documents whose host is in the "adware and malware" list of the StevenBlack hosts project."""


class BlocklistHostsFakenewsTagger(BuiltInTagger, tagger="blocklist_hosts_fakenews_v1"):
    """Documents whose host is in the "fakenews" list of the StevenBlack hosts project."""


class BlocklistHostsGamblingTagger(BuiltInTagger, tagger="blocklist_hosts_gambling_v1"):
    """Documents whose host is in the "gambling" list of the StevenBlack hosts project."""


class BlocklistHostsPornTagger(BuiltInTagger, tagger="blocklist_hosts_porn_v1"):
    """Documents whose host is in the "porn" list of the StevenBlack hosts project."""


class BlocklistHostsSocialTagger(BuiltInTagger, tagger="blocklist_hosts_social_v1"):
    """Documents whose host is in the "social" list of the StevenBlack hosts project."""


class AllowlistWikidataTagger(BuiltInTagger, tagger="allowlist_wikidata_v1"):
    """Documents whose whole URL is in the list of links from Wikidata."""


class AllowlistWikidataCleanedTagger(BuiltInTagger, tagger="allowlist_wikidata_cleaned_v1"):
    """Documents whose whole URL is in the cleaned list of links from Wikidata."""
