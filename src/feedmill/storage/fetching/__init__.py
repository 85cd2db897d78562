"""Requests to remote stores: byte ranges, many at once, read ahead of their reader.

- `read_ahead.py`: ranges in the order in which they will be read, within a budget; `segments.py`: their bytes.
- `ranges.py`: which requests to make for ranges; `preload.py`: what opening a dataset reads, in one round trip.
- `fetch.py`: sends, retries and hedges requests; `lanes.py`: how many at once; `flights.py`: those that are in flight.
"""
