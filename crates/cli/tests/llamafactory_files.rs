//! Files with the keys of LLaMA-Factory's example files, with other models, data, lengths and intervals of logs:
//! each trains, merges, answers or is refused as docs/llamafactory.md says.

use std::fs;
use std::io::Write;

use serde_json::{Value, json};

use crate::common::{CommandOutput, Site, run};

/// What nearly all of the files have.
const COMMON: &str = "\
model_name_or_path: model
trust_remote_code: true
do_train: true
template: default
cutoff_len: 256
max_samples: 1000
preprocessing_num_workers: 16
dataloader_num_workers: 4
logging_steps: 1
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
ddp_timeout: 180000000
resume_from_checkpoint: null
";

const SFT: &str = "stage: sft\ndataset: identity,alpaca_en_demo\n";
const LORA: &str = "finetuning_type: lora\nlora_rank: 8\nlora_target: all\n";
const OFT: &str = "finetuning_type: oft\noft_block_size: 32\noft_target: all\n";
const FULL: &str = "finetuning_type: full\n";
const BF16: &str = "bf16: true\n";

fn site() -> Site {
    let site = Site::new();
    let mut config: Value = serde_json::from_slice(&site.read("model/config.json")).unwrap();
    config["max_position_embeddings"] = 2048.into();
    site.write("model/config.json", &config.to_string());
    fs::create_dir_all(site.path("data")).unwrap();
    let said = |i: usize| {
        format!("Boat {i} lies at the {} bank.", if i.is_multiple_of(2) { "left" } else { "right" })
    };
    let rows = |row: &dyn Fn(usize) -> Value| Value::Array((0..8).map(row).collect()).to_string();
    let alpaca = |i| json!({"instruction": "Where is it?", "input": format!("Boat {i}"), "output": said(i)});
    let asked = |i: usize| json!([{"from": "human", "value": format!("Where is boat {i}?")}]);
    let gpt = |text: String| json!({"from": "gpt", "value": text});
    let pair =
        |i| json!({"conversations": asked(i), "chosen": gpt(said(i)), "rejected": gpt("Who knows?".into())});
    let judged = |i: usize| {
        let answer = json!({"content": said(i), "role": "assistant"});
        json!({"messages": [{"content": "Where is it?", "role": "user"}, answer], "label": i.is_multiple_of(2)})
    };
    for (name, text) in [
        ("identity", rows(&alpaca)),
        ("alpaca_en_demo", rows(&alpaca)),
        ("dpo_en_demo", rows(&pair)),
        ("kto_en_demo", rows(&judged)),
    ] {
        site.write(&format!("data/{name}.json"), &text);
    }
    let texts: String = (0..8).map(|i| format!("{}\n", json!({"text": said(i).repeat(10)}))).collect();
    site.write("data/c4_demo.jsonl", &texts);
    let info = json!({
        "identity": {"file_name": "identity.json"},
        "alpaca_en_demo": {"file_name": "alpaca_en_demo.json"},
        "dpo_en_demo": {
            "file_name": "dpo_en_demo.json", "ranking": true, "formatting": "sharegpt",
            "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"},
        },
        "kto_en_demo": {
            "file_name": "kto_en_demo.json", "formatting": "sharegpt",
            "columns": {"messages": "messages", "kto_tag": "label"},
            "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"},
        },
        "c4_demo": {"file_name": "c4_demo.jsonl", "columns": {"prompt": "text"}},
    });
    site.write("data/dataset_info.json", &info.to_string());
    fs::create_dir_all(site.path("examples/deepspeed")).unwrap();
    site.write("examples/deepspeed/ds_z3_config.json", include_str!("guides/ds_z3.json"));
    site
}

fn train(site: &Site, output: &str, parts: &[&str]) -> CommandOutput {
    site.write("file.yaml", &format!("{COMMON}{}output_dir: {output}\n", parts.concat()));
    let mut command = site.oarlock(&["llamafactory-cli", "train", "file.yaml"]);
    command.env("NPROC_PER_NODE", "2").env("FORCE_TORCHRUN", "1");
    run(command)
}

#[test]
#[ignore = "heavy"]
fn what_is_said_to_run_runs() {
    let site = site();
    let deepspeed = "deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json]\n";
    let preference =
        "dataset: dpo_en_demo\npref_beta: 0.1\npref_loss: sigmoid  # choices: [sigmoid (dpo), orpo, simpo]\n";
    for (output, parts) in [
        ("lora/pretrain", &["stage: pt\ndataset: c4_demo\n", LORA, BF16][..]),
        ("lora/sft", &[SFT, LORA, BF16]),
        ("lora/sft_ds3", &[SFT, LORA, deepspeed, BF16]),
        ("lora/dpo", &["stage: dpo\n", preference, LORA, BF16]),
        ("lora/kto", &["stage: kto\ndataset: kto_en_demo\npref_beta: 0.1\n", LORA, BF16]),
        ("lora/reward", &["stage: rm\ndataset: dpo_en_demo\n", LORA, BF16]),
        ("lora/preprocessed", &[SFT, LORA, "tokenized_path: saves/dataset/sft\n"]),
        ("full/sft", &[SFT, FULL, deepspeed, BF16]),
        (
            "qlora/otfq",
            &[
                SFT,
                LORA,
                "quantization_bit: 4  # choices: [8 (bnb/hqq/eetq)]\nquantization_method: bnb\n",
                BF16,
            ],
        ),
        ("qlora/plain", &[SFT, LORA, "quantization_bit: 4\ndouble_quantization: false\n", BF16]),
        ("extras/oft", &[SFT, OFT, BF16]),
        (
            "extras/qoft",
            &[SFT, OFT, "quantization_bit: 4\nquantization_method: bnb\ndouble_quantization: false\n", BF16],
        ),
        ("extras/dft", &[SFT, FULL, "use_dft_loss: true\n", BF16]),
        ("extras/eaft", &[SFT, FULL, "use_eaft_loss: true\n", BF16]),
        ("extras/muon", &[SFT, FULL, "use_muon: true\n", BF16]),
        ("extras/loraplus", &[SFT, LORA, "loraplus_lr_ratio: 16.0\n", BF16]),
        ("extras/pissa", &[SFT, LORA, "pissa_init: true\npissa_iter: 16\npissa_convert: true\n", BF16]),
        (
            "extras/llama_pro",
            &[
                SFT,
                "finetuning_type: freeze\nfreeze_trainable_layers: 1\nfreeze_trainable_modules: all\nuse_llama_pro: true\n",
                BF16,
            ],
        ),
        (
            "extras/galore",
            &[SFT, FULL, "use_galore: true\ngalore_target: all\ngalore_rank: 4\ngalore_scale: 2.0\n", BF16],
        ),
        (
            "extras/apollo",
            &[
                SFT,
                FULL,
                "use_apollo: true\napollo_target: all\napollo_rank: 4\napollo_scale: 32.0\napollo_scale_type: channel\n",
            ],
        ),
    ] {
        let said = train(&site, output, parts);
        assert_eq!(said.code, Some(0), "{output}: {said:?}");
        let is_adapter = parts.contains(&LORA) || parts.contains(&OFT);
        let weights = if is_adapter { "adapter_model.safetensors" } else { "model.safetensors" };
        for file in [weights, "training_loss.png", "trainer_log.jsonl"] {
            assert!(site.path(output).join(file).is_file(), "{output} has no {file}: {said:?}");
        }
    }
    assert!(site.path("extras/pissa/pissa_converted/adapter_model.safetensors").is_file());

    // The files of extras/nlg_eval, merge_lora and inference, on what was trained.
    let beside = "model_name_or_path: model\nadapter_name_or_path: lora/sft\ntemplate: default\ntrust_remote_code: true\n";
    site.write(
        "predict.yaml",
        &format!(
            "{beside}stage: sft\ndo_predict: true\nfinetuning_type: lora\neval_dataset: identity,alpaca_en_demo\ncutoff_len: 256\n\
             max_samples: 2\noverwrite_cache: true\npreprocessing_num_workers: 16\ndataloader_num_workers: 4\n\
             output_dir: predict\noverwrite_output_dir: true\nreport_to: none\nper_device_eval_batch_size: 1\n\
             predict_with_generate: true\nddp_timeout: 180000000\nmax_new_tokens: 4\n"
        ),
    );
    let said = run(site.oarlock(&["llamafactory-cli", "train", "predict.yaml"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(site.path("predict/generated_predictions.jsonl").is_file());
    // Nothing is trained, so nothing is kept for that, and the data sets are named once.
    assert!(said.stdout.contains("; nothing is trained"), "{said:?}");
    assert!(!said.stdout.contains("gradients") && !said.stdout.contains("trainable"), "{said:?}");
    assert_eq!(said.stdout.matches("identity, alpaca_en_demo: ").count(), 1, "{said:?}");
    let export = "export_dir: merged\nexport_size: 5\nexport_device: cpu  # choices: [cpu, auto]\nexport_legacy_format: false\n";
    site.write("merge.yaml", &format!("{beside}{export}"));
    let said = run(site.oarlock(&["llamafactory-cli", "export", "merge.yaml"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let infer = "infer_backend: huggingface  # choices: [huggingface, vllm, sglang, ktransformers]\n";
    site.write("chat.yaml", &format!("{beside}{infer}max_new_tokens: 4\n"));
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(b"Where is boat 1?\nexit\n").unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    let mut command = site.oarlock(&["llamafactory-cli", "chat", "chat.yaml"]);
    command.stdin(input);
    let said = run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn what_is_said_to_be_refused_is_refused_by_its_name() {
    let site = site();
    for (parts, message) in [
        (&[SFT, FULL, "use_adam_mini: true\n"][..], "`use_adam_mini: true`"),
        (&[SFT, FULL, "use_asft_loss: true\nasft_alpha: 0.1\n"], "`use_asft_loss: true`"),
        (&[SFT, FULL, "use_badam: true\nbadam_mode: layer\n"], "`use_badam: true`"),
        (&[SFT, FULL, "fp8: true\nfp8_backend: torchao\n"], "`fp8: true`"),
        (&[SFT, FULL, "mixture_of_depths: convert\n"], "`mixture_of_depths: convert`"),
        (&[SFT, FULL, "use_galore: true\ngalore_layerwise: true\n"], "galore_layerwise"),
        (&[SFT, FULL, "use_apollo: true\napollo_layerwise: true\npure_bf16: true\n"], "apollo_layerwise"),
    ] {
        let said = train(&site, "refused", parts);
        assert_eq!(said.code, Some(2), "{message}: {said:?}");
        assert!(said.stderr.contains(message) && said.stderr.contains("file.yaml:"), "{message}: {said:?}");
    }
    assert!(!site.path("refused").exists());
}
