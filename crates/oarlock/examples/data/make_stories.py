"""Writes stories.txt: the first English records of recipes/corpus/pretrain.jsonl, a paragraph for each.

    python make_stories.py < recipes/corpus/pretrain.jsonl > stories.txt
"""
import json, sys

texts = [json.loads(line)["text"] for line in sys.stdin]
print("\n\n".join([text for text in texts if text.isascii()][:60]))
