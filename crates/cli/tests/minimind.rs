//! MiniMind's `train_pretrain` as its users call it, from its flags to a model that answers.

use std::fs;
use std::path::Path;

use crate::common::{CommandOutput, Site, run};
use serde_json::Value;

/// The arguments of the guide's command, as it stands.
const GUIDE: &[&str] = &[
    "--epochs",
    "3",
    "--batch_size",
    "24",
    "--learning_rate",
    "2e-4",
    "--dtype",
    "bfloat16",
    "--accumulation_steps",
    "32",
    "--grad_clip",
    "1.0",
    "--log_interval",
    "100",
    "--save_interval",
    "10000",
    "--dim",
    "1024",
    "--n_layers",
    "32",
    "--max_seq_len",
    "1024",
    "--use_flash_attn",
    "--profile",
    "--profile_interval",
    "10",
];

/// A site that looks like MiniMind's folder.
fn minimind() -> Site {
    let site = Site::new();
    fs::create_dir(site.path("dataset")).unwrap();
    fs::rename(site.path("text.jsonl"), site.path("dataset/pretrain_hq.jsonl")).unwrap();
    fs::create_dir(site.path("model/minimind_tokenizer")).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::rename(site.path("model").join(name), site.path("model/minimind_tokenizer").join(name)).unwrap();
    }
    site
}

fn pretrain(site: &Site, words: &[&str]) -> CommandOutput {
    run(site.oarlock(&[&["train_pretrain"], words].concat()))
}

#[test]
fn flags_alone_train_a_model_that_answers() {
    let site = minimind();
    let words = [
        "--dim",
        "32",
        "--n_layers",
        "2",
        "--max_seq_len",
        "32",
        "--batch_size",
        "4",
        "--accumulation_steps",
        "2",
        "--learning_rate",
        "3e-3",
        "--epochs",
        "2",
        "--log_interval",
        "2",
        "--save_interval",
        "4",
        "--profile",
        "--profile_interval",
        "4",
        "--num_processes",
        "2",
        "--vocab_size",
        "300",
        "--cpu",
    ];
    let said = pretrain(&site, &words);
    assert_eq!(said.code, Some(0), "{said:?}");
    let notes = [
        "note: MiniMind's intervals count micro-steps, 2 of which make an optimizer step: --log_interval 2 is every \
         1, --save_interval 4 is every 2, --profile_interval 4 is every 2\n",
        "note: accepted without effect: --cpu (ranks are CPU processes)\n",
    ];
    assert_eq!(said.stderr, notes.concat());
    assert!(said.stdout.contains("; 2 rank(s) of "), "{said:?}");
    let out = "out/pretrain_32";
    let losses = site.losses(out);
    let loss = |at: usize| f64::from_bits(losses[at].1);
    assert!((loss(0) - 300f64.ln()).abs() < 0.5 && loss(losses.len() - 1) < loss(0), "{losses:?}");
    // The profile: a line each, and a record each.
    let records = String::from_utf8(site.read("out/pretrain_32/profile.jsonl")).unwrap();
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), losses.len() / 2);
    assert_eq!(said.stdout.matches("profile of steps ").count(), records.len(), "{said:?}");
    for (i, record) in records.iter().enumerate() {
        assert_eq!(record["current_steps"], 2 * (i + 1));
        assert!(record["phases"]["forward_ms"].as_f64().unwrap() > 0.0, "{record}");
        assert!(record["buffers_in_use_bytes"].as_u64().unwrap() > 0, "{record}");
    }
    // The folder is a model of transformers with its tokenizer, and opens again.
    let config: Value = serde_json::from_slice(&site.read("out/pretrain_32/config.json")).unwrap();
    assert_eq!((&config["model_type"], &config["tie_word_embeddings"]), (&"llama".into(), &true.into()));
    let words = ["generate", "--model", out, "--prompt", "The river", "--max-new-tokens", "4"];
    let answer = run(site.oarlock(&words));
    assert!(answer.code == Some(0) && answer.stdout.starts_with("The river"), "{answer:?}");
    // What was written down repeats the run, and another number of ranks gives the same losses.
    let again = run(site.oarlock(&["train", "out/pretrain_32/training_args.yaml", "output_dir=again"]));
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(site.model("again") == site.model(out));
    assert!(!again.stdout.contains("note:") && again.stderr.is_empty(), "{again:?}");
}

#[test]
fn a_training_begins_anew_unless_it_is_told_to_go_on() {
    let site = minimind();
    let base = [
        "--dim",
        "32",
        "--n_layers",
        "1",
        "--max_seq_len",
        "32",
        "--batch_size",
        "4",
        "--accumulation_steps",
        "1",
        "--vocab_size",
        "300",
        "--log_interval",
        "1",
    ];
    let train = |words: &[&str]| {
        let said = pretrain(&site, &[&base[..], words].concat());
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        said
    };
    let checkpoints = || {
        let entries = fs::read_dir(site.path("out/pretrain_32")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("checkpoint-")).collect::<Vec<_>>()
    };
    train(&["--save_interval", "5", "--epochs", "2"]);
    let late = checkpoints();
    assert_eq!(late.len(), 1, "{late:?}");
    // The checkpoint of the first training is later than those of the second, and goes.
    let said = train(&["--save_interval", "3", "--epochs", "1"]);
    assert!(!said.stdout.contains("Resuming"), "{said:?}");
    let early = checkpoints();
    assert!(early.len() == 1 && early != late, "{early:?}");
    let said = train(&["--save_interval", "3", "--epochs", "2", "--from_resume", "1"]);
    assert!(
        said.stdout.contains(&format!("Resuming training from out/pretrain_32/{}.", early[0])),
        "{said:?}"
    );
}

/// A training that begins anew replaces what trainings left in its folder, and a model of somebody, an adapter or settings end
/// it before it starts.
#[test]
fn what_no_training_wrote_stays_where_one_begins_anew() {
    let site = minimind();
    let words = "--dim 32 --n_layers 1 --max_seq_len 32 --batch_size 4 --vocab_size 300 --epochs 1 --accumulation_steps 8";
    let words: Vec<&str> = words.split(' ').collect();
    let folder = site.path("out/pretrain_32");
    for name in [
        "model.safetensors",
        "pytorch_model.bin",
        "adapter_model.safetensors",
        "config.json",
        "profile.jsonl",
    ] {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), "somebody's").unwrap();
        let said = pretrain(&site, &words);
        assert_eq!(said.code, Some(2), "{name}: {said:?}");
        assert!(
            said.message().contains(name) && said.message().contains("or move it away"),
            "{name}: {said:?}"
        );
        assert!(!said.message().contains("overwrite_output_dir"), "{name}: {said:?}");
        assert_eq!(fs::read(folder.join(name)).unwrap(), b"somebody's", "{name}");
        fs::remove_dir_all(&folder).unwrap();
    }
    for _ in 0..2 {
        let said = pretrain(&site, &words);
        assert!(said.code == Some(0) && !said.stdout.contains("Resuming"), "{said:?}");
    }
    // What a training wrote and somebody changed is of somebody.
    let mut model = fs::read(folder.join("model.safetensors")).unwrap();
    *model.last_mut().unwrap() ^= 1;
    fs::write(folder.join("model.safetensors"), &model).unwrap();
    let said = pretrain(&site, &words);
    assert!(said.code == Some(2) && said.message().contains("which was changed since"), "{said:?}");
    assert!(fs::read(folder.join("model.safetensors")).unwrap() == model);
}

#[test]
fn the_guides_command_resolves_as_it_stands() {
    let site = minimind();
    let dry = pretrain(&site, &[GUIDE, &["--dry-run"]].concat());
    assert_eq!(dry.code, Some(0), "{dry:?}");
    assert!(dry.stdout.contains("would start 1 rank(s)"), "{dry:?}");
    let shown = pretrain(&site, &[GUIDE, &["--print-config"]].concat());
    let table: Vec<String> =
        shown.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in [
        "gradient_accumulation_steps 32 argument",
        "tokenizer_path ./model/minimind_tokenizer default of train_pretrain",
        "dataset ./dataset/pretrain_hq.jsonl default of train_pretrain",
        "save_steps 313 argument",
        "seed 1337 default of train_pretrain",
    ] {
        assert!(table.iter().any(|line| line == row), "{row}: {shown:?}");
    }
    assert!(!site.path("out").exists(), "nothing is written");
}

#[test]
fn what_is_missing_is_named() {
    let site = Site::new();
    fs::remove_dir_all(site.path("model")).unwrap();
    let said = pretrain(&site, GUIDE);
    assert_eq!(said.code, Some(2), "{said:?}");
    let message: String = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        message.contains("no tokenizer.json in ./model/minimind_tokenizer, ./model, ../model"),
        "{message}"
    );
    assert!(message.contains("--tokenizer_path"), "{message}");
    let said = pretrain(&site, &["--tokenizer_path", "nowhere"]);
    let message: String = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(message.contains("no tokenizer.json in `nowhere`"), "{message}");
    assert!(message.contains("no data set `./dataset/pretrain_hq.jsonl`"), "{message}");
    let said = pretrain(&site, &["--help"]);
    assert!(said.code == Some(0) && said.stdout.contains("--profile_interval N"), "{said:?}");
}

#[test]
fn the_script_of_the_recipe_is_a_training() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = fs::read_to_string(root.join("recipes/run_accelerate.sh")).unwrap();
    let (_, flags) = script.split_once("train_pretrain_accelerate.py").unwrap();
    let words: Vec<&str> =
        flags.split_whitespace().filter(|word| !matches!(*word, "\\" | "\"$@\"")).collect();
    let site = Site::new();
    std::os::unix::fs::symlink(root.join("recipes"), site.path("recipes")).unwrap();
    let said = pretrain(&site, &[&words[..], &["--dry-run"]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
}
