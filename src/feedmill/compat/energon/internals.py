"""Names of Energon's inner modules, which its users and tests import from there. The package itself does not have them.

`feedmill.compat.energon.modules` creates the modules.
"""

from __future__ import annotations

_FILES = "feedmill.compat.energon"


def _from(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_CLIPS = _from("feedmill.samples.avdecoder", "get_clips_uniform get_single_frames_uniform")
_ROWS = _from(f"{_FILES}.index_writer", "IndexMediaMetadata IndexSample IndexSamplePart")
_METADATA = {
    "MediaMetadataBase": "feedmill.samples.mediafacts:MediaMetadata",
    **_from(f"{_FILES}.media_files", "MediaMetadataType deserialize_media_metadata serialize_media_metadata"),
}
_TOOLS = ("analyze_debug", "checkpoint", "info", "lint", "mount", "prepare", "prepare_media", "preview")

INTERNALS: dict[str, dict[str, str]] = {
    "av": _CLIPS,
    "av.av_data": {"AVData": "feedmill.samples.avdecoder:AVData"},
    "av.av_decoder": {"AVDecoder": "feedmill.samples.avdecoder:TorchAVDecoder"},
    "av.av_reader": _from(f"{_FILES}.probe_index", "AVProbeIndex AVProbeIndexEntry"),
    "av.utils": _CLIPS,
    "cache": {"CacheFileLazy": "feedmill.loading.diskpool:FileCacheLazy"},
    "cache.file_cache_pool": {"CacheFileLazy": "feedmill.loading.diskpool:FileCacheLazy"},
    "flavors.webdataset.aggregator_pool": _from(f"{_FILES}.aggregator_pool", "AggregatorPool BaseAggregator"),
    "flavors.webdataset.indexing": _from(f"{_FILES}.index_writer", "DuplicateSampleKeyError SqliteIndexWriter"),
    "flavors.webdataset.prepare": _ROWS,
    "flavors.webdataset.structs": _from(f"{_FILES}.reading", "DatasetSubset"),
    "media": _METADATA,
    "media.extractor": _from(f"{_FILES}.media_files", "MediaFilterConfig MediaFilterStrategy"),
    "media.filesystem_prepare": _from(f"{_FILES}.media_files", "prepare_filesystem_dataset"),
    "media.metadata": _METADATA,
    "tools": {},
    **{f"tools.{tool}": {"command": f"{_FILES}.commands:{tool}"} for tool in _TOOLS},
}
"""Module -> its names -> where each is defined."""
INTERNALS["tools.checkpoint"] |= {
    f"command_{name}": f"{_FILES}.commands:checkpoint_{name}" for name in ("info", "redist")
}
