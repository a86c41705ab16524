"""Writes the dictionary that divides Chinese texts into words: that of jieba, without the kinds of words.

Needs: pip install jieba==0.42.1 zstandard
Usage: python bench/golden/make_words.py > crates/lm/data/words.txt.zst
"""

import sys

import jieba
import zstandard

# One word is there twice.
lines = {}
for line in jieba.get_dict_file().read().decode("utf-8").splitlines():
    word, number, _ = line.split(" ")
    lines[f"{word} {number}\n"] = True
options = zstandard.ZstdCompressionParameters.from_level(22, write_checksum=True)
text = "".join(lines).encode("utf-8")
sys.stdout.buffer.write(zstandard.ZstdCompressor(compression_params=options).compress(text))
