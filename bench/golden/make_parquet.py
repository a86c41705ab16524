"""Writes Parquet files that are compressed with Zstandard, as pyarrow writes them, for the tests of data sources.

Needs: pip install pyarrow==26.0.1
Usage: python bench/golden/make_parquet.py crates/oarlock/tests/golden/parquet

zstd-1.parquet and zstd-2.parquet have the same rows in pages of the first and the second version: a column of numbers, texts
of which some are missing and some come again (a dictionary), a column in which all is missing, and turns of talks (nested
lists). In zstd-mixed.parquet one column alone is compressed.
"""

import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

OUT = sys.argv[1]
N = 40

texts = [None if i % 7 == 3 else f"line {i % 11}: " + "the heron waits by the lock; " * (i % 5) for i in range(N)]
turns = [[{"from": "human", "value": f"question {i}"}, {"from": "gpt", "value": f"answer {i}"}][: i % 3] for i in range(N)]
turn = pa.struct([("from", pa.string()), ("value", pa.string())])
table = pa.table({
    "id": pa.array(range(N), pa.int64()),
    "text": pa.array(texts, pa.string()),
    "nothing": pa.array([None] * N, pa.string()),
    "turns": pa.array(turns, pa.list_(turn)),
})
for version in ["1.0", "2.0"]:
    pq.write_table(table, os.path.join(OUT, f"zstd-{version[0]}.parquet"), compression="zstd", data_page_version=version,
                   row_group_size=25, data_page_size=256, store_schema=False)
pq.write_table(table.select(["id", "text"]), os.path.join(OUT, "zstd-mixed.parquet"),
               compression={"id": "none", "text": "zstd"}, use_dictionary=False, store_schema=False)
