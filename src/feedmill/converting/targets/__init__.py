"""The formats a conversion writes, one `feedmill.converting.units.Target` each.

`tars`: prepared folders, plain tars and VLA Foundry's. `shards`: shards of columns, by the writer of their format.
`parquet`: tables of samples and of rows. `lines`: lines of JSON, of samples and of rows. `tokens`: token files and
sequences of tokens.
"""
