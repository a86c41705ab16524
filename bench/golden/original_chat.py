"""LLaMA-Factory's own templates and encoding of rows, loaded from a checkout without the packages that only images need."""
import sys
import types
from types import SimpleNamespace
from unittest.mock import MagicMock

IGNORED = -100


def load(source):
    """The modules of the folder `src` of a checkout: templates, and the processor of supervised fine-tuning."""
    sys.path.insert(0, source)
    for name in ("llamafactory", "llamafactory.data", "llamafactory.data.processor", "llamafactory.extras"):
        package = types.ModuleType(name)
        package.__path__ = [f"{source}/{name.replace('.', '/')}"]
        sys.modules[name] = package
    plugin = types.ModuleType("llamafactory.data.mm_plugin")
    text_only = SimpleNamespace(process_messages=lambda messages, *_: messages,
                                process_token_ids=lambda ids, labels, *_: (ids, labels))
    plugin.get_mm_plugin = lambda *_, **__: text_only
    plugin.BasePlugin = object
    sys.modules["llamafactory.data.mm_plugin"] = plugin
    for name in ("llamafactory.extras.logging", "llamafactory.extras.constants", "llamafactory.extras.packages",
                 "llamafactory.extras.misc", "llamafactory.data.parser"):
        sys.modules[name] = MagicMock(IGNORE_INDEX=IGNORED)
    import llamafactory.data.template as template
    import llamafactory.data.processor.supervised as supervised
    return template, supervised


def encoded(supervised, template, tokenizer, messages, system="", tools="", **settings):
    """The ids and labels of a conversation."""
    defaults = dict(cutoff_len=100_000, train_on_prompt=False, mask_history=False)
    processor = SimpleNamespace(template=template, tokenizer=tokenizer, processor=None,
                                data_args=SimpleNamespace(**{**defaults, **settings}))
    encode = supervised.SupervisedDatasetProcessor._encode_data_example
    return encode(processor, messages[:-1], messages[-1:], system, tools, [], [], [])
