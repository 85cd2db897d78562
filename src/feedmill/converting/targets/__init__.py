"""Formats that a conversion writes, one `feedmill.converting.units.Target` each.

- `tars.py`: prepared folders, plain tars and VLA Foundry's tars.
- `shards.py`: shards of columns, written by the `ColumnWriter` of their format.
- `parquet.py`: Parquet files of samples and of rows.
- `lines.py`: JSON lines of samples and of rows.

Those of tokens and of LeRobot datasets are beside their sources: `feedmill.converting.tokens`, ``episodes``.
"""
