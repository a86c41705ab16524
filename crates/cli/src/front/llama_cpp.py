import json
import sys

# Not from the working directory, where anybody's file could have this name.
sys.path = [path for path in sys.path if path not in ("", ".")]
try:
    import llama_cpp
except ImportError:
    print(json.dumps({"absent": True}))
    sys.exit()

asked = json.load(sys.stdin)
longest = max(len(prompt) for prompt in asked["prompts"])
model = llama_cpp.Llama(
    asked["file"], n_ctx=longest + 1, n_batch=longest + 1, logits_all=True, n_gpu_layers=0, verbose=False
)
around = model.tokenize(b"", add_bos=True, special=True)
ids = [model.tokenize(text.encode(), add_bos=False, special=True) for text in asked["texts"]]
logits = []
for prompt in asked["prompts"]:
    model.reset()
    model.eval(prompt)
    rows = model.scores[: len(prompt)]
    logits.append([[float(row[column]) for column in asked["columns"]] for row in rows])
print(json.dumps({"around": around, "ids": ids, "logits": logits, "version": llama_cpp.__version__}))
