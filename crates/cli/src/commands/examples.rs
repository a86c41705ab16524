//! An example of each command, with which its help begins.

use clap::Command;

/// A command line of each command. A command with subcommands shows the first of theirs.
const EXAMPLES: [&str; 25] = [
    "oarlock init sft river",
    "oarlock train recipes/pretrain.yaml",
    "oarlock pull Qwen/Qwen2.5-0.5B-Instruct --to models/qwen",
    "oarlock generate --model out/first --prompt Once",
    "oarlock chat --model out/sft",
    "oarlock serve out/sft",
    "oarlock eval --model out/sft --task mmlu_test",
    "oarlock merge-weights out/first/checkpoint-500 out/merged",
    "oarlock gather-checkpoint --out out/checkpoint-500 node0/checkpoint-500 node1/checkpoint-500",
    "oarlock export recipes/lora.yaml export_dir=out/merged",
    "oarlock import-checkpoint saved/global_step500 out/checkpoint-500",
    "oarlock tokenizer train --dataset text.jsonl --output-dir out/tokenizer",
    "oarlock token new run.token",
    "oarlock token check run.token",
    "oarlock data show recipes/sft.yaml",
    "oarlock estimate-memory recipes/minimind-small",
    "oarlock plan recipes/pretrain.yaml",
    "oarlock link-tools tools",
    "oarlock completions bash",
    "oarlock complete-words --current=learning_ra -- train recipes/sft.yaml",
    "oarlock man man1",
    "oarlock gpu-check --quick",
    "oarlock gpu-compile recipes/pretrain.yaml",
    "oarlock env",
    "oarlock licenses",
];

/// The same command, whose help and that of its subcommands begin with an example.
pub(super) fn with_examples(command: Command) -> Command {
    let path = command.get_name().to_owned();
    under(command, &path)
}

/// The same for the command that the words of `path` call.
fn under(mut command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(&name, |one| under(one, &format!("{path} {name}")));
    }
    match of(path) {
        Some(example) => command.before_help(format!("Example: {example}")),
        None => command,
    }
}

/// The first example of the command that the words of `path` call.
fn of(path: &str) -> Option<&'static str> {
    let rest = |example: &&str| example.strip_prefix(path).map(str::to_owned);
    EXAMPLES
        .into_iter()
        .find(|example| rest(example).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn check(command: &Command, path: &str) {
        let example = of(path).unwrap_or_else(|| panic!("`{path}` has no example"));
        if command.get_subcommands().next().is_none() {
            let parsed = Cli::command().try_get_matches_from(example.split(' '));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
        for one in command.get_subcommands() {
            check(one, &format!("{path} {}", one.get_name()));
        }
    }

    #[test]
    fn every_command_has_an_example_that_can_be_called() {
        check(&Cli::command(), "oarlock");
        let mut plan = with_examples(Cli::command());
        let plan = plan.find_subcommand_mut("plan").unwrap().render_help().to_string();
        assert!(plan.starts_with("Example: oarlock plan recipes/pretrain.yaml\n"), "{plan}");
    }
}
