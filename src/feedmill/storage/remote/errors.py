"""Errors of `obstore`: decide whether to retry a request, and translate errors to ours, with a fix.

`obstore` raises a few classes for all servers, so the text of an error and its HTTP status decide.
"""

from __future__ import annotations

import enum
import re

from feedmill.errors import FeedmillError, NotFound, StorageError

CHECK = "Check the URL."
AGAIN = "Run the same command again; finished work is kept."

_REASONS = (
    # (pattern in the text of the error, kind, what, fix); the first pattern that matches is used
    (r"NoSuchBucket|ContainerNotFound", "no-bucket", "there is no such bucket", CHECK),
    (
        r"latest/(api|meta-data)|169\.254\.\d+\.\d+|computeMetadata|CredentialProvider|MissingCredentials",
        "no-credentials",
        "no credentials were found",
        "{keys}",
    ),
    (
        r"RequestTimeTooSkewed|RequestExpired|date header too old",
        "clock-skew",
        "the clock of this machine differs too much from that of the server",
        "Set the clock, for example with NTP (timedatectl set-ntp true), and run the same command again.",
    ),
    (
        r"ExpiredToken|TokenRefreshRequired",
        "expired-token",
        "the session token has expired, and the credentials give no newer one",
        "Log in again (for example aws sso login), or set new keys and a new AWS_SESSION_TOKEN. With a profile or a"
        " role, tokens are renewed during a run.",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidAuthenticationInfo|401 Unauthorized"
        r"|failed to authenticate the request",
        "bad-credentials",
        "the credentials were rejected",
        "Check {secrets}.",
    ),
    (
        r"403 Forbidden|AccessDenied",
        "eacces",
        "permission denied",
        "Ask for access, or check the URL, the credentials and the clock of this machine.",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|301 Moved",
        "wrong-region",
        "the bucket is in another region",
        "Set AWS_REGION to the bucket's region.",
    ),
    (
        r"BadScheme",
        "bad-url",
        "the address is http://, which is not encrypted",
        "Use https://, or set {allow} if the network can be trusted.",
    ),
    (
        r"kind: Connect|[Cc]onnection refused|dns error",
        "no-connection",
        "the server cannot be reached",
        "Check the network, the URL and {endpoint}.",
    ),
    (r"kind: Timeout|TimedOut|timed out", "timeout", "the server did not answer in time", AGAIN),
    (
        r"Range request not supported",
        "unsupported",
        "this server does not support range requests",
        "Copy the data to a local disk or to a server that supports them.",
    ),
    (
        r"PROPFIND|405 Method Not Allowed|501 Not Implemented|NotSupported|NotImplemented",
        "unsupported",
        "this server cannot list or change its files",
        "A plain web server only serves reads of prepared data; use an object store or a local folder here.",
    ),
    (
        r"Path \"(?P<key>[^\"]*)\" contained",
        "bad-name",
        "the key {key!r} has an empty part or a character that cannot be addressed, so this folder cannot be listed",
        "Rename it, or give the URL of a folder that holds no such key.",
    ),
)
"""Patterns of messages, with the kind of the error, its text (``{key}`` is a group of the pattern) and its fix."""


_VARIABLES = {
    "gs": {
        "keys": "Set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run 'gcloud auth application-default login'; for"
        " a public bucket set GOOGLE_SKIP_SIGNATURE=true.",
        "secrets": "the key file and the token",
        "endpoint": "GOOGLE_BASE_URL",
        "allow": "GOOGLE_ALLOW_HTTP=true",
    },
    "az": {
        "keys": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run 'az login' and set"
        " AZURE_USE_AZURE_CLI=true; for a public container set AZURE_SKIP_SIGNATURE=true.",
        "secrets": "the name and the key of the account, or its token",
        "endpoint": "AZURE_STORAGE_ENDPOINT",
        "allow": "AZURE_ALLOW_HTTP=true",
    },
    "s3": {
        "keys": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket set"
        " AWS_SKIP_SIGNATURE=true.",
        "secrets": "the access key, the secret and the session token",
        "endpoint": "AWS_ENDPOINT_URL",
        "allow": "AWS_ALLOW_HTTP=true",
    },
}
"""The environment variables of each cloud, for `_REASONS`."""


def status_of(error: BaseException) -> str | None:
    """Return the HTTP status in an error of `obstore`; None if it has none."""
    match = re.search(r"status code: (\d{3})", str(error))
    return match[1] if match else None


def is_beyond_end(error: BaseException) -> bool:
    """Return whether a request failed because its range begins after the end of the object."""
    # Some servers answer with an empty range where others refuse.
    return status_of(error) == "416" or "Wanted range starting at" in str(error)


class Reaction(enum.Enum):
    """What to do after a failed request."""

    THROTTLED = "retry, with fewer requests at once"
    AGAIN = "retry after a pause"
    WRONG_RANGE = "retry immediately: the answer has another range"
    DENIED = "retry with new credentials"
    FINAL = "raise the error"


_FINAL = frozenset({"no-bucket", "no-credentials", "wrong-region", "bad-url", "unsupported", "bad-name"})


def cloud_of(url: str) -> str:
    """Return the scheme of a URL, the same for all schemes of one cloud."""
    scheme = url.partition("://")[0]
    return {"s3a": "s3", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az"}.get(scheme, scheme)


def reaction_to(error: BaseException) -> Reaction:
    """Return what to do after an error of `obstore` for a range request."""
    from obstore.exceptions import BaseError, NotFoundError, PreconditionError

    if isinstance(error, FileNotFoundError | NotFoundError | PreconditionError) or not isinstance(
        error, BaseError | OSError | ValueError
    ):
        return Reaction.FINAL
    if is_beyond_end(error):
        return Reaction.FINAL
    text, status = str(error), status_of(error)
    if status in ("429", "503") or "SlowDown" in text:
        return Reaction.THROTTLED
    if re.search(r"Requested \d+\S* ?got|Requested .*, got|Content-Range", text):
        return Reaction.WRONG_RANGE
    kind = getattr(translate(error, ""), "kind", None)
    if kind in ("expired-token", "bad-credentials", "eacces"):
        return Reaction.DENIED
    if kind in _FINAL or (status is not None and status[0] == "4" and status != "408"):
        return Reaction.FINAL
    return Reaction.AGAIN


def translate(error: BaseException, url: str) -> FeedmillError | None:
    """Convert an error of `obstore` to one with a fix; None if it is not about storage."""
    from obstore.exceptions import BaseError

    text = str(error)
    if not isinstance(error, (BaseError, OSError, ValueError)):
        return None
    for pattern, kind, what, fix in _REASONS:
        if found := re.search(pattern, text):
            variables = _VARIABLES.get(cloud_of(url), _VARIABLES["s3"])
            return StorageError(what.format(**found.groupdict("")), file=url, kind=kind, fix=fix.format(**variables))
    if isinstance(error, FileNotFoundError):
        return NotFound("there is no such file", file=url, fix=CHECK)
    first = text.splitlines()[0] if text else type(error).__name__
    return StorageError(f"the store refused the request ({first})", file=url, fix=AGAIN)
