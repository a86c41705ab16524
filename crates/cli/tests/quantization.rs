//! Adapters beside weights of 4 and 8 bits, from a configuration file to the folder that PEFT loads: every placement, a kill and
//! a resume, the memory, and the ways on from the adapter.

use std::fs;

use oarlock::checkpoint::Manifest;

use crate::common::{Site, golden, run, start, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const QLORA: [&str; 5] =
    ["finetuning_type=lora", "lora_rank=4", "lora_dropout=0.1", "learning_rate=1e-2", "quantization_bit=4"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&QLORA[..], words].concat()
}

fn tensors(file: &[u8]) -> std::collections::BTreeMap<String, Vec<u8>> {
    let file = safetensors::SafeTensors::deserialize(file).unwrap();
    file.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

fn adapter(site: &Site, output: &str) -> Vec<u8> {
    site.read(&format!("{output}/adapter_model.safetensors"))
}

fn last_loss(site: &Site, output: &str) -> f64 {
    site.log(output).iter().rev().find_map(|line| line["loss"].as_f64()).unwrap()
}

#[test]
fn every_placement_trains_to_the_same_bits() {
    let site = Site::new();
    for precision in ["bf16=false", "bf16=true"] {
        let words = with(&[precision, "max_steps=6"]);
        let first = site.train(precision, &words);
        for line in [
            "Fine-tuning method: LoRA",
            // Of the weights of 4 bits each counts as one.
            "trainable params: 4,480 || all params: 35,744 || trainable%: 12.5336",
            "have 4 bits (nf4 with double quantization)",
        ] {
            assert!(first.stdout.contains(line), "{line}: {first:?}");
        }
        assert!(last_loss(&site, precision) < site.log(precision)[0]["loss"].as_f64().unwrap());
        for placement in [
            "deepspeed={zero_optimization: {stage: 0}}",
            "deepspeed={zero_optimization: {stage: 2}}",
            "deepspeed={zero_optimization: {stage: 3}}",
            "fsdp=full_shard auto_wrap",
            "gradient_checkpointing=true",
        ] {
            let output = format!("{precision} {}", placement.len());
            site.train(&output, &[&words[..], &[placement, "overwrite_output_dir=true"]].concat());
            assert_eq!(site.losses(&output), site.losses(precision), "{placement}");
            assert!(adapter(&site, &output) == adapter(&site, precision), "{placement}");
        }
    }
    // Other formats are other weights, and so is no quantization.
    let others = [
        &with(&["quantization_type=fp4", "max_steps=6"])[..],
        &with(&["double_quantization=false", "max_steps=6"]),
        &with(&["max_steps=6"])[..4],
    ];
    let mut losses: Vec<_> = others
        .iter()
        .enumerate()
        .map(|(index, words)| {
            let output = format!("other {index}");
            site.train(&output, words);
            site.losses(&output)
        })
        .collect();
    losses.push(site.losses("bf16=false"));
    losses.iter().for_each(|one| assert_eq!(losses.iter().filter(|other| *other == one).count(), 1));
}

#[test]
fn a_killed_run_goes_on_to_the_bit_from_checkpoints_that_hold_the_adapter_alone() {
    let site = Site::new();
    let words = with(&["bf16=true", "use_dora=true", "max_steps=16", "save_strategy=steps", "save_steps=5"]);
    site.train("whole", &words);
    let manifest = Manifest::open(&site.path("whole/checkpoint-5")).unwrap();
    assert!(
        manifest.parameters.keys().all(|name| name.contains(".lora_")),
        "{:?}",
        manifest.parameters.keys()
    );
    // Embedding, norms and projections; those have fingerprints of their words.
    assert_eq!(manifest.frozen.len(), 1 + 5 + 14);
    let running = start(site.training("killed", &words));
    let ranks = running.ranks(2);
    until("the step", || (site.log("killed").len() >= 7).then_some(()));
    kill_process(Pid::from_raw(ranks[1] as i32).unwrap(), Signal::KILL).unwrap();
    assert_ne!(running.wait().code, Some(0));
    site.train("killed", &words);
    assert_eq!(site.losses("killed"), site.losses("whole"));
    assert!(adapter(&site, "killed") == adapter(&site, "whole"));

    // Another format is another base.
    let other =
        [&words[..], &["resume_from_checkpoint=whole/checkpoint-10", "quantization_type=fp4"]].concat();
    let said = run(site.training("other", &other));
    assert_ne!(said.code, Some(0));
    assert!(said.stderr.contains("was saved by a run that computes something else"), "{said:?}");
    assert!(said.stderr.contains("quantization_bit was "), "{said:?}");
}

#[test]
fn an_adapter_is_continued_evaluated_merged_and_asked() {
    let site = Site::new();
    let words = with(&["max_steps=8", "save_strategy=no"]);
    site.train("first", &words);
    let first = |output: &str| site.log(output)[0]["loss"].as_f64().unwrap();
    site.train("second", &[&words[..], &["adapter_name_or_path=first"]].concat());
    assert!(first("second") < first("first"));
    let evaluated = ["do_train=false", "eval_dataset=text.jsonl", "adapter_name_or_path=second"];
    site.train("evaluated", &[&words[..], &evaluated].concat());
    let loss = site.log("evaluated").iter().find_map(|line| line["eval_loss"].as_f64()).unwrap();
    assert!(loss < first("second"), "{loss}");

    let export = |words: &[&str]| {
        let base = ["export", "model_name_or_path=model", "adapter_name_or_path=second"];
        let said = run(site.oarlock(&[&base[..], words].concat()));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    let said = export(&["export_dir=merged"]);
    assert!(said.contains("with one adapter merged in f32 to merged"), "{said}");
    let said = export(&["export_dir=dequantized", "quantization_bit=4", "export_dequantized=true"]);
    assert!(said.contains("what their 4 bits (nf4 with double quantization) stand for"), "{said}");
    let difference: f64 = said
        .split_once("the largest difference of a logit is ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
        .unwrap();
    assert!(difference < 1e-4, "{said}");
    assert!(site.model("merged") != site.model("dequantized"));
    let text = |words: &[&str]| {
        let said =
            run(site.oarlock(&[&["generate", "--prompt", "Ida", "--temperature", "0"], words].concat()));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    let beside = ["--model", "model", "--adapter", "second", "--quantization-bit", "4"];
    assert_eq!(text(&beside), text(&["--model", "dequantized"]));
    let refused = ["export", "model_name_or_path=model", "adapter_name_or_path=second", "quantization_bit=4"];
    let said = run(site.oarlock(&[&refused[..], &["export_dir=refused"]].concat()));
    assert!(said.stderr.contains("Cannot merge adapters to a quantized model."), "{said:?}");
}

#[test]
fn eight_bits_train_in_every_placement_and_from_a_folder_as_while_they_are_read() {
    let site = Site::new();
    let words = [&QLORA[..4], &["quantization_bit=8", "max_steps=4"]].concat();
    let said = site.train("whole", &words);
    assert!(said.stdout.contains("have 8 bits (int8); embedding"), "{said:?}");
    site.train("zero3", &[&words[..], &["deepspeed={zero_optimization: {stage: 3}}"]].concat());
    let base = ["export", "model_name_or_path=model", "quantization_bit=8", "export_dir=int8"];
    let said = run(site.oarlock(&base));
    assert!(said.stdout.contains("the linear layers in 8 bits (int8) and the others"), "{said:?}");
    let said = site.train("stored", &[&words[..4], &["model_name_or_path=int8", "max_steps=4"]].concat());
    assert!(said.stdout.contains("stay as the files hold them, bitsandbytes (8 bits)"), "{said:?}");
    for output in ["zero3", "stored"] {
        assert_eq!(site.losses(output), site.losses("whole"), "{output}");
        assert!(tensors(&adapter(&site, output)) == tensors(&adapter(&site, "whole")), "{output}");
    }
    site.train("four", &with(&["max_steps=4"]));
    assert_ne!(site.losses("four"), site.losses("whole"));
    let text = |words: &[&str]| {
        let said =
            run(site.oarlock(&[&["generate", "--prompt", "Ida", "--temperature", "0"], words].concat()));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    let beside = ["--adapter", "whole"];
    let read = text(&[&["--model", "model", "--quantization-bit", "8"], &beside[..]].concat());
    assert_eq!(read, text(&[&["--model", "int8"], &beside[..]].concat()));
}

#[test]
fn a_folder_of_4_bits_trains_as_the_model_that_is_quantized_while_it_is_read() {
    let site = Site::new();
    let words = with(&["max_steps=4", "use_dora=true"]);
    site.train("while read", &words);
    for name in ["config.json", "model.safetensors"] {
        let from = golden().join("../quantized/nf4").join(name);
        fs::copy(from, site.path("model").join(name)).unwrap();
    }
    // What the settings say of the weights is another thing than the weights are.
    let settings = String::from_utf8(site.read("model/config.json")).unwrap();
    let (own, other) = ("\"bnb_4bit_quant_type\": \"nf4\"", "\"bnb_4bit_quant_type\": \"fp4\"");
    assert!(settings.contains(own));
    fs::write(site.path("model/config.json"), settings.replace(own, other)).unwrap();
    let stored = [&words[..4], &words[5..]].concat();
    for (output, more) in [
        ("stored", "bf16=false"),
        ("stored zero3", "deepspeed={zero_optimization: {stage: 3}}"),
        // It is quantized already.
        ("stored twice", "quantization_bit=4"),
    ] {
        let said = site.train(output, &[&stored[..], &[more]].concat());
        assert!(said.stdout.contains("stay as the files hold them, bitsandbytes (4 bits)"), "{said:?}");
        let error = format!("{other}, and these are of another type: ");
        assert_eq!(said.stdout.matches(&error).count(), 1, "{said:?}");
        assert_eq!(said.stdout.contains("`quantization_bit` changes nothing"), output == "stored twice");
        assert!(said.stdout.contains("all params: 36,320"), "{said:?}");
        // torch sums up the mean of the scales in another order.
        assert!((last_loss(&site, output) - last_loss(&site, "while read")).abs() < 1e-6, "{output}");
        assert_eq!(site.losses(output), site.losses("stored"), "{output}");
        assert!(adapter(&site, output) == adapter(&site, "stored"), "{output}");
    }
    let said = run(site.training("full", &["max_steps=1"]));
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("only be trained through adapters"), "{said:?}");
    // Merged into what the bits stand for, and asked beside them.
    let exported = run(site.oarlock(&[
        "export",
        "model_name_or_path=model",
        "adapter_name_or_path=stored",
        "export_dir=merged",
    ]));
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let text = |words: &[&str]| {
        let said =
            run(site.oarlock(&[&["generate", "--prompt", "Ida", "--temperature", "0"], words].concat()));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    assert_eq!(text(&["--model", "model", "--adapter", "stored"]), text(&["--model", "merged"]));
}

#[test]
#[ignore = "heavy"]
fn the_forecast_knows_the_weights_of_4_bits() {
    let site = Site::new();
    // So many parameters that megabytes show them.
    let config = fs::read_to_string(site.path("model/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["hidden_size"] = Value::from(512);
    config["intermediate_size"] = Value::from(8_000);
    site.write("model/config.json", &config.to_string());
    let megabytes = |bits: &[&str], placement: &str| {
        let words =
            ["max_steps=3", "train_from_scratch=true", "overwrite_output_dir=true", "bf16=true", placement];
        site.train("out", &[&QLORA[..4], &words, bits].concat());
        let log = String::from_utf8(site.read("out/running_log.txt")).unwrap();
        let line = log.lines().rfind(|line| line.contains("(working weights ")).unwrap().to_owned();
        let weights = line.split_once("(working weights ").unwrap().1.split(' ').next().unwrap().to_owned();
        let compared = log.lines().rfind(|line| line.contains("a rank, measured peak")).unwrap().to_owned();
        let percent =
            compared.rsplit_once('(').and_then(|(_, end)| end.split(' ').next()?.parse::<f64>().ok());
        assert!((85.0..115.0).contains(&percent.unwrap()), "{placement} {bits:?}: {compared}");
        weights.parse::<f64>().unwrap()
    };
    for (placement, ranks) in [
        ("deepspeed={zero_optimization: {stage: 0}}", 1.0),
        ("deepspeed={zero_optimization: {stage: 3}}", 2.0),
    ] {
        let (full, four) = (megabytes(&[], placement), megabytes(&["quantization_bit=4"], placement));
        // 2 layers of 3 matrices of 512 x 8000, besides those of attention; 16 bits become 4.127.
        let saved = 2.0 * 3.0 * 512.0 * 8000.0 * (2.0 - 4.127 / 8.0) / 1e6 / ranks;
        assert!((full - four - saved).abs() < 0.1 * saved + 1.0, "{placement}: {full}, {four}, {saved}");
    }
}

#[test]
fn what_cannot_be_quantized_is_refused_with_a_reason() {
    let site = Site::new();
    for (words, error) in [
        (&["quantization_bit=4"][..], "only be trained through adapters"),
        (&["quantization_bit=5", "finetuning_type=lora"], "none of what bitsandbytes takes: 4, 8"),
        (
            &["quantization_bit=4", "finetuning_type=lora", "quantization_method=hqq"],
            "`quantization_method: hqq` is not supported yet",
        ),
        (
            &["quantization_bit=4", "finetuning_type=lora", "adapter_name_or_path=a,b"],
            "a quantized model takes a single adapter",
        ),
        (
            &["quantization_bit=4", "finetuning_type=lora", "quantization_device_map=auto"],
            "does not go with training",
        ),
    ] {
        let said = run(site.training("refused", words));
        assert_ne!(said.code, Some(0), "{words:?}");
        assert!(said.message().contains(error), "{error}: {said:?}");
    }
}
