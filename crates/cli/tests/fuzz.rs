//! Every reader of what people and other programs write, fed with damaged inputs: none may panic or take long.
//!
//! A moment for each reader as part of the suite; `OARLOCK_FUZZ_SECONDS=600 cargo test --release -p oarlock-cli --test suite fuzz` gives
//! each of them ten minutes. An input that breaks a reader is kept in a file that the failure names.

#[path = "fuzz/mutate.rs"]
mod mutate;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mutate::Mutator;
use oarlock::checkpoint::{self, Manifest};
use oarlock::data::{ChatTemplate, Content, Conversation, Example, Message, Source, Tokenizer};
use oarlock::model::Decoder;
use oarlock::model::hf::HfConfig;
use oarlock::nn::names_of;
use oarlock::shard::{ParamSlice, WeightSource};
use oarlock::weights::{SafetensorsSource, Strict};
use oarlock_cli::config::accelerate::{Engine, File, keys, meaning};
use oarlock_cli::config::render::render;
use oarlock_cli::config::{Problems, Words, train_config, written};

/// No reader may need as long for the small inputs here.
const SLOW: Duration = Duration::from_secs(10);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    let path = root().join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn budget() -> Duration {
    let seconds = std::env::var("OARLOCK_FUZZ_SECONDS").ok();
    Duration::from_secs_f64(seconds.map_or(0.4, |text| text.parse().expect("a number of seconds")))
}

/// Feeds a reader for its time with what becomes of the seeds. The reader gets a folder of its own and the input.
fn fuzz(name: &str, seeds: Vec<Vec<u8>>, reader: impl Fn(&Path, &[u8])) {
    fuzz_at_least(200, name, seeds, reader);
}

fn fuzz_at_least(least: u64, name: &str, seeds: Vec<Vec<u8>>, reader: impl Fn(&Path, &[u8])) {
    let folder = tempfile::tempdir().unwrap();
    let mut mutator = Mutator::new(name, seeds);
    let (begin, mut runs) = (Instant::now(), 0_u64);
    // However slow the machine, the seeds themselves are read.
    while runs < least || begin.elapsed() < budget() {
        let input = mutator.next();
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| reader(folder.path(), &input)));
        let kept = std::env::temp_dir().join(format!("oarlock-fuzz-{name}"));
        if outcome.is_err() || started.elapsed() > SLOW {
            fs::write(&kept, &input).unwrap();
            let what = if outcome.is_err() { "a panic" } else { "too slow" };
            panic!("{name}: {what} in run {runs}; the input is in {}", kept.display());
        }
        runs += 1;
    }
    println!("{name}: {runs} inputs in {:.1} s", begin.elapsed().as_secs_f64());
}

fn train_file(folder: &Path, name: &str, text: &[u8], words: &[String]) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    let mut all = vec![path.display().to_string()];
    all.extend_from_slice(words);
    if let Ok(arguments) = written::arguments(&Words::new(&all)) {
        match train_config(&arguments, &|_| None) {
            Ok(config) => drop(config.table()),
            Err(problems) => drop((problems.to_string(), render(&problems, true, 80))),
        }
    }
}

#[test]
fn training_configurations() {
    let seeds = ["pretrain.yaml", "pretrain_fsdp.yaml", "pretrain_zero3.yaml"];
    let seeds = seeds.map(|name| read(Path::new("recipes").join(name)));
    fuzz("yaml", seeds.into(), |folder, input| train_file(folder, "train.yaml", input, &[]));
}

#[test]
fn deepspeed_configurations() {
    let seeds = ["ds_zero2.json", "ds_zero3.json", "ds_zero3_offload_nvme.json"];
    let seeds = seeds.map(|name| read(Path::new("recipes").join(name)));
    fuzz("deepspeed", seeds.into(), |folder, input| {
        let path = folder.join("ds.json");
        fs::write(&path, input).unwrap();
        let yaml =
            format!("model_name_or_path: m\ndataset: d\noutput_dir: o\ndeepspeed: {}\n", path.display());
        train_file(folder, "train.yaml", yaml.as_bytes(), &[]);
    });
}

#[test]
fn files_of_accelerate() {
    let seeds = ["single_node.yaml", "deepspeed_multi_node.yaml", "fsdp.yaml", "minimind_accelerate.yaml"];
    let seeds = seeds.map(|name| read(Path::new("crates/cli/tests/guides").join(name)));
    fuzz("accelerate", seeds.into(), |_, input| {
        match File::text("c.yaml", &String::from_utf8_lossy(input)) {
            Ok(file) => {
                let Some(place) = file.own.setting(keys::DISTRIBUTED_TYPE).location() else { return };
                for engine in [Engine::DeepSpeed(place.clone()), Engine::Fsdp(place.clone()), Engine::Plain] {
                    let mut problems = Problems::default();
                    drop(meaning::entries(&file.settings, &engine, &mut problems));
                    drop(render(&problems, true, 80));
                }
            }
            Err(problems) => drop((problems.to_string(), render(&problems, false, 40))),
        }
    });
}

#[test]
fn arguments_of_a_training() {
    let seeds: Vec<Vec<u8>> = [
        "model_name_or_path=m dataset=d output_dir=o --bf16 --learning_rate 1e-4 fsdp=full_shard",
        "--deepspeed {zero_optimization:{stage:3}} --max-steps=10 lr_scheduler_kwargs={min_lr:1e-5} a=b=c --",
        "train.yaml optim=muon optim_args=ns_steps=5,beta1=0.9 lr_scheduler_kwargs.num_cycles=2",
    ]
    .map(|line| line.as_bytes().to_vec())
    .into();
    fuzz("arguments", seeds, |_, input| {
        let text = String::from_utf8_lossy(input);
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        if let Ok(mut arguments) = written::arguments(&Words::new(&words)) {
            arguments.file = None;
            if let Err(problems) = train_config(&arguments, &|_| None) {
                drop(render(&problems, false, 40));
            }
        }
    });
}

/// A command with `--dry-run`, in a folder; it may fail, but neither panic nor hang.
fn command(folder: &Path, words: &[&str], rest: &str) {
    // No word of a command line holds a zero byte.
    let rest = rest.replace('\0', " ");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    command.args(words).arg("--dry-run").args(rest.split(' ')).current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name != "PATH") {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code().is_some_and(|code| code < 101),
        "{words:?} {rest}: {}: {message}",
        output.status
    );
}

fn fuzz_command(words: &[&str], seeds: &[&str]) {
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    fuzz_at_least(25, &words.join("-"), seeds, |folder, input| {
        command(folder, words, &String::from_utf8_lossy(input));
    });
}

#[test]
fn words_of_torchrun() {
    fuzz_command(
        &["torchrun"],
        &[
            "--standalone --nnodes=1 --nproc-per-node=8 src/train.py --stage sft --model_name_or_path m --do_train \
             --dataset d --output_dir o --bf16",
            "--nnodes 1:4 --rdzv-id=job --rdzv-backend=c10d --rdzv-endpoint=host:29400 --rdzv-conf timeout=9,a=b \
             --max-restarts 3 -r 0:1,1:2 --tee 3 --log-dir logs -m train",
            "--nnodes=4096 --nproc-per-node=8544233437337658 x.py",
            "--master_port 29500 --nproc_per_node=auto --nnodes=2 --node_rank=1 --no-python --local-ranks-filter 0,1 x",
        ],
    );
}

#[test]
fn words_of_accelerate() {
    fuzz_command(
        &["accelerate", "launch"],
        &[
            "--multi_gpu --num_processes=4 --mixed_precision=bf16 --main_process_port=29500 --deepspeed_config_file d \
             train_pretrain_accelerate.py --epochs 3 --batch_size 24 --dim 64 --n_layers 2",
            "--use_fsdp --fsdp_sharding_strategy FULL_SHARD --fsdp_offload_params true --num_machines 2 \
             --machine_rank 1 --main_process_ip 10.0.0.1 --gpu_ids 0,1 src/train.py a.yaml b=c",
            "--use_deepspeed --zero_stage 3 --offload_optimizer_device nvme --gradient_accumulation_steps 8 --cpu x.py",
        ],
    );
}

#[test]
fn words_and_hostfiles_of_deepspeed() {
    fuzz_command(
        &["deepspeed"],
        &[
            "--num_gpus 8 --num_nodes 2 --hostfile h --master_addr a --master_port=9901 src/train.py --deepspeed d.json",
            "--include worker-0@worker-1:0,2 --launcher mpich --launcher_args -x --bind_cores_to_rank p.py -a",
            "--cpu --exclude localhost:1 --module a.b --elastic_training --min_elastic_nodes 1 --no_local_rank",
        ],
    );
    let seed = b"# machines\nworker-0 slots=4\nworker-1   slots=2\n\nhost.example.org slots=16 # big\n";
    fuzz_at_least(25, "hostfile", vec![seed.to_vec()], |folder, input| {
        fs::write(folder.join("h"), input).unwrap();
        fs::write(folder.join("p.py"), "").unwrap();
        command(folder, &["deepspeed"], "--hostfile h --include worker-0:1 p.py");
        command(folder, &["deepspeed"], "--hostfile h --exclude worker-1:0 p.py");
    });
    fuzz_at_least(25, "filter", vec![b"worker-0@worker-1:0,2".to_vec()], |folder, input| {
        fs::write(folder.join("h"), "worker-0 slots=4\nworker-1 slots=4\n").unwrap();
        fs::write(folder.join("p.py"), "").unwrap();
        let filter = String::from_utf8_lossy(input).replace(' ', "");
        command(folder, &["deepspeed"], &format!("--hostfile h --include {filter} p.py"));
    });
}

#[test]
fn words_of_the_others() {
    fuzz_command(
        &["llamafactory-cli", "train"],
        &[
            "a.yaml stage=sft lora_rank=8 --bf16 quantization_bit=4",
            "model_name_or_path=m dataset=d output_dir=o",
        ],
    );
    fuzz_command(
        &["train_pretrain"],
        &[
            "--epochs 3 --batch_size 24 --learning_rate 2e-4 --dtype bfloat16 --accumulation_steps 32 --dim 1024",
            "--hidden_size 768 --num_hidden_layers 8 --use_moe 1 --from_resume 1 --tokenizer_path t",
        ],
    );
}

#[test]
fn records() {
    let seeds: Vec<(&str, &[u8])> = vec![
        ("jsonl", b"{\"text\": \"one\"}\n{\"text\": \"two \\u00e9 \\ud83d\\ude00\"}\n\n{\"text\": null}\n"),
        ("json", b"[{\"text\": \"one\"}, {\"text\": \"two\", \"n\": [1, {\"a\": 2.5e3}]}]"),
        ("csv", b"text,n\n\"a, \"\"quoted\"\" one\",1\ntwo,2\n"),
        ("txt", b"one\n\ntwo\r\nthree"),
        ("parquet", b"PAR1\x15\x04\x15\x10\x15\x14L\x15\x02\x15\x00PAR1"),
    ];
    for (extension, seed) in seeds {
        fuzz(extension, vec![seed.to_vec()], |folder, input| {
            let path = folder.join(format!("data.{extension}"));
            fs::write(&path, input).unwrap();
            if let Ok(source) = Source::resolve(&path.display().to_string(), folder, Some(50)) {
                source.texts().take(50).for_each(drop);
            }
        });
    }
}

#[test]
fn conversations() {
    let seed = br#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null,
        "tool_calls": [{"name": "f"}]}], "system": "s", "tools": "[]"}
        {"conversations": [{"role": "user"}], "chosen": {"role": "assistant"}, "rejected": {"role": "assistant"}}"#;
    let seed = String::from_utf8_lossy(seed).replace(",\n", ",");
    fuzz("conversations", vec![seed.into_bytes()], |folder, input| {
        let path = folder.join("data.jsonl");
        fs::write(&path, input).unwrap();
        if let Ok(source) = Source::resolve(&path.display().to_string(), folder, Some(50)) {
            for record in source.records(Content::Object).take(50).flatten() {
                drop(Example::read(&mut record.clone(), Content::Object));
            }
        }
    });
}

#[test]
fn descriptions_of_data_sets() {
    let seed = br#"{"demo": {"file_name": "demo.jsonl", "columns": {"prompt": "text"}, "num_samples": 3},
        "hub": {"hf_hub_url": "a/b", "subset": "x"}, "chat": {"file_name": "c.json", "formatting": "sharegpt",
        "tags": {"role_tag": "from"}}}"#;
    fuzz("dataset_info", vec![seed.to_vec()], |folder, input| {
        fs::write(folder.join("dataset_info.json"), input).unwrap();
        fs::write(folder.join("demo.jsonl"), "{\"text\": \"one\"}\n").unwrap();
        for name in ["demo", "hub", "chat", "none"] {
            if let Ok(source) = Source::resolve(name, folder, None) {
                source.texts().take(5).for_each(drop);
            }
        }
    });
}

#[test]
fn model_folders() {
    let golden = "crates/oarlock/tests/golden";
    let seeds =
        ["llama", "qwen2", "qwen3", "quantized/nf4"].map(|name| read(format!("{golden}/{name}/config.json")));
    fuzz("config.json", seeds.into(), |folder, input| {
        fs::write(folder.join("config.json"), input).unwrap();
        drop(HfConfig::read(folder));
    });
    let seed = read("recipes/minimind-small/tokenizer_config.json");
    fuzz("chat template", vec![seed], |folder, input| {
        fs::write(folder.join("tokenizer_config.json"), input).unwrap();
        if let Ok(template) = ChatTemplate::read(folder) {
            let messages = vec![Message::new("user", "hello"), Message::new("assistant", "hi")];
            let conversation = Conversation { messages, ..Conversation::default() };
            drop((template.render_prompt(&conversation), template.render(&conversation)));
        }
    });
}

#[test]
fn headers_of_weights() {
    for golden in ["train-llama", "quantized/nf4", "quantized/int8"] {
        headers_of(&root().join("crates/oarlock/tests/golden").join(golden));
    }
}

fn headers_of(golden: &Path) {
    let file = fs::read(golden.join("model.safetensors")).unwrap();
    let n_bytes = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (header, data) = file[8..].split_at(n_bytes);
    let config = HfConfig::read(golden).unwrap();
    let model = Decoder::new(config.decoder().clone(), 8).unwrap();
    let open = |folder: &Path, length: u64, header: &[u8]| {
        let bytes = [&length.to_le_bytes(), header, data].concat();
        fs::write(folder.join("model.safetensors"), bytes).unwrap();
        if let Ok(mut source) = SafetensorsSource::open(folder, &config, &model) {
            for named in names_of(&model) {
                let mut values = vec![0.0; named.param.shape().n_elems()];
                drop(source.read(&ParamSlice::of(&named, 0..values.len()), &mut values));
            }
        }
        drop(SafetensorsSource::of_module(folder, &model, Strict::No));
    };
    fuzz("weights", vec![header.to_vec()], |folder, input| {
        open(folder, input.len() as u64, input);
        // A length that is not the header's.
        open(
            folder,
            input.iter().fold(1, |length: u64, byte| length.rotate_left(7) ^ u64::from(*byte)),
            input,
        );
    });
    let index =
        br#"{"metadata": {"total_size": 9}, "weight_map": {"model.norm.weight": "model-1.safetensors"}}"#;
    fuzz("index of weights", vec![index.to_vec()], |folder, input| {
        fs::write(folder.join("model.safetensors.index.json"), input).unwrap();
        drop(SafetensorsSource::open(folder, &config, &model));
    });
}

#[test]
fn tokenizers() {
    let seed = br#"{"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
        "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]}}"#;
    let mut lone = seed.to_vec();
    let at = String::from_utf8_lossy(seed).find("\"ByteLevel\"},\n        \"model\"").unwrap();
    lone[at + 1] = 0xe9;
    fuzz("tokenizer.json", vec![seed.to_vec(), lone], |folder, input| {
        fs::write(folder.join("tokenizer.json"), input).unwrap();
        if let Ok(tokenizer) = Tokenizer::open(folder) {
            drop(tokenizer.encode("abba <s> é"));
            drop(tokenizer.decode(&[0, 1, 2, 3, 99], false));
        }
    });
}

#[test]
fn manifests() {
    let seed =
        br#"{"format": "oarlock", "version": 2, "token": "0123456789abcdef", "step": 3, "world_size": 2,
        "files": {"state-00000-of-00002.safetensors": {"bytes": 1024, "xxh3_128": "00"}},
        "parameters": [{"name": "w", "shape": [2, 3], "dtype": "F32"}]}"#;
    fuzz("manifest", vec![seed.to_vec()], |folder, input| {
        drop(Manifest::parse(input));
        let checkpoint = folder.join("checkpoint-3");
        fs::create_dir_all(&checkpoint).unwrap();
        fs::write(checkpoint.join("manifest.json"), input).unwrap();
        drop(checkpoint::list(folder));
    });
}

#[test]
fn checkpoints_of_deepspeed() {
    let golden = root().join("crates/cli/tests/golden/deepspeed/stage2-f32");
    let tag = fs::read_to_string(golden.join("latest")).unwrap();
    let from = golden.join(tag.trim());
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".pt") || name.contains("zero_pp_rank_1") {
            continue;
        }
        fuzz(&name, vec![fs::read(&path).unwrap()], |folder, input| {
            let own = folder.join("in").join(tag.trim());
            if !own.exists() {
                fs::create_dir_all(&own).unwrap();
                for entry in fs::read_dir(&from).unwrap() {
                    let path = entry.unwrap().path();
                    fs::copy(&path, own.join(path.file_name().unwrap())).unwrap();
                }
            }
            fs::write(own.join(&name), input).unwrap();
            let out = folder.join("out");
            drop(oarlock_cli::import::import_checkpoint(&folder.join("in"), &out, Some(tag.trim())));
            let _ = fs::remove_dir_all(&out);
        });
    }
}
