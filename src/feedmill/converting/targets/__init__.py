"""Formats that a conversion writes, one `feedmill.converting.units.Target` each.

- `tars`: prepared folders, plain tars and VLA Foundry's tars.
- `shards`: shards of columns, written by the `ColumnWriter` of their format.
- `parquet`: Parquet files of samples and of rows.
- `lines`: JSON lines of samples and of rows.
- `tokens`: token files and sequences of tokens.
"""
