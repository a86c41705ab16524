"""Writes the table of chat layouts from LLaMA-Factory's registered templates.

    python make_layouts.py LLaMA-Factory/src/llamafactory/data/template.py crates/lm/src/data/layout/layouts.json

One line for each template: the slots of each kind of message, the words that stop an answer, the default system message and
what else differs from the defaults. Templates of models that take images or sound are left out where no text model uses
them. The file is parsed, not run.
"""
import ast
import json
import sys

# Templates with a plugin for images that text-only models of the family use as well.
ALSO_TEXT = {"gemma3", "mistral_small", "llama4", "ministral3", "qwen3_5", "qwen3_5_nothink", "qwen3_6"}
SLOTS = ("format_user", "format_assistant", "format_system", "format_observation", "format_prefix")
FLAGS = ("efficient_eos", "replace_eos")
CLASSES = {"Llama2Template": "llama2", "ReasoningTemplate": "reasoning", "Glm47ReasoningTemplate": "reasoning"}


def argument(call, name):
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def slot(node):
    if isinstance(node, ast.Set):
        name = node.elts[0].value
        # Another word in such a set is neither the begin nor the end token, and emits nothing.
        return {"special": name[:3]} if name in ("bos_token", "eos_token") else None
    if isinstance(node, ast.Dict):
        return {"token": node.values[0].value}
    return ast.literal_eval(node)


def slots(call):
    listed = argument(call, "slots") or call.args[0]
    return [made for made in map(slot, listed.elts) if made is not None]


def layout(call):
    out = {}
    for keyword in call.keywords:
        name, value = keyword.arg, keyword.value
        if name in SLOTS:
            out[name.removeprefix("format_")] = slots(value)
        elif name == "format_function":
            out["function"], out["calls"] = slots(value), argument(value, "tool_format").value
        elif name == "format_tools":
            is_text = value.func.id == "StringFormatter"
            out["tools"] = "phi4_mini" if is_text else argument(value, "tool_format").value
        elif name in ("default_system", "stop_words"):
            out[name] = ast.literal_eval(value)
        elif name == "thought_words":
            out["thought"] = ast.literal_eval(value)
        elif name in FLAGS:
            out[name] = ast.literal_eval(value)
        elif name == "template_class":
            out["class"] = CLASSES[value.id]
            if value.id == "Glm47ReasoningTemplate":
                out["closes_only"] = True
        else:
            assert name in ("name", "mm_plugin", "tool_call_words", "replace_jinja_template"), name
    return out


def main(source, target):
    lines = []
    for node in ast.parse(open(source, encoding="utf-8").read()).body:
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "register_template":
            continue
        name = argument(call, "name").value
        has_plugin = argument(call, "mm_plugin") is not None
        if has_plugin and name not in ALSO_TEXT or getattr(argument(call, "template_class"), "id", "") == "MossVLTemplate":
            continue
        lines.append(f"{json.dumps(name)}: {json.dumps(layout(call), ensure_ascii=False)}")
    with open(target, "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join(sorted(lines)) + "\n}\n")
    print(f"{len(lines)} layouts")


if __name__ == "__main__":
    main(*sys.argv[1:])
