//! What is offered where, and that no words lead to a panic.

use clap::CommandFactory;

use super::super::Cli;
use super::*;

fn program() -> Command {
    let mut program = Cli::command();
    program.build();
    program
}

/// The values that are offered for a line, of which the last word is the current one. Files are `FILES` behind what stands before.
fn offered(line: &str) -> Vec<String> {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let current = words.pop().unwrap();
    let shown = |candidate: Candidate| match candidate {
        Candidate::Word { value, .. } | Candidate::Part { value, .. } => value,
        Candidate::Files { behind } => format!("{behind}FILES"),
        Candidate::Folders { behind } => format!("{behind}FOLDERS"),
    };
    candidates(&program(), &words, &current).into_iter().map(shown).collect()
}

#[test]
fn keys_and_their_values_are_offered() {
    assert_eq!(offered("train recipes/sft.yaml learning_ra"), ["learning_rate="]);
    let part = &candidates(&program(), &["train".to_owned(), "x.yaml".to_owned()], "learning_ra")[0];
    assert_eq!(part.line(), "plearning_rate=\tPeak learning rate [5e-5]\n");
    assert_eq!(
        offered("train x.yaml stage="),
        ["pt", "sft", "dpo", "kto", "rm", "raft"].map(|stage| format!("stage={stage}"))
    );
    assert_eq!(offered("train x.yaml stage=r"), ["stage=rm", "stage=raft"]);
    assert_eq!(offered("train x.yaml bf16="), ["bf16=true", "bf16=false"]);
    assert_eq!(offered("train x.yaml report_to=csv,ten"), ["report_to=csv,tensorboard"]);
    assert_eq!(offered("train x.yaml output_dir=out/f"), ["output_dir=FILES"]);
    assert_eq!(
        offered("train x.yaml resume_from_checkpoint="),
        ["resume_from_checkpoint=true", "resume_from_checkpoint=false", "resume_from_checkpoint=FILES"]
    );
    assert_eq!(offered("train x.yaml no_such_key="), Vec::<String>::new());
    // Flags of the same names.
    assert_eq!(offered("train x.yaml --learning_ra"), ["--learning_rate"]);
    assert_eq!(offered("train x.yaml --stage d"), ["dpo"]);
    assert_eq!(offered("train x.yaml --stage=d"), ["--stage=dpo"]);
    assert_eq!(offered("train x.yaml --dr"), ["--dry-run"]);
    // No key that changes nothing is offered, and each value can be written.
    assert!(!offered("train x.yaml ").iter().any(|key| key == "fp8_backend="));
    for key in offered("train x.yaml ") {
        for value in offered(&format!("train x.yaml {key}")) {
            assert!(value.starts_with(&key), "{value}");
        }
    }
}

#[test]
fn a_run_begins_with_a_recipe_or_a_file() {
    assert_eq!(offered("train "), ["pretrain", "sft", "lora", "dpo", "FILES"]);
    let some = offered("train d");
    assert_eq!(some[..2], ["dpo", "FILES"]);
    assert!(
        some[2..].iter().any(|key| key == "dataset=") && some[2..].iter().all(|key| key.starts_with('d'))
    );
    assert_eq!(offered("init s"), ["sft"]);
    assert_eq!(offered("init sft "), ["FILES"]);
    assert_eq!(offered("export "), ["FILES"]);
    assert_eq!(offered("data show x.yaml template"), ["template="]);
    assert_eq!(offered("plan x.yaml --mach"), ["--machines"]);
    assert_eq!(offered("plan x.yaml --profile p"), ["FILES"]);
    assert!(offered("train max_steps=3 --stage sft ").contains(&"sft".to_owned()));
}

#[test]
fn commands_flags_and_values_are_offered() {
    let commands = offered("");
    for name in ["train", "chat", "completions", "man", "torchrun", "accelerate", "llamafactory-cli"] {
        assert!(commands.iter().any(|found| found == name), "{name}: {commands:?}");
    }
    assert!(!commands.iter().any(|name| name == "complete-words"));
    assert_eq!(offered("tok"), ["tokenizer", "token"]);
    assert_eq!(offered("token "), ["new", "check", "help"]);
    assert_eq!(offered("token check "), ["FILES"]);
    assert_eq!(offered("completions f"), ["fish"]);
    assert_eq!(offered("chat --mod"), ["--model"]);
    assert_eq!(offered("chat --model out/s"), ["FILES"]);
    assert_eq!(offered("chat --model=out/s"), ["--model=FILES"]);
    assert_eq!(offered("chat --adapter=a,b"), ["a,FILES"].map(|end| format!("--adapter={end}")));
    assert_eq!(offered("chat --dtype "), ["f32", "bf16"]);
    assert_eq!(offered("eval --lang="), ["--lang=en", "--lang=zh"]);
    assert_eq!(offered("merge-weights a "), ["FILES"]);
    assert_eq!(offered("merge-weights a b "), Vec::<String>::new());
    assert_eq!(offered("gather-checkpoint -o out a b "), ["FILES"]);
    assert_eq!(offered("env --"), ["--help"]);
    assert!(!offered("gpu-check --").iter().any(|flag| flag == "--sanitized"), "a hidden flag");
}

#[test]
fn commands_of_other_programs_are_completed() {
    assert_eq!(offered("accelerate la"), ["launch"]);
    assert_eq!(offered("accelerate launch --num_proc"), ["--num_processes"]);
    assert_eq!(offered("torchrun --nproc"), ["--nproc_per_node"]);
    assert_eq!(offered("torchrun --numa_binding s"), ["socket"]);
    assert_eq!(offered("torchrun --log_dir l"), ["FILES"]);
    assert_eq!(offered("torchrun --nproc_per_node 2 s"), ["FILES"]);
    assert_eq!(offered("deepspeed --hostf"), ["--hostfile"]);
    assert_eq!(offered("llamafactory-cli tr"), ["train"]);
    assert_eq!(offered("llamafactory-cli train x.yaml stage=d"), ["stage=dpo"]);
    assert_eq!(offered("llamafactory-cli train x.yaml learning_ra"), ["learning_rate="]);
}

#[test]
fn no_words_lead_to_a_panic() {
    let words = [
        "",
        "-",
        "--",
        "=",
        "--=",
        ",",
        "train",
        "data",
        "show",
        "-o",
        "--model",
        "x=",
        "--stage",
        "é\t\n",
        "torchrun",
        "accelerate",
    ];
    let program = program();
    for first in words {
        for second in words {
            for current in words {
                for candidate in candidates(&program, &[first.to_owned(), second.to_owned()], current) {
                    assert!(candidate.continues(current));
                    assert_eq!(candidate.line().matches('\n').count(), 1, "{candidate:?}");
                }
            }
        }
    }
}

#[test]
fn every_script_asks_this_program() {
    for script in ["bash", "zsh", "fish", "ps1", "elv"] {
        let path = format!("{}/src/commands/completions/oarlock.{script}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("complete-words") && text.contains("--current="), "{script}");
    }
}
