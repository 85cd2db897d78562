"""Dolma's taggers of URLs as classes."""

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


class DomainBlocklistUniversiteToulouseCapitoleTagger(BuiltInTagger, tagger="domain_blocklist_utp_v1"): ...


class LinkBlocklistPhishingTagger(BuiltInTagger, tagger="link_blocklist_phishing_v1"): ...


class DomainBlocklistPhishingTagger(BuiltInTagger, tagger="domain_blocklist_phishing_v1"): ...


class OISDSmallAdblockPlusTagger(BuiltInTagger, tagger="oisd_small_abp_v1"): ...


class OISDBigAdblockPlusTagger(BuiltInTagger, tagger="oisd_big_abp_v1"): ...


class OISDNSFWAdblockPlusTagger(BuiltInTagger, tagger="oisd_nsfw_abp_v1"): ...


class BraveCoreAdblockPlusTagger(BuiltInTagger, tagger="brave_core_abp_v1"): ...


class BraveNSFWAdblockPlusTagger(BuiltInTagger, tagger="brave_nsfw_abp_v1"): ...


class BlocklistProjectNsfwTagger(BuiltInTagger, tagger="blocklist_project_nsfw_v1"): ...


class BlocklistProjectSocialTagger(BuiltInTagger, tagger="blocklist_project_social_v1"): ...


class BlocklistProjectCrimeTagger(BuiltInTagger, tagger="blocklist_project_crime_v1"): ...


class BlocklistProjectViceTagger(BuiltInTagger, tagger="blocklist_project_vice_v1"): ...


class BlocklistProjectAdsTagger(BuiltInTagger, tagger="blocklist_project_ads_v1"): ...


class BlocklistFirebogAdsTagger(BuiltInTagger, tagger="blocklist_firebog_ads_v1"): ...


class BlocklistFirebogCryptoTagger(BuiltInTagger, tagger="blocklist_firebog_crypto_v1"): ...


class BlocklistFirebogMaliciousTagger(BuiltInTagger, tagger="blocklist_firebog_malicious_v1"): ...


class BlocklistFirebogNsfwTagger(BuiltInTagger, tagger="blocklist_firebog_nsfw_v1"): ...


class BlocklistFirebogSocialTagger(BuiltInTagger, tagger="blocklist_firebog_social_v1"): ...


class BlocklistFirebogSuspiciousTagger(BuiltInTagger, tagger="blocklist_firebog_suspicious_v1"): ...


class BlocklistFirebogTrackersTagger(BuiltInTagger, tagger="blocklist_firebog_trackers_v1"): ...


class BlocklistHostsAdwareMalwareTagger(BuiltInTagger, tagger="blocklist_hosts_adware_malware_v1"): ...


class BlocklistHostsFakenewsTagger(BuiltInTagger, tagger="blocklist_hosts_fakenews_v1"): ...


class BlocklistHostsGamblingTagger(BuiltInTagger, tagger="blocklist_hosts_gambling_v1"): ...


class BlocklistHostsPornTagger(BuiltInTagger, tagger="blocklist_hosts_porn_v1"): ...


class BlocklistHostsSocialTagger(BuiltInTagger, tagger="blocklist_hosts_social_v1"): ...


class AllowlistWikidataTagger(BuiltInTagger, tagger="allowlist_wikidata_v1"): ...


class AllowlistWikidataCleanedTagger(BuiltInTagger, tagger="allowlist_wikidata_cleaned_v1"): ...
