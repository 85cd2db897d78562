"""The reports that verbs return: attributes, ``as_dict()`` for programs, and a page in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "BenchReport": "loading.bench",
    "CacheReport": "loading.caching",
    "CheckReport": "indexing.report",
    "CompareReport": "mixture.verbs.compare",
    "ConvertReport": "converting.engine",
    "DecontaminateReport": "curation.decontaminate.job",
    "DedupeReport": "curation.dedupe.job",
    "EmbedReport": "curation.embed",
    "ExtractReport": "curation.extract.extract",
    "FitReport": "mixture.verbs.fit",
    "ForgetReport": "tracing.forget",
    "ImportReport": "importing.report",
    "IndexReport": "tokens.verbs.index",
    "InfoReport": "converting.info",
    "LengthsReport": "tokens.verbs.lengths",
    "MediaReport": "indexing.prepare_media",
    "MixReport": "curation.mix.report",
    "NearReport": "curation.near.options",
    "NumbersReport": "tokens.verbs.numbers",
    "PageReport": "web.report",
    "CellsReport": "mixture.verbs.cells",
    "PlanReport": "planning.overview",
    "PrepareReport": "indexing.report",
    "PreviewReport": "samples.preview",
    "ProposeReport": "mixture.verbs.propose",
    "RepairReport": "indexing.repair",
    "RewriteReport": "writing.rewrite",
    "RunReport": "pipelines.run",
    "StatReport": "curation.stat",
    "TagReport": "curation.tag",
    "TokenizeReport": "tokens.job",
    "TokensReport": "tokens.rewrite",
    "TraceReport": "tracing.trace",
    "WriteReport": "writing.write",
}
__all__ = [
    "BenchReport",
    "CacheReport",
    "CellsReport",
    "CheckReport",
    "CompareReport",
    "ConvertReport",
    "DecontaminateReport",
    "DedupeReport",
    "EmbedReport",
    "ExtractReport",
    "FitReport",
    "ForgetReport",
    "ImportReport",
    "IndexReport",
    "InfoReport",
    "LengthsReport",
    "MediaReport",
    "MixReport",
    "NearReport",
    "NumbersReport",
    "PageReport",
    "PlanReport",
    "PrepareReport",
    "PreviewReport",
    "ProposeReport",
    "RepairReport",
    "RewriteReport",
    "RunReport",
    "StatReport",
    "TagReport",
    "TokenizeReport",
    "TokensReport",
    "TraceReport",
    "WriteReport",
]

if TYPE_CHECKING:
    from feedmill.converting.engine import ConvertReport
    from feedmill.converting.info import InfoReport
    from feedmill.curation.decontaminate.job import DecontaminateReport
    from feedmill.curation.dedupe.job import DedupeReport
    from feedmill.curation.embed import EmbedReport
    from feedmill.curation.extract.extract import ExtractReport
    from feedmill.curation.mix.report import MixReport
    from feedmill.curation.near.options import NearReport
    from feedmill.curation.stat import StatReport
    from feedmill.curation.tag import TagReport
    from feedmill.importing.report import ImportReport
    from feedmill.indexing.prepare_media import MediaReport
    from feedmill.indexing.repair import RepairReport
    from feedmill.indexing.report import CheckReport, PrepareReport
    from feedmill.loading.bench import BenchReport
    from feedmill.loading.caching import CacheReport
    from feedmill.mixture.verbs.cells import CellsReport
    from feedmill.mixture.verbs.compare import CompareReport
    from feedmill.mixture.verbs.fit import FitReport
    from feedmill.mixture.verbs.propose import ProposeReport
    from feedmill.pipelines.run import RunReport
    from feedmill.planning.overview import PlanReport
    from feedmill.samples.preview import PreviewReport
    from feedmill.tokens.job import TokenizeReport
    from feedmill.tokens.rewrite import TokensReport
    from feedmill.tokens.verbs.index import IndexReport
    from feedmill.tokens.verbs.lengths import LengthsReport
    from feedmill.tokens.verbs.numbers import NumbersReport
    from feedmill.tracing.forget import ForgetReport
    from feedmill.tracing.trace import TraceReport
    from feedmill.web.report import PageReport
    from feedmill.writing.rewrite import RewriteReport
    from feedmill.writing.write import WriteReport
else:
    __getattr__, __dir__ = lazily("reports", HOMES)
