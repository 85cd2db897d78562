"""`WarcRecordInfo`: the headers of a record as Dolma reads and names them."""

from __future__ import annotations

import datetime
from typing import Any

from fastwarc.warc import WarcRecordType

from feedmill.curation.extract.dolma import parsed_date


class WarcRecordInfo:
    """Headers of a record of FastWARC.

    Attributes:
        payload_id: the payload's digest without the name of its algorithm, in lower case.
        target_uri, ctype: the URL, and the type without parameters.
        date: of the response, or of the record of a resource; now without one.

    Raises:
        ValueError: the record is neither a response nor a resource.
    """

    def __init__(self, record: Any) -> None:
        self.record = record
        if not self.is_valid:
            return
        self.payload_id = record.headers.get("WARC-Payload-Digest").split(":")[1].lower()
        self.target_uri = record.headers.get("WARC-Target-URI")
        if record.record_type == WarcRecordType.response:
            headers, date = record.http_headers, record.http_headers.get("Date")
        elif record.record_type == WarcRecordType.resource:
            headers, date = record.headers, record.headers.get("WARC-Date")
        else:
            raise ValueError(f"unsupported type of record: {record.record_type}")
        self.ctype = (headers.get("Content-Type") or "").split(";")[0]
        self.date = (parsed_date(date) if date else None) or datetime.datetime.now()

    @property
    def is_valid(self) -> bool:
        """Whether the record has a digest of its payload, and a URL."""
        return bool(self.record.headers.get("WARC-Payload-Digest") and self.record.headers.get("WARC-Target-URI"))
