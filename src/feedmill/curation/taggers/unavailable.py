"""Dolma taggers that Feedmill does not provide, each with the reason for the error message."""

from __future__ import annotations

from feedmill.curation.registry import register_unavailable

register_unavailable(
    "it needs Presidio with a spaCy model, which runs code from the model",
    "pii_presidio_v1",
)
register_unavailable("it needs detect-secrets", "code_secrets_v1")
register_unavailable(
    "it needs the package cld3, which can no longer be installed",
    *("cld3_en_doc_v2", "cld3_en_paragraph_v2", "cld3_en_paragraph_with_doc_score_v2"),
)
register_unavailable(
    "it needs ad blocker rules",
    *("oisd_small_abp_v1", "oisd_big_abp_v1", "oisd_nsfw_abp_v1", "brave_core_abp_v1", "brave_nsfw_abp_v1"),
)
register_unavailable(
    "it needs the package langdetect",
    *("langdetect_doc_v1", "langdetect_doc_en_v1", "langdetect_paragraph_v1", "langdetect_en_paragraph_v1"),
)
register_unavailable(
    "it needs the package lingua",
    *("lingua_doc_v1", "lingua_1e2", "lingua_doc_en_v1", "lingua_en_only_v1", "lingua_par_v1", "lingua_en_par_v1"),
)
register_unavailable("it needs a model whose labels depend on its publisher's code", "code_composition")
