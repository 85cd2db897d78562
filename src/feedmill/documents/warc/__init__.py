"""Web archives: find WARC files, divide them into records, and read pages from records.

- `find.py`: the archives of inputs: files, folders, patterns
- `stored.py`: the unpacked bytes of an archive, with the places of its gzip members; corrupt members are skipped
- `records.py`: records of an archive, in blocks that can be processed in parallel; whatever is no record is a fault
- `pages.py`: pages of records: URL, date, status, type, and the decoded HTML
"""

HTML = ("text/html", "application/xhtml+xml")
"""Types of pages."""
