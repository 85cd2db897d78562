"""Requests to remote stores: byte ranges, many at once, read ahead of their reader.

- `read_ahead.py`: fetches ranges in the order in which they will be read, within a budget;
  `segments.py`: their bytes.
- `ranges.py`: merges ranges to requests.
- `fetch.py`: sends, retries and hedges requests; `lanes.py`: limits their number, and tracks each of them.
"""
