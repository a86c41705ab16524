//! Runs and questions to a model that is a GGUF file, and export of what came of them.

use std::fs;

use crate::common::{Site, run};

/// The model of a site as a file with the same bits.
fn as_file(site: &Site) -> String {
    let said = run(site.oarlock(&["export", "model_name_or_path=model", "export_dir=copy", "gguf=F32"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    "copy/copy-F32.gguf".to_owned()
}

#[test]
fn a_file_trains_to_the_same_bits_as_its_folder() {
    let site = Site::new();
    let file = format!("model_name_or_path={}", as_file(&site));
    for (name, words) in
        [("full", vec![]), ("bf16", vec!["bf16=true"]), ("lora", vec!["finetuning_type=lora"])]
    {
        let words = [&["max_steps=4"], &words[..]].concat();
        let (of_folder, of_file) = (format!("folder-{name}"), format!("file-{name}"));
        site.train(&of_folder, &words);
        site.train(&of_file, &[&words[..], &[&file]].concat());
        assert_eq!(site.losses(&of_folder), site.losses(&of_file), "{name}");
        assert_eq!(site.losses(&of_file).len(), 4, "{name}");
        let weights = if name == "lora" { "adapter_model.safetensors" } else { "model.safetensors" };
        let read = |output: &str| site.read(&format!("{output}/{weights}"));
        assert!(read(&of_folder) == read(&of_file), "{name}");
    }
    // What was saved stands by itself, and so does a checkpoint.
    let words = [&file[..], "max_steps=4", "save_strategy=steps", "save_steps=2"];
    site.train("resumed", &words);
    site.train(
        "resumed",
        &[&words[..3], &["save_steps=2", "resume_from_checkpoint=resumed/checkpoint-2"]].concat(),
    );
    assert!(site.model("resumed") == site.model("file-full"));
    let said =
        run(site.oarlock(&["generate", "--model", "file-full", "--prompt", "the", "--temperature", "0"]));
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_file_answers_as_its_folder_and_is_exported_again() {
    let site = Site::new();
    let file = as_file(&site);
    let ask = |model: &str| {
        let words =
            ["generate", "--model", model, "--prompt", "the", "--max-new-tokens", "8", "--temperature", "0"];
        let said = run(site.oarlock(&words));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    assert_eq!(ask("model"), ask(&file));
    let export = |words: &[&str]| run(site.oarlock(&[&["export"], words].concat()));
    let said = export(&[&format!("model_name_or_path={file}"), "export_dir=again", "gguf=q8_0"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(site.model("again") == site.model("copy"));
    assert!(said.stdout.contains("again/again-Q8_0.gguf"), "{said:?}");
    // Nothing is merged into blocks, but into what they stand for where that is asked for.
    let small = "model_name_or_path=again/again-Q8_0.gguf";
    site.train("lora", &[small, "finetuning_type=lora", "max_steps=2"]);
    let merge = [small, "adapter_name_or_path=lora", "export_dir=merged"];
    let said = export(&merge);
    assert!(said.code == Some(1) && said.stderr.contains("nothing can be merged into blocks"), "{said:?}");
    assert!(!site.path("merged").exists());
    let said = export(&[&merge[..], &["gguf_adapter=f16"]].concat());
    assert!(said.code == Some(0) && site.path("merged/merged-F16-LoRA.gguf").exists(), "{said:?}");
    let said = export(&[&merge[..], &["export_dequantized=true"]].concat());
    assert!(
        said.stdout.contains("what the blocks of the file stand for, with one adapter merged"),
        "{said:?}"
    );
    // The adapter goes into plain numbers unasked, and there is nothing to dequantize.
    let plain = [&format!("model_name_or_path={file}"), "adapter_name_or_path=lora", "export_dir=plain"];
    let said = export(&[&plain[..], &["export_dequantized=true"]].concat());
    assert!(said.stderr.contains("is no GGUF file with quantized weights"), "{said:?}");
    assert_eq!(export(&plain).code, Some(0));
}

/// A quantized file, and the words of a run that trains an adapter beside it.
fn with_blocks(site: &Site, mix: &str) -> Vec<String> {
    let said = run(site.oarlock(&[
        "export",
        "model_name_or_path=model",
        "export_dir=small",
        &format!("gguf={mix}"),
        "overwrite_output_dir=true",
    ]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let file = format!("model_name_or_path=small/small-{}.gguf", mix.to_uppercase());
    [&file, "finetuning_type=lora", "lora_rank=4", "lora_dropout=0.1", "learning_rate=1e-2"]
        .map(str::to_owned)
        .into()
}

const KEPT: &str = "the weights of the linear layers stay in the blocks of the file (";

#[test]
fn an_adapter_beside_blocks_is_trained_to_the_bits_of_one_beside_what_they_stand_for() {
    let site = Site::new();
    for (mix, more) in [("q4_0", "use_dora=false"), ("q8_0", "use_dora=true")] {
        let words = with_blocks(&site, mix);
        let words: Vec<&str> = words.iter().map(String::as_str).chain([more]).collect();
        for precision in ["bf16=false", "bf16=true"] {
            let train = |output: &str, more: &[&str]| {
                let evaluated = ["eval_dataset=text.jsonl", "eval_strategy=steps", "eval_steps=3"];
                let steps = ["max_steps=6", precision, "overwrite_output_dir=true"];
                site.train(output, &[&words[..], &steps, &evaluated, more].concat())
            };
            let said = train("dequantized", &["gguf_weights=dequantized"]);
            assert!(!said.stdout.contains(KEPT), "{said:?}");
            let evals = |output: &str| -> Vec<_> {
                site.log(output).iter().filter_map(|line| line["eval_loss"].as_f64()).collect()
            };
            let expected = (site.losses("dequantized"), evals("dequantized"));
            let adapter = |output: &str| tensors(&site.read(&format!("{output}/adapter_model.safetensors")));
            assert!(expected.0.len() == 6 && expected.1.len() == 2);
            for ways in [
                &[][..],
                &["gguf_weights=blocks"],
                &["deepspeed={zero_optimization: {stage: 2}}"],
                &["deepspeed={zero_optimization: {stage: 3}}"],
                &["fsdp=full_shard auto_wrap"],
                &["gradient_checkpointing=true"],
            ] {
                let said = train("blocks", ways);
                assert!(said.stdout.contains(KEPT), "{said:?}");
                assert_eq!((site.losses("blocks"), evals("blocks")), expected, "{mix} {precision} {ways:?}");
                assert!(adapter("blocks") == adapter("dequantized"), "{mix} {precision} {ways:?}");
            }
            // One rank has other rows in a step.
            train("alone", &["num_processes=1", "gguf_weights=dequantized"]);
            train("blocks", &["num_processes=1"]);
            assert_eq!(site.losses("blocks"), site.losses("alone"), "{mix} {precision}");
            assert!(adapter("blocks") == adapter("alone") && adapter("blocks") != adapter("dequantized"));
        }
    }
}

fn tensors(file: &[u8]) -> std::collections::BTreeMap<String, Vec<u8>> {
    let file = safetensors::SafeTensors::deserialize(file).unwrap();
    file.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

#[test]
fn a_run_beside_blocks_goes_on_is_evaluated_and_says_what_it_cannot() {
    let site = Site::new();
    let words = with_blocks(&site, "q8_0");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let saving = [&words[..], &["max_steps=6", "save_strategy=steps", "save_steps=3"]].concat();
    site.train("whole", &saving);
    let again = [&saving[..], &["resume_from_checkpoint=whole/checkpoint-3"]].concat();
    site.train("again", &again);
    let adapter = |output: &str| tensors(&site.read(&format!("{output}/adapter_model.safetensors")));
    assert!(adapter("again") == adapter("whole"));
    // The checkpoint knows its base by the words of the blocks.
    let other = run(site.training("other", &[&again[..], &["gguf_weights=dequantized"]].concat()));
    assert!(
        other.message().contains("`quantization_bit` and `gguf_weights` as that run had them"),
        "{other:?}"
    );
    let evaluated = ["do_train=false", "eval_dataset=text.jsonl", "adapter_name_or_path=whole"];
    let said = site.train("evaluated", &[&words[..], &evaluated].concat());
    assert!(said.stdout.contains(KEPT), "{said:?}");
    for (more, reason) in [
        (&["pissa_init=true", "gguf_weights=blocks"][..], "PiSSA begins with singular vectors"),
        (&["quantization_bit=4", "gguf_weights=blocks"], "`quantization_bit` quantizes the weights anew"),
        (&["finetuning_type=full", "gguf_weights=blocks"], "can only be trained through adapters"),
        (&["model_name_or_path=model", "gguf_weights=blocks"], "the model is no GGUF file"),
    ] {
        // A key stands once.
        let key = |word: &str| word.split('=').next().map(str::to_owned);
        let kept: Vec<&str> = words.iter().copied().filter(|word| key(word) != key(more[0])).collect();
        let said = run(site.training("refused", &[&kept[..], more].concat()));
        assert!(said.code == Some(2) && said.message().contains(reason), "{said:?}");
        // Of itself a run dequantizes then, and says why.
        let auto = [&kept[..], &more[..1], &["max_steps=1", "overwrite_output_dir=true"]].concat();
        let said = site.train("auto", &auto);
        assert!(!said.stdout.contains(KEPT), "{said:?}");
    }
}

#[test]
fn broken_files_are_named_with_the_reason() {
    let site = Site::new();
    let file = as_file(&site);
    let whole = site.read(&file);
    let train = |name: &str| {
        let said = run(site.training("out", &[&format!("model_name_or_path={name}")]));
        assert_ne!(said.code, Some(0), "{name}: {said:?}");
        assert!(!site.path("out").join("model.safetensors").exists());
        said.message()
    };
    fs::write(site.path("cut.gguf"), &whole[..whole.len() - 100]).unwrap();
    let message = train("cut.gguf");
    assert!(message.contains("cut.gguf") && message.contains("fetch the file again"), "{message}");
    fs::write(site.path("empty.gguf"), b"").unwrap();
    assert!(train("empty.gguf").contains("no model folder `empty.gguf`"));
    // A weight that is not a number.
    let mut bad = whole.clone();
    let end = bad.len();
    bad[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(site.path("nan.gguf"), &bad).unwrap();
    let message = train("nan.gguf");
    assert!(message.contains("not finite") || message.contains("NaN"), "{message}");
}

#[test]
fn an_adapter_alone_is_a_file_of_its_own() {
    let site = Site::new();
    site.train("lora", &["finetuning_type=lora", "max_steps=2"]);
    let words = [
        "export",
        "model_name_or_path=model",
        "adapter_name_or_path=lora",
        "export_dir=alone",
        "gguf_adapter=f16",
    ];
    let said = run(site.oarlock(&words));
    assert!(said.code == Some(0) && said.stdout.contains("alone/alone-F16-LoRA.gguf"), "{said:?}");
    assert!(!site.path("alone/model.safetensors").exists());
    assert!(site.read("alone/alone-F16-LoRA.gguf").starts_with(b"GGUF"));
    // It is an adapter, and no model.
    let said = run(site.training("out", &["model_name_or_path=alone/alone-F16-LoRA.gguf"]));
    assert!(said.code != Some(0) && said.message().contains("the file is of the type adapter"), "{said:?}");
}

#[test]
fn blocks_follow_a_matrix_that_is_collected_or_read() {
    let site = Site::new();
    site.write("questions.txt", &"the king and the queen\n".repeat(30));
    let export = |words: &[&str]| {
        let words = [&["export", "model_name_or_path=model", "gguf=q4_0"], words].concat();
        let said = run(site.oarlock(&words));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    let of_data = ["export_quantization_dataset=questions.txt", "export_quantization_maxlen=32"];
    let said = export(&[&["export_dir=plain"][..], &[]].concat());
    assert!(!said.contains("imatrix"), "{said}");
    let said = export(&[&["export_dir=found", "export_quantization_nsamples=4"][..], &of_data].concat());
    assert!(
        said.contains("wrote found/imatrix.gguf: what ") && said.contains(" in 4 rows of up to 32 tokens"),
        "{said}"
    );
    export(&["export_dir=read", "imatrix=found/imatrix.gguf"]);
    let file = |name: &str| site.read(&format!("{name}/{name}-Q4_0.gguf"));
    // The keys name the folder, so only what follows them is the same.
    let tail = |name: &str| file(name)[file(name).len() - 4096..].to_vec();
    assert!(tail("found") == tail("read") && tail("found") != tail("plain"));
    site.write("bad.dat", "no matrix");
    let said = run(site.oarlock(&[
        "export",
        "model_name_or_path=model",
        "export_dir=bad",
        "gguf=q4_0",
        "imatrix=bad.dat",
    ]));
    assert!(said.code != Some(0) && said.message().contains("bad.dat"), "{said:?}");
    assert!(!site.path("bad").exists());
}

/// Programs under the names of Python and llama.cpp, which answer as they like.
#[test]
fn llama_cpp_is_asked_where_it_is_there() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new();
    fs::create_dir(site.path("bin")).unwrap();
    let program = |name: &str, script: &str| {
        let path = site.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let export = || {
        let words =
            ["export", "model_name_or_path=model", "export_dir=out", "gguf=f32", "overwrite_output_dir=true"];
        let mut command = site.oarlock(&words);
        command.env("PATH", site.path("bin"));
        run(command)
    };
    let said = export();
    assert!(
        said.code == Some(0) && said.stderr.contains("note: llama.cpp was not asked about the file"),
        "{said:?}"
    );
    // A package that makes other tokens, and one that fails with escapes for the terminal.
    let finds = "case \"$2\" in *find_spec*) exit 0;; esac";
    program(
        "python3",
        &format!("{finds}\necho '{{\"around\": [], \"ids\": [[1]], \"logits\": [], \"version\": \"1\"}}'"),
    );
    let said = export();
    assert!(said.code != Some(0) && said.message().contains("it makes other tokens of"), "{said:?}");
    program("python3", &format!("{finds}\nprintf 'no \\033[31mfile' >&2; exit 3"));
    let said = export();
    assert!(said.code != Some(0) && said.message().contains("no \\u{1b}[31mfile"), "{said:?}");
    // Python without the package, and a program that writes what no model would.
    program("python3", "exit 1");
    program("llama-cli", "[ \"$1\" = --version ] || echo zzz");
    let said = export();
    let is_clear = said.message().contains("it writes \"zzz\"") && said.code != Some(0);
    assert!(is_clear || said.stdout.contains("llama-cli was not asked"), "{said:?}");
}
