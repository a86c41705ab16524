//! Training runs of preferences, paired and unpaired, and rewards, from a configuration file to their logs, checkpoints
//! and files.

use std::fs;

use oarlock::checkpoint::Manifest;

use crate::common::{CommandOutput, Site, golden, run, start, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A site with pairs and unpaired preferences.
pub fn site() -> Site {
    let site = Site::new();
    for name in ["pairs.jsonl", "judged.jsonl", "dataset_info.json"] {
        fs::copy(golden().with_file_name("preference").join(name), site.path(name)).unwrap();
    }
    site
}

const DATA: [&str; 6] = [
    "dataset_dir=.",
    "template=default",
    "cutoff_len=56",
    "per_device_train_batch_size=3",
    "logging_steps=1",
    "learning_rate=1e-3",
];

const DPO: [&str; 2] = ["stage=dpo", "dataset=pairs"];

fn words<'w>(parts: &[&[&'w str]]) -> Vec<&'w str> {
    [&DATA[..], &parts.concat()].concat()
}

fn first(site: &Site, output: &str, key: &str) -> f64 {
    site.log(output)[0][key]
        .as_f64()
        .unwrap_or_else(|| panic!("{output}: no {key}: {:?}", site.log(output)[0]))
}

#[test]
fn a_killed_run_goes_on_to_the_bit_beside_the_same_reference() {
    let site = site();
    let bco = "pref_bco_weight=0.5";
    let first_loss = std::f64::consts::LN_2 * 2.0 / 1.5;
    for (method, stage, words_of_method) in [
        ("full", 3, &["finetuning_type=full"][..]),
        ("lora", 2, &["finetuning_type=lora"]),
        ("oft", 3, &["finetuning_type=oft", "oft_block_size=8"]),
        ("qlora", 3, &["finetuning_type=lora", "quantization_bit=4", "bf16=true"]),
    ] {
        let zero = format!("deepspeed={{zero_optimization: {{stage: {stage}}}}}");
        let run_of = words(&[
            &DPO,
            &[bco, &zero, "max_steps=14", "save_strategy=steps", "save_steps=4"],
            words_of_method,
        ]);
        let whole = format!("whole {method}");
        let said = site.train(&whole, &run_of);
        assert!(!said.stdout.contains("warning: the loss"), "{said:?}");
        assert!((first(&site, &whole, "loss") - first_loss).abs() < 1e-5, "{}", first(&site, &whole, "loss"));
        // The reference is in no checkpoint, but for its fingerprints.
        let manifest = Manifest::open(&site.path(&whole).join("checkpoint-4")).unwrap();
        assert!(manifest.parameters.keys().all(|name| !name.contains("model_1/")), "{method}");
        assert!(!manifest.frozen.is_empty(), "{method}");
        let output = format!("killed {method}");
        let running = start(site.training(&output, &run_of));
        let ranks = running.ranks(2);
        until("the step", || (site.log(&output).len() >= 6).then_some(()));
        kill_process(Pid::from_raw(ranks[1] as i32).unwrap(), Signal::KILL).unwrap();
        assert_ne!(running.wait().code, Some(0));
        site.train(&output, &run_of);
        assert_eq!(site.losses(&output), site.losses(&whole), "{method}");
    }
}

#[test]
fn a_run_tells_its_metrics_and_a_reference_that_is_another_model() {
    let site = site();
    let more = ["val_size=12", "eval_strategy=steps", "eval_steps=3", "max_steps=6", "plot_loss=true"];
    let said = site.train("dpo", &words(&[&DPO, &more]));
    assert!(
        said.stdout.contains("60 rows: 60 examples of") && said.stdout.contains("memory: predicted"),
        "{said:?}"
    );
    let log = site.log("dpo");
    for key in [
        "rewards/chosen",
        "rewards/margins",
        "rewards/accuracies",
        "logps/rejected",
        "logits/chosen",
        "accuracy",
    ] {
        assert!(log[1][key].is_number(), "{key}: {:?}", log[1]);
    }
    let results: Value = serde_json::from_slice(&site.read("dpo/eval_results.json")).unwrap();
    assert!(results["eval_rewards/accuracies"].is_number() && results["perplexity"].is_null(), "{results}");
    assert!(site.path("dpo/training_rewards_accuracies.png").is_file());

    let short = ["max_steps=2"];
    // An adapter that is continued is compared with itself as it was.
    for (kind, dropout) in [("lora", "lora_dropout=0.3"), ("oft", "module_dropout=0.3")] {
        let method = format!("finetuning_type={kind}");
        site.train(kind, &words(&[&DPO, &short, &[&method]]));
        let (output, from) = (format!("continued {kind}"), format!("adapter_name_or_path={kind}"));
        site.train(&output, &words(&[&DPO, &short, &[&method, &from, dropout]]));
        assert!((first(&site, &output, "loss") - std::f64::consts::LN_2).abs() < 1e-6, "{kind}");
    }
    // Beside layers that stay and modules that are trained as a whole, the reference is a second model; a checkpoint has
    // nothing of what stays.
    for (output, method) in [
        ("freeze", ["finetuning_type=freeze", "freeze_trainable_layers=1"]),
        ("whole modules", ["finetuning_type=lora", "additional_target=norm"]),
    ] {
        let run_of = words(&[&DPO, &method, &["max_steps=4", "save_strategy=steps", "save_steps=2"]]);
        site.train(output, &run_of);
        assert!((first(&site, output, "loss") - std::f64::consts::LN_2).abs() < 1e-6, "{output}");
        let resumed = format!("resume_from_checkpoint={output}/checkpoint-2");
        site.train(&format!("{output} resumed"), &[&run_of[..], &[&resumed]].concat());
        assert_eq!(site.losses(&format!("{output} resumed")).last(), site.losses(output).last(), "{output}");
    }
    // The model of another run is another reference: the loss begins elsewhere, which nobody expects to be ln 2.
    let other = site.train("other", &words(&[&DPO, &short, &["ref_model=dpo"]]));
    assert!((first(&site, "other", "loss") - std::f64::consts::LN_2).abs() > 1e-3, "{other:?}");
    // Its weights in 8 bits are nearly the same, whoever quantizes them and however it is held.
    let export = ["export", "model_name_or_path=dpo", "quantization_bit=8", "export_dir=int8"];
    assert_eq!(run(site.oarlock(&export)).code, Some(0));
    let eight = ["ref_model=dpo", "ref_model_quantization_bit=8"];
    for (output, more) in [
        ("eight", &eight[..]),
        ("eight zero3", &[eight[0], eight[1], "deepspeed={zero_optimization: {stage: 3}}"]),
        ("eight stored", &["ref_model=int8"]),
    ] {
        site.train(output, &words(&[&DPO, &short, more]));
        assert_eq!(site.losses(output), site.losses("eight"), "{output}");
    }
    let away = (first(&site, "eight", "loss") - first(&site, "other", "loss")).abs();
    assert!(away > 0.0 && away < 1e-2, "{away}");
    for (loss, expected) in [("hinge", Some(1.0)), ("ipo", Some(25.0)), ("orpo", None), ("simpo", None)] {
        let loss_word = format!("pref_loss={loss}");
        site.train(loss, &words(&[&DPO, &short, &[&loss_word]]));
        if let Some(expected) = expected {
            assert!((first(&site, loss, "loss") - expected).abs() < 1e-4, "{loss}");
        }
    }
    assert!(site.log("orpo")[0]["odds_ratio_loss"].is_number());
}

#[test]
fn unpaired_preferences_and_rewards_leave_their_files() {
    let site = site();
    let short = ["max_steps=4", "save_strategy=steps", "save_steps=2"];
    let said = site.train("kto", &words(&[&["stage=kto", "dataset=judged"], &short]));
    assert!(said.stdout.contains("answers are wanted"), "{said:?}");
    let log = site.log("kto");
    assert!((first(&site, "kto", "loss") - 0.5).abs() < 1e-6 && log[3]["kl"].is_number(), "{log:?}");
    assert!(
        site.log("kto").iter().all(|line| line["rewards/margins"].is_number() || line.get("loss").is_none())
    );

    for method in ["full", "lora"] {
        let kind = format!("finetuning_type={method}");
        let output = format!("rm {method}");
        let run_of = words(&[&["stage=rm", "dataset=pairs", "val_size=6"], &short, &[&kind]]);
        site.train(&output, &run_of);
        let head = site.read(&format!("{output}/value_head.safetensors"));
        let head = safetensors::SafeTensors::deserialize(&head).unwrap();
        let mut names = head.names();
        names.sort_unstable();
        assert_eq!(names, ["v_head.summary.bias", "v_head.summary.weight"]);
        assert_eq!(head.tensor("v_head.summary.weight").unwrap().shape(), [1, 32]);
        let weights = if method == "full" { "model.safetensors" } else { "adapter_model.safetensors" };
        let weights = site.read(&format!("{output}/{weights}"));
        let weights = safetensors::SafeTensors::deserialize(&weights).unwrap();
        assert!(weights.names().iter().all(|name| !name.contains("v_head")), "{method}");
        let results: Value =
            serde_json::from_slice(&site.read(&format!("{output}/eval_results.json"))).unwrap();
        assert!(results["eval_accuracy"].is_number(), "{results}");
        if method == "lora" {
            let export = "model_name_or_path: model\nadapter_name_or_path: rm lora\nfinetuning_type: lora\nexport_dir: merged\n";
            site.write("merge.yaml", export);
            let said = run(site.oarlock(&["export", "merge.yaml"]));
            assert_eq!(said.code, Some(0), "{said:?}");
            assert_eq!(
                site.read("merged/value_head.safetensors"),
                site.read("rm lora/value_head.safetensors")
            );
        }
        // It goes on from its folder, and from its checkpoint.
        let from = match method {
            "full" => format!("model_name_or_path={output}"),
            _ => format!("adapter_name_or_path={output}"),
        };
        site.train(
            &format!("{output} again"),
            &words(&[&["stage=rm", "dataset=pairs", "max_steps=1"], &[&kind, &from]]),
        );
        let resumed = format!("resume_from_checkpoint={output}/checkpoint-2");
        site.train(&format!("{output} resumed"), &[&run_of[..], &[&resumed]].concat());
        let last = |output: &str| site.losses(output).last().copied();
        assert_eq!(last(&format!("{output} resumed")), last(&output), "{method}");
    }
}

/// The scores of the chosen and the rejected answer of each pair, in their order.
pub fn scores(site: &Site, output: &str) -> Vec<[f64; 2]> {
    let text = String::from_utf8(site.read(&format!("{output}/generated_predictions.jsonl"))).unwrap();
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        ["chosen", "rejected"].map(|answer| row[answer].as_f64().unwrap())
    };
    text.lines().map(row).collect()
}

#[test]
fn a_reward_model_scores_the_pairs_in_their_order_on_any_ranks() {
    let site = site();
    let reward = ["stage=rm", "eval_dataset=pairs", "do_predict=true", "do_eval=true"];
    let run_of = words(&[&reward, &["dataset=pairs", "max_steps=3", "save_strategy=no"]]);
    let said = site.train("rm", &run_of);
    let scored = |output: &str| scores(&site, output);
    let results = |output: &str, of: &str| -> Value {
        serde_json::from_slice(&site.read(&format!("{output}/{of}_results.json"))).unwrap()
    };
    let whole = scored("rm");
    assert!(said.stdout.contains(&format!("{} pairs scored: accuracy", whole.len())), "{said:?}");
    // What the evaluation of the same pairs came to.
    let [found, expected] = ["predict", "eval"].map(|of| results("rm", of));
    for name in ["loss", "accuracy"] {
        let [found, expected] = [&found[format!("predict_{name}")], &expected[format!("eval_{name}")]]
            .map(|x| x.as_f64().unwrap());
        assert!((found - expected).abs() < 1e-5, "{name}: {found} {expected}");
    }
    // The model as it is says the same on other ranks and in other batches, and of half of the rows its half.
    let rows = String::from_utf8(site.read("pairs.jsonl")).unwrap();
    let half: String = rows.lines().step_by(2).map(|line| format!("{line}\n")).collect();
    site.write("half.jsonl", &half);
    let mut info: Value = serde_json::from_slice(&site.read("dataset_info.json")).unwrap();
    info["half"] = info["pairs"].clone();
    info["half"]["file_name"] = "half.jsonl".into();
    site.write("dataset_info.json", &info.to_string());
    let zero3 = "deepspeed={zero_optimization: {stage: 3}}";
    let close = |found: &[[f64; 2]], expected: &[[f64; 2]]| {
        assert_eq!(found.len(), expected.len());
        let pairs = found.as_flattened().iter().zip(expected.as_flattened());
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 0.011), "{found:?} {expected:?}");
    };
    for (output, ranks, batch, data, also) in [
        ("one", 1, 8, "pairs", "seed=1"),
        ("three", 3, 1, "pairs", "seed=1"),
        ("zero3", 2, 3, "pairs", zero3),
        ("half", 2, 4, "half", "seed=1"),
    ] {
        let (ranks, batch) =
            (format!("num_processes={ranks}"), format!("per_device_eval_batch_size={batch}"));
        let data = format!("eval_dataset={data}");
        let as_it_is =
            ["stage=rm", "dataset=pairs", "do_predict=true", "do_train=false", "model_name_or_path=rm"];
        site.train(output, &words(&[&as_it_is, &[&ranks, &batch, &data, also]]));
        let expected: Vec<[f64; 2]> = match output {
            "half" => whole.iter().step_by(2).copied().collect(),
            _ => whole.clone(),
        };
        close(&scored(output), &expected);
    }
    assert!(whole.iter().any(|scores| (scores[0] - whole[0][0]).abs() > 0.05), "{whole:?}");
}

#[test]
fn rows_of_other_stages_and_keys_that_contradict_are_refused() {
    let site = site();
    let short = ["max_steps=1"];
    for (parts, error) in [
        (&["stage=dpo", "dataset=judged"][..], "holds no pairs of answers"),
        (&["stage=sft", "dataset=pairs"], "holds pairs of answers"),
        (&["stage=kto", "dataset=pairs"], "holds pairs of answers"),
        (&["stage=dpo", "dataset=pairs", "pref_loss=kto_pair"], "stage: kto"),
        (
            &["stage=dpo", "dataset=pairs", "pref_loss=ipo", "dpo_label_smoothing=0.1"],
            "only valid for sigmoid",
        ),
        (&["stage=dpo", "dataset=pairs", "packing=true"], "not packed"),
        (&["stage=dpo", "dataset=pairs", "ref_model=nowhere"], "no model folder `nowhere`"),
    ] {
        let said = run(site.training("refused", &words(&[parts, &short])));
        assert_ne!(said.code, Some(0), "{parts:?}");
        assert!(said.message().contains(error), "{error}: {said:?}");
    }
}

#[test]
fn a_reward_model_is_whole_out_of_a_checkpoint_and_nothing_else_scores() {
    let site = site();
    let zero3 = "deepspeed={zero_optimization: {stage: 3}}";
    let saved = ["stage=rm", "dataset=pairs", "max_steps=2", "save_strategy=steps", "save_steps=2", zero3];
    site.train("rm", &words(&[&saved]));
    let said = run(site.oarlock(&["merge-weights", "rm", "merged"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("value_head.safetensors"), "{said:?}");
    let names = |file: &str| -> Vec<String> {
        let bytes = site.read(file);
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.names().into_iter().map(str::to_owned).collect()
    };
    let tensors = |file: &str| -> std::collections::BTreeMap<String, Vec<u8>> {
        let bytes = site.read(file);
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
    };
    assert_eq!(tensors("merged/value_head.safetensors"), tensors("rm/value_head.safetensors"));
    assert!(names("merged/model.safetensors").iter().all(|name| !name.contains("v_head")));
    let scores = |model: &str, output: &str, also: &[&str]| {
        let model = format!("model_name_or_path={model}");
        let as_it_is =
            ["stage=rm", "dataset=pairs", "eval_dataset=pairs", "do_predict=true", "do_train=false"];
        run(site.training(output, &words(&[&as_it_is, &[&model], also])))
    };
    let whole = scores("merged", "scored", &[]);
    assert_eq!(whole.code, Some(0), "{whole:?}");

    // Another stage says that it leaves the head.
    let of_pairs = ["stage=dpo", "dataset=pairs", "max_steps=1", "model_name_or_path=merged"];
    let said = site.train("without", &words(&[&of_pairs]));
    assert!(said.stdout.contains("the value head of merged is not read"), "{said:?}");

    // A model without a head, one with a pickled head, an adapter without its head.
    let refused = |said: CommandOutput, error: &str| {
        assert!(said.code != Some(0) && said.message().contains(error), "{error}: {said:?}");
    };
    refused(scores("model", "plain", &[]), "there is nothing to score answers with");
    fs::create_dir(site.path("pickled")).unwrap();
    for entry in fs::read_dir(site.path("merged")).unwrap().flatten() {
        fs::copy(entry.path(), site.path("pickled").join(entry.file_name())).unwrap();
    }
    fs::rename(site.path("pickled/value_head.safetensors"), site.path("pickled/value_head.bin")).unwrap();
    refused(scores("pickled", "bin", &[]), "holds its value head as value_head.bin, a pickle");
    let rows: Vec<_> = (0..8)
        .map(|i| serde_json::json!({"instruction": format!("row {i}"), "output": "the river"}))
        .collect();
    site.write("talk.json", &serde_json::to_string(&rows).unwrap());
    site.train("sft", &words(&[&["stage=sft", "dataset=talk.json", "max_steps=1", "finetuning_type=lora"]]));
    let adapter = ["finetuning_type=lora", "adapter_name_or_path=sft"];
    refused(scores("model", "headless", &adapter), "there is nothing to score answers with");
    // Training from there begins with a new head, and says so.
    let said = site.train("new", &words(&[&["stage=rm", "dataset=pairs", "max_steps=1"], &adapter]));
    assert!(said.stdout.contains("the value head begins with random values"), "{said:?}");
}
