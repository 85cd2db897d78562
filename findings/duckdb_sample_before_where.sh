#!/usr/bin/env bash
# DuckDB samples before it filters, and a sample in percent is one of blocks of 2,048 rows, not of rows.
#
# `select * from docs where lang = 'de' using sample 1000` takes 1,000 rows of all languages and keeps the German ones: 109 of
# 204,800, where 1,000 were asked for. Only a subquery filters first. `using sample 10%` keeps or leaves out whole blocks of
# neighbors: of a sorted table some sources are there whole and others not at all, and a small table is kept whole or not
# at all. Single rows need `10% (bernoulli)`.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1
"$work/venv/bin/python" - <<'PYTHON'
import duckdb

session = duckdb.connect()
session.execute("set threads = 1")
session.execute("""create table docs as select number, number // 2048 as block, if(number % 10 = 3, 'de', 'en') as lang
    from range(2_048_000) as numbers(number)""")


def ask(text):
    return session.execute(text).fetchall()


print("duckdb", duckdb.__version__)
german = len(ask("select * from docs where lang = 'de'"))
direct = len(ask("select * from docs where lang = 'de' using sample reservoir(1000 rows) repeatable (1)"))
nested = len(ask("select * from (select * from docs where lang = 'de') using sample reservoir(1000 rows) repeatable (1)"))
print(f"  {german:,} rows are German; a sample of 1,000 of them: {direct} with `where`, {nested:,} of a subquery")
assert german == 204_800 and 60 < direct < 140 and nested == 1000, "changed"
for how, whole in (("10%", True), ("10% (bernoulli)", False)):
    blocks = dict(ask(f"select block, count(*) from (select * from docs using sample {how}) group by block"))
    rows, most = sum(blocks.values()), max(blocks.values())
    print(f"  {how}: {rows:,} of 2,048,000 rows, of {len(blocks)} blocks of 1,000, up to {most} a block")
    assert (set(blocks.values()) == {2048}) == whole and (len(blocks) < 500) == whole, "changed"
PYTHON
