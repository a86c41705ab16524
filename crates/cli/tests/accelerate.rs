//! `accelerate launch` as its user meets it: a training run on CPU ranks, by flags, by a file, and by the names of links.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::common::{CommandOutput, Site, run};

const FILE: &str = "\
distributed_type: DEEPSPEED
num_processes: 2
use_cpu: true
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  gradient_clipping: 1.0
main_process_port: 0
";

/// `oarlock accelerate launch`, where nobody keeps a default file.
fn launch(site: &Site, words: &[&str]) -> CommandOutput {
    let mut command = site.oarlock(&["accelerate", "launch"]);
    command.args(words).env("HF_HOME", site.path("nowhere"));
    run(command)
}

#[test]
fn a_file_trains_on_cpu_ranks() {
    let site = Site::new();
    site.write("accelerate.yaml", FILE);
    let words =
        ["--config_file", "accelerate.yaml", "src/train.py", "train.yaml", "output_dir=out", "max_steps=2"];
    let said = launch(&site, &words);
    assert_eq!(said.code, Some(0), "{said:?}");
    let all = format!("{}{}", said.stdout, said.stderr);
    assert!(all.contains("in bf16; 2 rank(s)"), "{all}");
    assert!(site.path("out/config.json").is_file());
}

#[test]
fn a_policy_of_fsdp_makes_the_units_and_changes_no_bit() {
    let site = Site::new();
    let train = |output: &str, policy: &str| {
        let flags = "--use_fsdp --cpu --num_processes 2 --main_process_port 0 --fsdp_auto_wrap_policy";
        let output = format!("output_dir={output}");
        let script = ["src/train.py", "train.yaml", output.as_str(), "max_steps=4"];
        let words: Vec<&str> = flags.split(' ').chain(policy.split(' ')).chain(script).collect();
        launch(&site, &words)
    };
    let transformer = "TRANSFORMER_BASED_WRAP --fsdp_transformer_layer_cls_to_wrap";
    for (output, policy) in [
        ("declared", "TRANSFORMER_BASED_WRAP".to_owned()),
        ("layers", format!("{transformer} LlamaDecoderLayer")),
        ("size", "SIZE_BASED_WRAP --fsdp_min_num_params 9000".to_owned()),
        ("one", "NO_WRAP".to_owned()),
    ] {
        let said = train(output, &policy);
        assert_eq!(said.code, Some(0), "{policy}: {said:?}");
        assert_eq!(site.losses(output), site.losses("declared"), "{policy}");
    }
    let said = train("wrong", &format!("{transformer} Qwen3DecoderLayer"));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("could not find the transformer layer class Qwen3DecoderLayer"), "{said:?}");
    let said = train("wrong", &format!("{transformer} Qwen3DecoderLayer --dry-run"));
    assert_eq!(said.code, Some(0), "{said:?}");
    let message = "Qwen3DecoderLayer in the model; its units are of the classes Embedding, LlamaDecoderLayer, Head (write";
    assert!(said.stderr.contains("missing to run it: ") && said.stderr.contains(message), "{said:?}");
    assert!(!site.path("wrong").exists());
}

#[test]
fn a_conflict_names_both_places() {
    let site = Site::new();
    site.write("accelerate.yaml", &FILE.replace("num_processes: 2", "num_processes: 3"));
    let words = ["--config_file", "accelerate.yaml", "src/train.py", "train.yaml", "output_dir=out"];
    let said = launch(&site, &words);
    assert_eq!(said.code, Some(2), "{said:?}");
    for word in ["`num_processes` is 2", "accelerate.yaml:2:16", "says 3", "train.yaml:12"] {
        assert!(said.stderr.contains(word), "it does not say {word:?}: {}", said.stderr);
    }
}

#[test]
fn every_rank_of_every_machine_is_shown() {
    let site = Site::new();
    let flags = "--use_fsdp --num_processes 4 --num_machines 2 --machine_rank 1 --main_process_ip \
                 10.0.0.1 --dry-run -m package.module";
    let said = launch(&site, &flags.split_whitespace().collect::<Vec<_>>());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("would start 4 rank(s) on 2 machine(s)"), "{}", said.stdout);
    for word in ["ACCELERATE_USE_FSDP=true", "MASTER_ADDR=10.0.0.1", "machine 1, rank 3: RANK=3 LOCAL_RANK=1"]
    {
        assert!(said.stdout.contains(word), "it does not show {word:?}: {}", said.stdout);
    }
}

#[test]
fn it_answers_to_its_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, words) in [("accelerate", &["launch", "--help"][..]), ("accelerate-launch", &["--help"])] {
        let link = folder.path().join(name);
        symlink(env!("CARGO_BIN_EXE_oarlock"), &link).unwrap();
        let output = Command::new(&link).args(words).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("--deepspeed_config_file PATH"), "{text}");
    }
}
