//! Files of other people that are something else than they seem: pipes, devices, folders, sockets, files without end and
//! files that become shorter. Each ends the command soon, in an error that names the file, and never by a signal.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::common::{CommandOutput, Site, run, start, until};

/// However slow the machine: without the checks these wait for ever.
const SOON: Duration = Duration::from_secs(60);

/// Makes what is not a file.
type Make = fn(&Path);

/// What can stand in the place of a file.
const KINDS: [(&str, Make); 5] = [
    ("a pipe", |path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
    ("a device without end", |path| symlink("/dev/zero", path).unwrap()),
    ("a folder", |path| fs::create_dir(path).unwrap()),
    ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
    ("a file of a terabyte", |path| File::create(path).unwrap().set_len(1 << 40).unwrap()),
];

fn put(path: &Path, make: Make) {
    if path.exists() {
        fs::remove_file(path).unwrap();
    }
    make(path);
}

fn ends_in_an_error(what: &str, begin: Instant, said: &CommandOutput) {
    assert!(matches!(said.code, Some(1 | 2)), "{what}: {said:?}");
    assert!(begin.elapsed() < SOON, "{what}: {:?}", begin.elapsed());
}

#[test]
fn what_is_no_file_is_refused_in_every_place() {
    let train: &[&str] = &["train", "train.yaml", "output_dir=out", "max_steps=1"];
    let sft: &[&str] =
        &["train", "train.yaml", "output_dir=out", "max_steps=1", "stage=sft", "dataset=talk.json"];
    let places: [(&str, &[&str]); 20] = [
        ("train.yaml", train),
        ("model/config.json", train),
        ("model/tokenizer.json", train),
        ("model/tokenizer_config.json", train),
        ("model/model.safetensors", train),
        ("text.jsonl", train),
        ("ds.json", &["train", "train.yaml", "output_dir=out", "deepspeed=ds.json"]),
        ("fsdp.json", &["train", "train.yaml", "output_dir=out", "fsdp=full_shard", "fsdp_config=fsdp.json"]),
        ("model/chat_template.jinja", sft),
        (
            "adapter/adapter_config.json",
            &["export", "model_name_or_path=model", "adapter_name_or_path=adapter", "export_dir=merged"],
        ),
        ("model/model.safetensors.index.json", train),
        ("model/generation_config.json", &["generate", "--model", "model", "--prompt", "Hi"]),
        ("tools.json", &["chat", "--model", "model", "--tools", "tools.json"]),
        ("evaluation/mmlu/mapping.json", &["eval", "--model", "model", "--task", "mmlu_test"]),
        ("saved/latest", &["import-checkpoint", "saved", "out/checkpoint-1"]),
        ("text.csv", &["train", "train.yaml", "output_dir=out", "dataset=text.csv"]),
        ("text.parquet", &["train", "train.yaml", "output_dir=out", "dataset=text.parquet"]),
        ("text.txt", &["train", "train.yaml", "output_dir=out", "dataset=text.txt"]),
        ("accelerate.yaml", &["accelerate", "launch", "--config_file", "accelerate.yaml", "train.py"]),
        (
            "checkpoint-1/state/manifest.json",
            &["train", "train.yaml", "output_dir=out", "resume_from_checkpoint=checkpoint-1"],
        ),
    ];
    for (name, words) in places {
        for (kind, make) in KINDS {
            // Data may have any length, and reading a terabyte takes its time.
            if name.starts_with("text.") && kind == "a file of a terabyte" {
                continue;
            }
            let site = Site::new();
            for folder in ["adapter", "checkpoint-1/state", "evaluation/mmlu", "saved"] {
                fs::create_dir_all(site.path(folder)).unwrap();
            }
            if name.ends_with("index.json") {
                fs::remove_file(site.path("model/model.safetensors")).unwrap();
            }
            let tokenizer_config = r#"{"chat_template": "{{ messages[0].content }}"}"#;
            site.write("model/tokenizer_config.json", tokenizer_config);
            site.write("train.py", "");
            site.write("talk.json", r#"[{"instruction": "Hi", "input": "", "output": "Hello"}]"#);
            put(&site.path(name), make);
            let begin = Instant::now();
            let what = format!("{name} is {kind}");
            println!("{what}");
            let said = run(site.oarlock(words));
            ends_in_an_error(&what, begin, &said);
            let file = name.rsplit('/').next().unwrap();
            // Of a checkpoint that is none the folder is named.
            let message = said.stderr.contains(file) || said.stderr.contains("checkpoint-1");
            assert!(message, "{what}: {}", said.stderr);
        }
    }
}

/// Without a guard of the mapped file, SIGBUS ends the ranks.
#[test]
fn a_token_cache_that_becomes_shorter_ends_the_run_with_its_name() {
    let site = Site::new();
    let running = start(site.training("out", &["max_steps=100000", "num_processes=1", "logging_steps=1"]));
    let log = site.path("out/trainer_log.jsonl");
    until("the run has begun", || {
        let log = fs::read_to_string(&log).ok()?;
        (log.lines().count() > 2).then_some(())
    });
    let mut cut = Vec::new();
    for folder in ["out/cache", "out"] {
        for entry in fs::read_dir(site.path(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "tokens") {
                File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
                cut.push(path);
            }
        }
    }
    assert_eq!(cut.len(), 1, "{cut:?}");
    let said = running.wait();
    assert_eq!((said.code, said.signal), (Some(1), None), "{said:?}");
    let name = cut[0].file_name().unwrap().to_str().unwrap();
    assert!(
        said.stderr.contains(name) && said.stderr.contains("it has become shorter while it was in use"),
        "{said:?}"
    );
}

#[test]
fn estimates_of_absurd_models_and_runs_of_absurd_length_are_refused() {
    let site = Site::new();
    let of = |flags: &str| format!("estimate-memory --hidden 64 --layers 2 {flags}");
    let train = |word: &str| format!("train train.yaml output_dir=out num_processes=1 max_steps=-1 {word}");
    for (command, most) in [
        ("estimate-memory --hidden 64 --layers 4097".to_owned(), "4096"),
        ("estimate-memory --hidden 64 --layers 9223372036854775807".to_owned(), "4096"),
        ("estimate-memory --hidden 18446744073709551615 --layers 2".to_owned(), "2147483647"),
        (of("--vocab 18446744073709551615"), "2147483647"),
        (of("--heads 18446744073709551615"), "2147483647"),
        (of("--kv-heads 18446744073709551615"), "2147483647"),
        (of("--intermediate 18446744073709551615"), "2147483647"),
        (of("--cutoff-len 18446744073709551615"), "2147483647"),
        (of("--batch 18446744073709551615"), "16777216"),
        ("estimate-memory --params 999999B".to_owned(), "10000B"),
        (train("num_train_epochs=1e300"), "9007199254740992"),
        (train("num_train_epochs=99999999999999999999"), "9007199254740992"),
    ] {
        let begin = Instant::now();
        let said = run(site.oarlock(&command.split(' ').collect::<Vec<_>>()));
        ends_in_an_error(&command, begin, &said);
        let message = said.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(message.contains(most), "{command}: {message}");
    }
}

/// Each is refused where it is written; threads or memory without end would come first otherwise.
#[test]
fn counts_beyond_all_sense_are_refused() {
    let site = Site::new();
    for (word, most) in [
        ("preprocessing_num_workers=1000000", "4096"),
        ("num_threads_per_process=1000000", "4096"),
        ("dataloader_num_workers=1000000", "4096"),
        ("num_processes=1000000000000", "1048576"),
        ("sequence_parallel_size=1000000000000", "1048576"),
        ("pipeline_model_parallel_size=1000000000000", "1048576"),
        ("num_virtual_stages=1000000000000", "1048576"),
        ("per_device_train_batch_size=9223372036854775807", "16777216"),
        ("per_device_eval_batch_size=9223372036854775807", "16777216"),
        ("gradient_accumulation_steps=9223372036854775807", "16777216"),
        ("cutoff_len=9223372036854775807", "1073741824"),
        ("max_samples=9223372036854775807", "9007199254740992"),
        ("max_steps=9223372036854775807", "9007199254740992"),
        ("max_new_tokens=9223372036854775807", "1073741824"),
        ("lora_rank=9223372036854775807", "16777216"),
        ("lora_alpha=9223372036854775807", "16777216"),
        ("galore_rank=9223372036854775807", "16777216"),
        ("ddp_timeout=9223372036854775807", "1073741824"),
        ("save_total_limit=9223372036854775807", "9007199254740992"),
        ("deepspeed={train_batch_size: 9223372036854775807}", "16777216"),
        ("deepspeed={zero_optimization: {stage: 3, zero_hpz_partition_size: 99999999999}}", "1048576"),
    ] {
        let begin = Instant::now();
        let said = run(site.oarlock(&["train", "train.yaml", "output_dir=out", word]));
        ends_in_an_error(word, begin, &said);
        let key = word.split('=').next().unwrap();
        assert!(said.code == Some(2) && said.stderr.contains(key), "{word}: {said:?}");
        // A narrow terminal breaks the line.
        let message = said.stderr.replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(message.contains(&format!("at most {most}")), "{word}: {message}");
    }
}
