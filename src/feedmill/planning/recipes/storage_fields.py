"""Fields of a recipe about its stores: the cache, and the options of each store."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from feedmill.planning.recipes.fields import (
    Strict,
)
from feedmill.storage.remote.options import is_secret


class CacheModel(Strict):
    """The cache of remote data on the local disk."""

    size: StrictInt | str | None = Field(
        default=None, description="bytes, or a size such as 200GB; 0 for none; default $FEEDMILL_CACHE_SIZE"
    )
    dir: str | None = Field(None, min_length=1, description="folder; default 'data' in $FEEDMILL_CACHE_DIR")
    unit: Literal["auto", "block", "shard"] | None = Field(
        default=None, description="fetch the bytes that are needed (block), whole shards, or what is better (auto)"
    )


Seconds = Annotated[StrictInt | StrictFloat, Field(gt=0, le=86_400)]


class StorageModel(Strict):
    """Options of an object store. Keys and tokens must be set in the environment or in a profile."""

    endpoint: str | None = Field(None, pattern="^https?://[^@]+$", description="address of the server")
    region: str | None = Field(None, min_length=1, description="region of the bucket")
    profile: str | None = Field(None, min_length=1, description="profile in ~/.aws with keys, a role or single sign-on")
    skip_signature: StrictBool | None = Field(None, description="read without keys: public buckets")
    virtual_hosted_style_request: StrictBool | None = Field(None, description="bucket in the host name, not the path")
    request_payer: StrictBool | None = Field(None, description="requests are paid by the requester")
    account_name: str | None = Field(None, min_length=1, description="account of Azure Blob Storage")
    revision: str | None = Field(None, min_length=1, description="branch, tag or commit on the Hugging Face Hub")
    connect_timeout: Seconds | None = Field(None, description="seconds to connect")
    read_timeout: Seconds | None = Field(None, description="seconds without data after which a request fails")
    timeout: Seconds | None = Field(None, description="seconds for a whole request")
    retry_timeout: Seconds | None = Field(None, description="seconds during which a failed request is retried")

    @model_validator(mode="before")
    @classmethod
    def _without_secrets(cls, options: Any) -> Any:
        for name in options if isinstance(options, dict) else ():
            if name not in cls.model_fields and is_secret(str(name)):
                raise ValueError(
                    f"{name!r} is a secret, which a recipe must not contain: set it in the environment or in a profile"
                )
        return options


_TIMES = {"connect_timeout", "read_timeout", "timeout", "retry_timeout"}
_S3 = {"endpoint", "region", "profile", "skip_signature", "virtual_hosted_style_request", "request_payer", *_TIMES}
_OPTIONS = {
    "s3": _S3,
    "s3a": _S3,
    "gs": {"endpoint", "skip_signature", *_TIMES},
    "az": {"endpoint", "account_name", "skip_signature", *_TIMES},
    "http": _TIMES,
    "https": _TIMES,
    "hf": {"endpoint", "revision", "retry_timeout"},
    "msc": _TIMES,  # the profile says the rest
}
"""The options of each scheme."""


def check_storage(storage: dict[str, StorageModel]) -> dict[str, StorageModel]:
    """Return options of stores by URL. Raises `ValueError` for a URL or an option that its scheme does not have."""
    for url, options in storage.items():
        scheme = urlsplit(url).scheme
        if scheme not in _OPTIONS or ("@" in url and scheme != "hf"):
            raise ValueError(
                f"{url!r} is not the URL of a bucket or of a folder in one: expected a URL such as s3://bucket, with"
                f" one of the schemes {', '.join(_OPTIONS)}"
            )
        unknown = sorted(options.model_fields_set - _OPTIONS[scheme])
        if unknown:
            raise ValueError(
                f"{url!r}: {scheme}:// has no option {unknown[0]!r}, only {', '.join(sorted(_OPTIONS[scheme]))}"
            )
    return storage
