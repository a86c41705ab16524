//! The commands of DeepSpeed and LLaMA-Factory as processes: what they start, say and end with.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{CommandOutput, Site, run};

const TRAINING: &[&str] = &[
    "--stage",
    "pt",
    "--finetuning_type",
    "full",
    "--model_name_or_path",
    "model",
    "--dataset",
    "text.jsonl",
    "--cutoff_len",
    "32",
    "--output_dir",
    "out",
    "--max_steps",
    "2",
    "--num_threads_per_process",
    "1",
];

/// A command of a front end, with a run's words at the end, and without what the tests' environment says of devices.
fn said(site: &Site, words: &[&str], arguments: &[&str], environment: &[(&str, &str)]) -> CommandOutput {
    let mut command: Command = site.oarlock(&[words, arguments].concat());
    for name in ["FORCE_TORCHRUN", "DS_ACCELERATOR", "CUDA_VISIBLE_DEVICES", "NODE_RANK", "RDZV_ID"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    run(command)
}

/// It ended so, and said all of it.
fn assert_refused(said: &CommandOutput, code: i32, expected: &[&str]) {
    assert_eq!(said.code, Some(code), "{said:?}");
    for words in expected {
        assert!(said.stderr.contains(words), "{words}: {said:?}");
    }
}

#[test]
fn deepspeed_trains_on_cpu_ranks_and_says_so_where_gpus_are_missing() {
    let site = Site::new();
    site.write(
        "ds.json",
        "{\"zero_optimization\": {\"stage\": 3}, \"train_micro_batch_size_per_gpu\": \"auto\"}",
    );
    let script = ["src/train.py", "--deepspeed", "--deepspeed_config", "ds.json"];
    let words = |flags: &[&'static str]| [&["deepspeed"], flags, &script].concat();
    let refused = said(&site, &words(&["--num_gpus", "64"]), TRAINING, &[]);
    assert_refused(&refused, 2, &["64 GPUs are asked for, and this machine has ", "add --cpu"]);
    let trained = said(&site, &words(&["--num_gpus", "2", "--cpu", "--save_pid"]), TRAINING, &[]);
    assert_eq!(trained.code, Some(0), "{trained:?}");
    assert!(trained.stdout.contains("2 rank(s) of "), "{trained:?}");
    assert!(site.path("out/model.safetensors").is_file());
    let bare =
        said(&site, &["deepspeed", "--cpu", "--num_gpus", "1", "src/train.py", "--deepspeed"], TRAINING, &[]);
    assert_refused(&bare, 2, &["`--deepspeed` names no configuration"]);
}

/// A rank gets the words of its launcher, and sees of the machine's cores its own alone.
#[test]
fn ranks_that_deepspeed_binds_to_cores_train() {
    let site = Site::new();
    let ranks = oarlock_comm::available_cores().len().min(2).to_string();
    let words = ["deepspeed", "--cpu", "--num_gpus", &ranks, "--bind_cores_to_rank", "src/train.py"];
    let said = said(&site, &words, TRAINING, &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(site.path("out/model.safetensors").exists());
}

#[test]
fn deepspeed_reaches_other_machines_by_a_program_and_ends_as_it_does() {
    let site = Site::new();
    site.write("hostfile", "a slots=2\nb slots=2\n");
    site.write("x.py", "");
    let words = ["deepspeed", "--hostfile", "hostfile", "--master_addr", "a", "--no_ssh_check", "x.py"];
    let missing = said(&site, &words, &[], &[("PATH", "nowhere")]);
    assert_refused(&missing, 2, &["there is no `pdsh` on this machine", "--no_ssh --node_rank N"]);
    site.write("pdsh", "#!/bin/sh\necho \"$PDSH_RCMD_TYPE $*\"\nexit 7\n");
    std::fs::set_permissions(site.path("pdsh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let folder = site.path("").display().to_string();
    let reached = said(&site, &words, &[], &[("PATH", &folder)]);
    assert_eq!(reached.code, Some(7), "{reached:?}");
    assert!(reached.stdout.starts_with("ssh -S -f 1024 -w a,b "), "{reached:?}");
    assert!(
        reached.stdout.contains(" deepspeed --no_ssh --run_label=")
            && reached.stdout.contains(" --world_info=a:0,1@b:0,1 --node_rank=%n "),
        "{reached:?}"
    );
}

#[test]
fn fine_tuning_is_shown_and_named_when_it_is_started() {
    let site = Site::new();
    let two = [("FORCE_TORCHRUN", "1"), ("NNODES", "2"), ("NPROC_PER_NODE", "2"), ("NODE_RANK", "1")];
    let ppo = ["--stage", "ppo", "--finetuning_type", "lora", "--template", "llama3"];
    let arguments = [&TRAINING[4..], &ppo].concat();
    let shown = said(&site, &["lmf", "train", "--dry-run"], &arguments, &two);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for expected in ["would start 4 rank(s) on 2 machine(s)", "machine 1, rank 3: RANK=3 LOCAL_RANK=1"] {
        assert!(shown.stdout.contains(expected), "{shown:?}");
    }
    for expected in ["missing to run it", "`stage: ppo`", "node rank: 1"] {
        assert!(shown.stderr.contains(expected), "{expected}: {shown:?}");
    }
    // Without Gloo that is missing, too.
    let refuses = shown.stderr.contains("Oarlock run on 2 machines");
    assert_eq!(refuses, oarlock_comm::gloo_obstacle().is_some(), "{shown:?}");
    let started = said(&site, &["lmf", "train"], &arguments, &two);
    assert_refused(&started, 2, &["`stage: ppo` is not supported yet"]);
    assert!(!site.path("out").exists());
    let trained = said(&site, &["llamafactory-cli", "train"], TRAINING, &[("NPROC_PER_NODE", "2")]);
    assert_eq!(trained.code, Some(0), "{trained:?}");
}

#[test]
fn what_else_they_answer() {
    let site = Site::new();
    assert_refused(&said(&site, &["lmf", "export"], &[], &[]), 2, &["`export_dir` is missing"]);
    assert_refused(
        &said(&site, &["deepspeed", "--hostfiles", "x", "y.py"], &[], &[]),
        2,
        &["did you mean `--hostfile`?"],
    );
    for (words, expected) in [
        (&["ds_report"][..], "op name ................ installed .. compatible"),
        (&["lmf", "env"], "- `llamafactory` version: "),
        (&["lmf", "version"], "oarlock "),
        (&["deepspeed", "--help"], "--include TEXT"),
        (&["torchrun", "--help"], "Example: torchrun --nproc-per-node 2 "),
        (&["lmf"], "Usage: llamafactory-cli COMMAND"),
    ] {
        let said = said(&site, words, &[], &[]);
        assert_eq!(said.code, Some(0), "{words:?}");
        assert!(said.stdout.contains(expected), "{words:?}: {said:?}");
    }
}

#[test]
fn llama_factorys_defaults_hold_under_its_commands_alone() {
    let site = Site::new();
    site.write(
        "file.yaml",
        "model_name_or_path: model\ndataset: text.jsonl\ntemplate: default\noutput_dir: out\n",
    );
    let shown = |words: &[&str]| {
        let said = said(&site, words, &["file.yaml", "--print-config"], &[]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let value = |key: &str| {
            let line = said.stdout.lines().find(|line| line.split_whitespace().next() == Some(key));
            line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default().to_owned()
        };
        (["stage", "finetuning_type", "split_special_tokens"].map(value), said.stderr.clone())
    };
    for words in [
        &["llamafactory-cli", "train"][..],
        &["torchrun", "--nproc-per-node", "1", "src/train.py"],
        &["accelerate", "launch", "--cpu", "--num_processes", "1", "src/train.py"],
        &["deepspeed", "--cpu", "--num_gpus", "1", "src/train.py"],
    ] {
        let (values, notes) = shown(words);
        assert_eq!(values, ["sft", "lora", "false"], "{words:?}");
        let message = "not written: as in LLaMA-Factory: stage: sft, finetuning_type: lora, split_special_tokens: false; otherwise";
        assert!(notes.contains(message), "{words:?}: {notes}");
        assert!(notes.contains("do_train is true"), "{notes}");
    }
    let (values, notes) = shown(&["train"]);
    assert_eq!(values, ["pt", "full", "true"]);
    assert!(!notes.contains("LLaMA-Factory"), "{notes}");
    // What is to be predicted alone is not trained first.
    site.write("predict.yaml", "model_name_or_path: model\neval_dataset: text.jsonl\nstage: sft\ndo_predict: true\npredict_with_generate: true\noutput_dir: out\n");
    let said = said(&site, &["llamafactory-cli", "train"], &["predict.yaml", "--print-config"], &[]);
    assert!(
        said.stdout.lines().any(|line| line.trim_start().starts_with("do_train") && line.contains("false")),
        "{said:?}"
    );
}
