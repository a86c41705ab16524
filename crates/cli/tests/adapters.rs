//! Training runs of adapters and of some layers, from a configuration file to the folder that PEFT loads, and their
//! export.

use oarlock::checkpoint::Manifest;
use oarlock_tensor::cpu::difference::largest_difference;
use std::collections::BTreeSet;
use std::fs;

use crate::common::{Site, run, start, until};
use rustix::process::{Pid, Signal, kill_process};

const LORA: [&str; 4] = ["finetuning_type=lora", "lora_rank=4", "lora_dropout=0.1", "learning_rate=1e-2"];

fn adapter(site: &Site, output: &str) -> Vec<u8> {
    site.read(&format!("{output}/adapter_model.safetensors"))
}

fn names(bytes: &[u8]) -> BTreeSet<String> {
    safetensors::SafeTensors::deserialize(bytes).unwrap().names().into_iter().map(str::to_owned).collect()
}

#[test]
fn a_run_leaves_an_adapter_and_its_checkpoints_hold_nothing_else() {
    let site = Site::new();
    let words = ["save_strategy=steps", "save_steps=5", "print_param_status=true"];
    let said = site.train("out", &[&LORA[..], &words].concat());
    let is_trained =
        |trained: &str| said.stdout.matches(&format!(", device: cpu, trainable: {trained}")).count();
    assert_eq!((is_trained("true"), is_trained("false")), (28, 19 + 1), "{said:?}");
    for line in [
        "Fine-tuning method: LoRA",
        "trainable params: 4,480 || all params: 35,744 || trainable%: 12.5336",
        "name: model.layers.0.self_attn.q_proj.weight, dtype: f32, device: cpu, trainable: false",
    ] {
        assert!(said.stdout.contains(line), "{line}: {said:?}");
    }
    let written = adapter(&site, "out");
    let written = names(&written);
    assert_eq!(written.len(), 28);
    assert!(written.contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
    for name in ["adapter_config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert!(site.path("out").join(name).is_file(), "{name}");
    }
    assert!(!site.path("out/model.safetensors").exists());
    let checkpoint = site.path("out/checkpoint-5");
    assert_eq!(names(&adapter(&site, "out/checkpoint-5")), written);
    let manifest = Manifest::open(&checkpoint).unwrap();
    assert!(
        manifest.parameters.keys().all(|name| name.contains(".lora_")),
        "{:?}",
        manifest.parameters.keys()
    );
    assert_eq!((manifest.parameters.len(), manifest.frozen.len()), (28, 19 + 1));
    // The adapter is small beside its model, and so are its optimizer states; each of their parts begins a page.
    let bytes: u64 =
        fs::read_dir(checkpoint.join("state")).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 3 * (4 * 4_480 + 28 * 4096) + 10_000, "{bytes}");
}

#[test]
fn a_killed_run_goes_on_to_the_bit_and_other_ranks_and_placements_can_take_it_over() {
    let site = Site::new();
    for (method, precision) in [("use_dora=false", "bf16=false"), ("use_dora=true", "bf16=true")] {
        let words =
            [&LORA[..], &[method, precision, "max_steps=20", "save_strategy=steps", "save_steps=5"]].concat();
        let whole = format!("whole {method}");
        site.train(&whole, &words);
        let output = format!("killed {method}");
        let running = start(site.training(&output, &words));
        let ranks = running.ranks(2);
        until("the step", || (site.log(&output).len() >= 7).then_some(()));
        kill_process(Pid::from_raw(ranks[1] as i32).unwrap(), Signal::KILL).unwrap();
        assert_ne!(running.wait().code, Some(0));
        site.train(&output, &words);
        assert_eq!(site.losses(&output), site.losses(&whole));
        assert!(adapter(&site, &output) == adapter(&site, &whole), "{method}");

        let from = format!("resume_from_checkpoint={whole}/checkpoint-10");
        let zero3 = "deepspeed={zero_optimization: {stage: 3}}";
        let other = format!("zero3 {method}");
        site.train(&other, &[&words[..], &[&from, zero3, "gradient_checkpointing=true"]].concat());
        let last =
            |output: &str| site.log(output).iter().rev().find_map(|line| line["loss"].as_f64()).unwrap();
        assert!((last(&other) - last(&whole)).abs() < 1e-3, "{method}: {} {}", last(&other), last(&whole));
    }
}

#[test]
fn an_adapter_is_continued_or_merged_and_exported() {
    let site = Site::new();
    let short = [&LORA[..], &["max_steps=6", "save_strategy=no"]].concat();
    site.train("first", &short);
    let continued = site.train("second", &[&short[..], &["adapter_name_or_path=first"]].concat());
    assert!(continued.stdout.contains("trainable params: 4,480"), "{continued:?}");
    let first = |output: &str| site.log(output)[0]["loss"].as_f64().unwrap();
    let last = |output: &str| site.log(output).iter().rev().find_map(|line| line["loss"].as_f64()).unwrap();
    assert!(last("first") < first("first") && first("second") < first("first"));
    let new = ["adapter_name_or_path=first,second", "create_new_adapter=true", "lora_target=q_proj"];
    site.train("third", &[&short[..], &new].concat());
    assert_eq!(names(&adapter(&site, "third")).len(), 4);
    assert!(first("third") < first("first"));

    site.write(
        "merge.yaml",
        "model_name_or_path: model\nadapter_name_or_path: first,second,third\ntemplate: default\n\
         finetuning_type: lora\nexport_dir: merged\nexport_size: 5\nexport_device: cpu\nexport_legacy_format: false\n",
    );
    for words in [&["export", "merge.yaml"][..], &["llamafactory-cli", "export", "merge.yaml"]] {
        let said = run(site.oarlock(words));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stdout.contains("with 3 adapters merged in f32 to merged"), "{said:?}");
        assert!(said.stdout.contains("the largest difference of a logit is"), "{said:?}");
        assert!(site.path("merged/model.safetensors").is_file() && site.path("merged/Modelfile").is_file());
        fs::remove_file(site.path("merged/model.safetensors")).unwrap();
    }
    run(site.oarlock(&["export", "merge.yaml"]));
    let text = |words: &[&str]| {
        let said =
            run(site.oarlock(&[&["generate", "--prompt", "Ida", "--temperature", "0"], words].concat()));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout
    };
    let adapted = text(&["--model", "model", "--adapter", "first,second,third"]);
    assert_eq!(adapted, text(&["--model", "merged"]));
    assert_ne!(adapted, text(&["--model", "model"]));
}

/// The weights of an adapter merged into the model, in f32.
fn merged(site: &Site, adapter: &str) -> Vec<f32> {
    let words = ["export", "model_name_or_path=model", "template=default", "export_dir=merged"];
    let adapter = format!("adapter_name_or_path={adapter}");
    let said = run(site.oarlock(&[&words[..], &[&adapter, "infer_dtype=float32"]].concat()));
    assert_eq!(said.code, Some(0), "{said:?}");
    let bytes = site.model("merged");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let all: BTreeSet<&str> = file.names().into_iter().collect();
    let numbers = |name| file.tensor(name).unwrap().data().as_chunks::<4>().0;
    all.into_iter().flat_map(numbers).map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn pissa_begins_in_every_placement_alike_and_is_converted_at_the_end() {
    let site = Site::new();
    let lora = ["finetuning_type=lora", "lora_rank=4", "learning_rate=1e-2"];
    let words = [&lora[..], &["pissa_init=true", "max_steps=6"]].concat();
    let converted = [&words[..], &["pissa_convert=true", "save_strategy=steps", "save_steps=3"]].concat();
    let said = site.train("out", &converted);
    for line in ["Using PiSSA initialization with FSVD steps 16.", "Converted PiSSA adapter saved at: "] {
        assert!(said.stdout.contains(line), "{line}: {said:?}");
    }
    // The first loss is that of the model, as no adapter begins with another one.
    site.train("plain", &[&lora[..], &["max_steps=6", "save_strategy=no"]].concat());
    let first = |output: &str| site.log(output)[0]["loss"].as_f64().unwrap();
    assert!((first("out") - first("plain")).abs() < 1e-4);
    assert_ne!(site.losses("out")[2], site.losses("plain")[2]);
    for stage in 1..4 {
        let zero = format!("deepspeed={{zero_optimization: {{stage: {stage}}}}}");
        let output = format!("zero{stage}");
        site.train(&output, &[&words[..], &["save_strategy=no", &zero]].concat());
        assert!(adapter(&site, &output) == adapter(&site, "out"), "{stage}");
    }
    // A run that goes on has the same base.
    let from = ["resume_from_checkpoint=out/checkpoint-3", "save_strategy=no"];
    site.train("resumed", &[&words[..], &from].concat());
    assert!(adapter(&site, "resumed") == adapter(&site, "out"));

    let config = |folder: &str| -> serde_json::Value {
        serde_json::from_slice(&site.read(&format!("{folder}/adapter_config.json"))).unwrap()
    };
    assert_eq!(config("out")["init_lora_weights"], "pissa_niter_16");
    let own = config("out/pissa_converted");
    let expected: [serde_json::Value; 3] = [true.into(), 8.into(), 16.into()];
    assert_eq!([&own["init_lora_weights"], &own["r"], &own["lora_alpha"]], expected.each_ref());
    let (own, other) = (merged(&site, "out"), merged(&site, "out/pissa_converted"));
    let difference = largest_difference(&own, &other).unwrap();
    assert!(difference < 1e-5 && own != merged(&site, "plain"), "{difference}");
    // Its adapter alone is continued, whatever the file says of new ones.
    let more = ["adapter_name_or_path=out", "finetuning_type=lora", "max_steps=1", "learning_rate=1e-4"];
    site.train("continued", &[&more[..], &["save_strategy=no"]].concat());
    assert!(first("continued") < first("out"), "{} {}", first("continued"), first("out"));
}

#[test]
fn rotations_are_trained_in_every_placement_continued_and_merged() {
    let site = Site::new();
    let oft = ["finetuning_type=oft", "oft_block_size=8", "learning_rate=1e-2"];
    let words = [&oft[..], &["module_dropout=0.25", "max_steps=6"]].concat();
    let said = site.train("out", &[&words[..], &["save_strategy=steps", "save_steps=3"]].concat());
    // 28 elements above the diagonal of each of 4 blocks of 32 inputs, and 10 of 80 inputs.
    let trained = 28 * (2 * 6 * 4 + 2 * 10);
    for line in
        ["Fine-tuning method: OFT", &format!("trainable params: {},{:03}", trained / 1000, trained % 1000)]
    {
        assert!(said.stdout.contains(line), "{line}: {said:?}");
    }
    let key = "base_model.model.model.layers.0.self_attn.q_proj.oft_R.weight";
    assert!(names(&adapter(&site, "out")).contains(key));
    for (index, placed) in [
        "deepspeed={zero_optimization: {stage: 1}}",
        "deepspeed={zero_optimization: {stage: 3}}",
        "gradient_checkpointing=true",
        "resume_from_checkpoint=out/checkpoint-3",
    ]
    .into_iter()
    .enumerate()
    {
        let output = format!("other{index}");
        site.train(&output, &[&words[..], &["save_strategy=no", placed]].concat());
        assert!(adapter(&site, &output) == adapter(&site, "out"), "{placed}");
    }
    // A new one begins as the model alone, and bf16 and weights of 4 bits are what they are with LoRA.
    let first = |output: &str| site.log(output)[0]["loss"].as_f64().unwrap();
    let last = |output: &str| site.log(output).iter().rev().find_map(|line| line["loss"].as_f64()).unwrap();
    let plain = [&oft[..], &["max_steps=6", "save_strategy=no"]].concat();
    for (index, also) in
        [&["bf16=false"][..], &["bf16=true"], &["quantization_bit=4"]].into_iter().enumerate()
    {
        let [rotated, added] = ["oft", "lora"].map(|name| format!("{name}{index}"));
        site.train(&rotated, &[&plain[..], also].concat());
        site.train(&added, &[&LORA[..2], &["max_steps=1", "save_strategy=no"], also].concat());
        assert!((first(&rotated) - first(&added)).abs() < 1e-4, "{also:?}");
        assert!(last(&rotated) < first(&rotated), "{also:?}");
    }
    // LLaMA-Factory cannot continue or export one.
    site.train("more", &[&plain[..], &["adapter_name_or_path=out"]].concat());
    assert!(first("more") < first("out"), "{} {}", first("more"), first("out"));
    let exported = merged(&site, "out");
    assert!(exported != merged(&site, "more") && exported.iter().all(|x| x.is_finite()));
    let text = |words: &[&str]| {
        let words = [&["generate", "--prompt", "Ida", "--temperature", "0"], words].concat();
        run(site.oarlock(&words)).stdout
    };
    let beside = text(&["--model", "model", "--adapter", "more"]);
    assert_eq!(beside, text(&["--model", "merged"]));
    assert_ne!(beside, text(&["--model", "model"]));
}

#[test]
fn other_methods_and_what_they_refuse() {
    let site = Site::new();
    let short = ["max_steps=2", "save_strategy=no"];
    let frozen = site
        .train("freeze", &[&short[..], &["finetuning_type=freeze", "freeze_trainable_layers=1"]].concat());
    assert!(frozen.stdout.contains("Fine-tuning method: Freeze"), "{frozen:?}");
    let (before, after) = (site.read("model/model.safetensors"), site.model("freeze"));
    let [before, after] =
        [&before, &after].map(|bytes| safetensors::SafeTensors::deserialize(bytes).unwrap());
    for name in before.names() {
        let changed = before.tensor(name).unwrap().data() != after.tensor(name).unwrap().data();
        assert_eq!(changed, name.starts_with("model.layers.1."), "{name}");
    }
    let plus = ["finetuning_type=lora", "loraplus_lr_ratio=16", "use_rslora=true", "additional_target=norm"];
    let said = site.train("plus", &[&short[..], &plus].concat());
    assert!(said.stdout.contains("trainable params: 8,992"), "{said:?}");
    assert!(names(&adapter(&site, "plus")).contains("base_model.model.model.norm.weight"));
    for (words, error) in [
        (&["finetuning_type=lora", "lora_target=query"][..], "no linear layer query"),
        (&["finetuning_type=lora", "additional_target=embed_tokens"], "would untie them"),
        (&["finetuning_type=freeze", "freeze_trainable_modules=attn"], "Module attn is not found"),
        (&["finetuning_type=oft", "oft_target=query"], "oft_target: the model has no linear layer query"),
        (&["adapter_name_or_path=plus"], "finetuning_type lora or oft only"),
        (&["finetuning_type=lora", "adapter_name_or_path=freeze"], "holds no adapter_config.json"),
        (&["pissa_init=true"], "only valid for LoRA training"),
        (&["finetuning_type=lora", "pissa_init=true", "lora_rank=64"], "write a lora_rank of at most"),
        (
            &["finetuning_type=lora", "pissa_init=true", "quantization_bit=4"],
            "weights that are not quantized",
        ),
    ] {
        let said = run(site.training("refused", &[&short[..], words].concat()));
        assert_ne!(said.code, Some(0), "{words:?}");
        assert!(said.message().contains(error), "{error}: {said:?}");
    }
}

#[test]
fn an_adapter_beside_another_base_is_told_and_beside_another_kind_refused() {
    let site = Site::new();
    let lora = ["finetuning_type=lora", "lora_rank=4", "max_steps=2", "save_strategy=no"];
    site.train("adapter", &lora);
    let copy = |to: &str, edit: &dyn Fn(&str) -> String| {
        fs::create_dir(site.path(to)).unwrap();
        for entry in fs::read_dir(site.path("model")).unwrap().flatten() {
            fs::copy(entry.path(), site.path(to).join(entry.file_name())).unwrap();
        }
        let config = String::from_utf8(site.read(&format!("{to}/config.json"))).unwrap();
        site.write(&format!("{to}/config.json"), &edit(&config));
    };
    copy("mistral", &|config| config.replace("\"llama\"", "\"mistral\""));
    copy("moved", &str::to_owned);
    // Another model of the same shape: what a full training leaves.
    site.train("other", &["max_steps=2", "save_strategy=no"]);
    let used = |base: &str, out: &str| {
        let base = format!("model_name_or_path={base}");
        let out = format!("export_dir={out}");
        let merged =
            run(site.oarlock(&["export", &base, "adapter_name_or_path=adapter", "template=default", &out]));
        let continued = run(site
            .training(&format!("on {out}"), &[&lora[..], &[&base, "adapter_name_or_path=adapter"]].concat()));
        let flag = base.replace("model_name_or_path=", "--model=");
        let asked = run(site.oarlock(&[
            "generate",
            &flag,
            "--adapter",
            "adapter",
            "--prompt",
            "Ida",
            "--max-new-tokens",
            "2",
        ]));
        [merged, continued, asked]
    };
    for said in used("moved", "a") {
        assert!(
            said.code == Some(0) && !said.stderr.contains("warning") && !said.stdout.contains("warning"),
            "{said:?}"
        );
    }
    for said in used("other", "b") {
        let all = format!("{}{}", said.stdout, said.stderr);
        assert!(said.code == Some(0) && all.contains("whose weights are not those of other"), "{said:?}");
    }
    for said in used("mistral", "c") {
        assert!(said.code != Some(0) && said.stderr.contains("another kind of model"), "{said:?}");
    }
}

#[test]
fn an_export_is_talked_to_with_the_template_that_is_named() {
    let site = Site::new();
    let words = |template: &str, out: &str| {
        let out = format!("export_dir={out}");
        let said =
            run(site.oarlock(&["llamafactory-cli", "export", "model_name_or_path=model", template, &out]));
        assert_eq!(said.code, Some(0), "{said:?}");
    };
    let text = |file: &str| String::from_utf8(site.read(file)).unwrap();
    words("template=default", "default");
    words("template=alpaca", "alpaca");
    assert!(text("default/chat_template.jinja").contains("Human: "));
    assert!(text("default/Modelfile").contains("Human: {{ .Content }}"), "{}", text("default/Modelfile"));
    assert!(
        text("alpaca/Modelfile").contains("### Instruction:\n{{ .Content }}"),
        "{}",
        text("alpaca/Modelfile")
    );
    // And so is a model that a chat names a template for, whatever its folder has.
    let asked = |template: &str| {
        site.write(
            "chat.yaml",
            &format!("model_name_or_path: model\n{template}temperature: 0\nmax_new_tokens: 4\n"),
        );
        let mut command = site.oarlock(&["llamafactory-cli", "chat", "chat.yaml"]);
        command.stdin(fs::File::open(site.path("questions")).unwrap());
        run(command)
    };
    site.write("questions", "Ida?\nexit\n");
    let said = asked("template: alpaca\n");
    assert!(said.code == Some(0) && said.stderr.contains("--template alpaca"), "{said:?}");
    let said = asked("template: chatlm\n");
    assert!(said.code != Some(0) && said.stderr.contains("chatlm"), "{said:?}");
}
