#!/usr/bin/env python3
"""Writes what the originals' own parsers make of flags that are cut short, for the tests of the commands of their names.

    DS_ACCELERATOR=cpu python bench/golden/make_abbreviations.py

Needs torch, accelerate and deepspeed of ../peers/requirements.txt. abbreviations.json holds for each command the words
and what each means there: a flag by its name (spelled with underscores), several of them, or nothing. Two spellings of one
flag are one name; Python 3.11 refuses a beginning that they share, and here it means the flag.
"""

import argparse
import json
import pathlib

import deepspeed.env_report
import torch.distributed.run
from accelerate.commands import accelerate_cli
from deepspeed.launcher import runner

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/cli/tests/golden/abbreviations.json"


class Caught(Exception):
    """Carries the parser that a program made."""


def parser_of(main):
    """The parser of a program that makes it and reads the command line at once."""
    read = argparse.ArgumentParser.parse_args

    def caught(parser, *_args, **_more):
        raise Caught(parser)

    argparse.ArgumentParser.parse_args = caught
    try:
        main()
    except Caught as found:
        return found.args[0]
    finally:
        argparse.ArgumentParser.parse_args = read
    raise SystemExit(f"{main} made no parser")


def below(parser, name):
    """A parser and those of its subcommands, by their names."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub, its in action.choices.items():
                yield from below(its, f"{name} {sub}")


def name_of(option):
    return option.removeprefix("--").replace("-", "_")


def meaning(parser, word):
    """The names that argparse takes a word for: one, several, or none."""
    if word in parser._option_string_actions:
        found = [(parser._option_string_actions[word], word)]
    else:
        found = [(action, option) for action, option, *_ in parser._get_option_tuples(word)]
    flags = list(dict.fromkeys(action.dest for action, _ in found))
    names = list(dict.fromkeys(name_of(option) for _, option in found))
    return names[:1] if len(flags) == 1 else names


def words_of(parser):
    """Beginnings of every flag, of several lengths, and such that none has."""
    words = {"--zzz"}
    for option in parser._option_string_actions:
        if option.startswith("--"):
            words |= {option[:size] for size in {3, 5, len(option) // 2 + 2, len(option) - 1} if size < len(option)}
    return sorted(words)


def main():
    accelerate = below(parser_of(accelerate_cli.main), "accelerate")
    commands = {
        "torchrun": torch.distributed.run.get_args_parser(),
        "deepspeed": parser_of(lambda: runner.parse_args([])),
        "ds_report": parser_of(deepspeed.env_report.cli_main),
        **{name: parser for name, parser in accelerate if name not in ("accelerate", "accelerate tpu-config")},
    }
    table = {name: {word: meaning(parser, word) for word in words_of(parser)} for name, parser in commands.items()}
    # It takes none, of as many flags as all others have together.
    table["accelerate launch"] = {word: names for word, names in table["accelerate launch"].items() if len(word) < 7}
    lines = [f"{json.dumps(name)}: {json.dumps(words)}" for name, words in table.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print({name: len(words) for name, words in table.items()})


if __name__ == "__main__":
    main()
