//! Whole configurations and every message of a wrong one.

use oarlock_tensor::ops::optimizer::{AdafactorArgs, AdjustLr, Rule};
use oarlock_tensor::{DType, DeviceKind};

use std::time::Duration;

use super::*;

mod finetuning;
mod model;
mod monitor;
mod optimizer;
mod properties;
mod schedules;
mod sft;
mod values;
mod wrong;

/// What every configuration needs.
pub(super) const MINIMUM: &str = "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: out\n";

pub(super) fn train(
    text: &str,
    words: &[&str],
    environment: &[(&str, &str)],
) -> Result<ResolvedConfig, Problems> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let arguments = written::arguments(&Words::new(&words))?;
    let file = written::text_of_file("t.yaml", text.to_owned())?;
    let look_up =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let mut layers = vec![file];
    layers.extend(arguments.layers()?);
    train_config_of(layers, &look_up)?.complete()
}

pub(super) fn good(text: &str) -> ResolvedConfig {
    train(&format!("{MINIMUM}{text}"), &[], &[]).unwrap()
}

/// The messages that `text`, written below the minimum (so from line 4 on), and arguments give.
pub(super) fn bad(text: &str, words: &[&str], environment: &[(&str, &str)]) -> String {
    match train(&format!("{MINIMUM}{text}"), words, environment) {
        Ok(_) => String::new(),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn defaults_are_those_of_the_originals() {
    let config = good("");
    let source = ModelSource::Folder("m".into());
    assert_eq!(
        config.model,
        ModelArgs {
            source,
            tokenizer: "m".into(),
            from_scratch: false,
            print_param_status: false,
            quantization: None,
            gguf_weights: oarlock::config::GgufWeights::Auto,
            sparse_attention: None,
            new_tokens: NewTokens::default(),
            rope_scaling: None,
        }
    );
    assert_eq!(config.data.datasets, ["d.jsonl"]);
    assert_eq!(config.data.cutoff_len, 2048);
    assert!(config.data.packing == Packing::Concat && config.data.shuffle);
    let train = &config.train;
    assert_eq!((train.batch_size, train.accumulation), (8, 1));
    assert_eq!(train.length, Length::Epochs(3.0));
    assert_eq!(train.max_grad_norm, Some(1.0));
    assert_eq!(train.dtype, DType::F32);
    assert_eq!((train.seed, train.data_seed), (42, 42));
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let optimizer = OptimizerArgs { rule, weight_decay: 0.0, targets: Vec::new() };
    assert_eq!(train.optimizer, optimizer);
    let schedule = ScheduleArgs { learning_rate: 5e-5, shape: Shape::Linear, warmup: Steps::Share(0.0) };
    assert_eq!(train.schedule, schedule);
    assert_eq!(
        config.eval,
        EvalArgs { when: IntervalStrategy::Never, delay: 0.0, at_start: false, at_end: false, batch_size: 8 }
    );
    assert_eq!(config.save.when, IntervalStrategy::Every(Steps::Count(500)));
    assert_eq!(config.save.resume, Resume::IfPresent);
    assert_eq!(
        config.ranks,
        RankArgs {
            num_processes: 1,
            sequence_parallel: 1,
            threads: None,
            device: DeviceKind::Auto,
            cpu_path: None,
            timeout: Duration::from_secs(1800),
            pipeline: PipelineArgs::default(),
        }
    );
}

#[test]
fn a_llama_factory_file_is_read_as_it_stands() {
    let text = "### model\nmodel_name_or_path: models/tiny\ntrust_remote_code: true\nflash_attn: fa2\n\n\
        ### method\nstage: pt\ndo_train: true\nfinetuning_type: full\ndeepspeed: null\n\n\
        ### dataset\ndataset: a.jsonl, b\ncutoff_len: 512\nmax_samples: 1000\noverwrite_cache: yes\n\
        preprocessing_num_workers: 16\n\n\
        ### output\noutput_dir: saves/pt\nlogging_steps: 10\nsave_steps: 500\nplot_loss: True\n\
        overwrite_output_dir: true\nreport_to: none  # choices: [none, wandb]\n\n\
        ### train\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nlearning_rate: 1.0e-4\n\
        num_train_epochs: 3.0\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\nbf16: true\nddp_timeout: 180000000\n\
        resume_from_checkpoint: null\n";
    let config = train(text, &[], &[]).unwrap();
    assert_eq!(config.data.datasets, ["a.jsonl", "b"]);
    assert_eq!(config.data.max_samples, Some(1000));
    assert!(config.data.overwrite_cache && config.log.plot_loss);
    assert_eq!(config.train.accumulation, 8);
    assert_eq!(config.train.dtype, DType::BF16);
    let schedule = ScheduleArgs {
        learning_rate: 1e-4,
        shape: Shape::Cosine { num_cycles: 0.5 },
        warmup: Steps::Share(0.1),
    };
    assert_eq!(config.train.schedule, schedule);
    assert_eq!(config.log.when, IntervalStrategy::Every(Steps::Count(10)));
    assert_eq!(config.save.resume, Resume::Never);
    assert_eq!(config.ranks.timeout, Duration::from_secs(180_000_000));
    assert_eq!(
        config.without_effect_line().unwrap(),
        "accepted without effect: trust_remote_code, flash_attn (--print-config says why)"
    );
}

#[test]
fn every_key_of_llama_factory_is_known() {
    // The fields of its arguments and the keys of its example files, of version 0.9.6.dev0 (ff6d4d12e); without `max_length`,
    // which is taken for `cutoff_len`.
    let keys = include_str!("tests/llamafactory_keys.txt");
    let unknown: Vec<&str> = keys.lines().filter(|name| table::find(name).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn a_file_for_an_optimizer_that_is_not_there_resolves_with_the_reason() {
    let text = format!(
        "{MINIMUM}template: llama3\nuse_galore: true\ngalore_layerwise: true\ngalore_target: all\n\
         galore_rank: 128\ngalore_scale: 2.0\n"
    );
    let arguments = written::text_of_file("t.yaml", text).unwrap();
    let config = train_config_of(vec![arguments], &|_| None).unwrap();
    let missing = config.missing().to_string();
    assert!(missing.contains("`galore_layerwise: true` is not supported yet"), "{missing}");
    let badam = format!("{MINIMUM}use_badam: true\nbadam_mode: ratio\nbadam_verbose: 1\n");
    let badam = train_config_of(vec![written::text_of_file("t.yaml", badam).unwrap()], &|_| None).unwrap();
    let missing = badam.missing().to_string();
    assert!(missing.contains("`use_badam: true` is not supported yet"), "{missing}");
    let idle = badam.without_effect_line().unwrap();
    assert!(idle.contains("badam_mode") && idle.contains("badam_verbose"), "{idle}");
    let template = config.without_effect().find(|(setting, _)| setting.key.name == "template").unwrap();
    assert_eq!(template.1, "stage pt uses no chat template");
}

#[test]
fn json_reads_like_yaml() {
    let text = "{\n  \"model_name_or_path\": \"m\",\n\t\"dataset\": [\"d\"],\n  \"output_dir\": \"o\",\n  \
        \"learning_rate\": \"1e-4\",\n  \"bf16\": true,\n  \"max_steps\": 30\n}\n";
    let config = train(text, &[], &[]).unwrap();
    assert_eq!(config.train.schedule.learning_rate, 1e-4);
    assert_eq!(config.train.length, Length::Steps(30));
    assert_eq!(config.origin("max_steps").unwrap().to_string(), "t.yaml:7");
}

#[test]
fn arguments_win_and_come_in_every_spelling() {
    let file = format!(
        "{MINIMUM}learning_rate: 1e-3\nbf16: true\nlr_scheduler_type: cosine_with_min_lr\n\
        lr_scheduler_kwargs: {{min_lr: 1e-4}}\n"
    );
    let words = [
        "learning_rate=2e-3",
        "--max-steps",
        "7",
        "--seed=3",
        "--bf16",
        "false",
        "--plot_loss",
        "dataset=[x, y]",
        "lr_scheduler_kwargs.min_lr=1e-3",
        "lr_scheduler_kwargs.num_cycles=1",
    ];
    let config = train(&file, &words, &[]).unwrap();
    assert_eq!(config.train.schedule.learning_rate, 2e-3);
    assert_eq!(config.train.length, Length::Steps(7));
    assert_eq!(config.train.seed, 3);
    assert_eq!(config.train.dtype, DType::F32);
    assert!(config.log.plot_loss);
    assert_eq!(config.data.datasets, ["x", "y"]);
    assert_eq!(config.train.schedule.shape, Shape::CosineWithMinLr { num_cycles: 1.0, min_lr_rate: 0.5 });
    assert_eq!(config.origin("learning_rate").unwrap().to_string(), "argument");
    assert_eq!(config.origin("data_seed").unwrap().to_string(), "seed");
    assert_eq!(config.origin("adam_beta1").unwrap().to_string(), "default");
    assert_eq!(config.origin("dataset_dir").unwrap().to_string(), "default");

    let words: Vec<String> =
        ["a.yaml", "--print-config", "--dry-run"].iter().map(|word| (*word).to_owned()).collect();
    let arguments = written::arguments(&Words::new(&words)).unwrap();
    assert_eq!(arguments.file.as_deref(), Some("a.yaml"));
    assert!(arguments.print_config && arguments.dry_run);

    let full = train(&format!("{file}finetuning_type: lora\n"), &["finetuning_type=full"], &[]).unwrap();
    assert_eq!(full.origin("finetuning_type").unwrap().to_string(), "argument");

    let inline = train(&file, &["--lr_scheduler_kwargs", "{\"min_lr_rate\": 0.25}"], &[]).unwrap();
    assert_eq!(inline.train.schedule.shape, Shape::CosineWithMinLr { num_cycles: 0.5, min_lr_rate: 0.25 });
}

#[test]
fn the_environment_says_how_many_ranks() {
    let ranks = |text: &str, environment: &[(&str, &str)]| {
        let config = train(&format!("{MINIMUM}{text}"), &[], environment).unwrap();
        (config.ranks.num_processes, config.origin("num_processes").unwrap().to_string())
    };
    assert_eq!(ranks("", &[("WORLD_SIZE", "4")]), (4, "WORLD_SIZE".to_owned()));
    assert_eq!(ranks("num_processes: \"2\"", &[("WORLD_SIZE", "2")]), (2, "t.yaml:4".to_owned()));
    assert_eq!(ranks("num_processes: 2", &[("WORLD_SIZE", " ")]), (2, "t.yaml:4".to_owned()));
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")];
    assert_eq!(ranks("", &open_mpi), (3, "OMPI_COMM_WORLD_SIZE".to_owned()));
}

#[test]
fn settings_take_their_meaning_from_each_other() {
    let warmup = |text: &str| good(text).train.schedule.warmup;
    assert_eq!(warmup("warmup_steps: 20\nwarmup_ratio: 0.1"), Steps::Count(20));
    assert_eq!(warmup("warmup_steps: 0\nwarmup_ratio: 0.1"), Steps::Share(0.1));
    assert_eq!(warmup("warmup_steps: 0.05"), Steps::Share(0.05));
    assert_eq!(good("max_grad_norm: 0").train.max_grad_norm, None);
    assert_eq!(good("save_total_limit: 0").save.keep, None);
    assert_eq!(good("save_total_limit: 3").save.keep, Some(3));
    assert_eq!(good("save_strategy: no").save.when, IntervalStrategy::Never);
    assert_eq!(good("resume_from_checkpoint: true").save.resume, Resume::Newest);
    assert_eq!(good("resume_from_checkpoint: false").save.resume, Resume::Never);
    assert_eq!(
        good("resume_from_checkpoint: out/checkpoint-5").save.resume,
        Resume::From("out/checkpoint-5".into())
    );
    let eval = good("val_size: 0.1\nevaluation_strategy: steps\nlogging_steps: 5");
    assert_eq!(eval.data.val_size, Some(ValSize::Fraction(0.1)));
    assert_eq!(
        eval.eval,
        EvalArgs {
            when: IntervalStrategy::Every(Steps::Count(5)),
            delay: 0.0,
            at_start: false,
            at_end: true,
            batch_size: 8
        }
    );
    assert_eq!(eval.origin("eval_strategy").unwrap().to_string(), "evaluation_strategy");
    assert!(!good("val_size: 0.1\ndo_eval: no").eval.at_end);
    assert_eq!(good("val_size: 20").data.val_size, Some(ValSize::Count(20)));
    let shape =
        |text: &str| good(&format!("learning_rate: 1e-3\nlr_scheduler_type: {text}")).train.schedule.shape;
    let decay = "warmup_stable_decay\nmin_lr_ratio: 0.1\n\
        lr_scheduler_kwargs: {num_decay_steps: 30, num_stable_steps: 5, decay_type: 1-sqrt}";
    let expected = Shape::WarmupStableDecay {
        num_stable_steps: StableSteps::Steps(5),
        num_decay_steps: Some(30),
        warmup_type: Curve::Linear,
        decay_type: Curve::OneMinusSqrt,
        min_lr_ratio: 0.1,
        num_cycles: 0.5,
    };
    assert_eq!(shape(decay), expected);
    // Without arguments it is LLaMA-Factory's.
    let expected = Shape::WarmupStableDecay {
        num_stable_steps: StableSteps::Third,
        num_decay_steps: None,
        warmup_type: Curve::Linear,
        decay_type: Curve::Cosine,
        min_lr_ratio: 0.0,
        num_cycles: 0.5,
    };
    assert_eq!(shape("warmup_stable_decay"), expected);
    assert_eq!(shape("minimind"), Shape::MinimindSeed);
    assert_eq!(shape("minimind3"), Shape::Minimind3);
    assert_eq!(
        shape("cosine_with_restarts\nlr_scheduler_kwargs: {num_cycles: 3}"),
        Shape::CosineWithRestarts { num_cycles: 3.0 }
    );
    let warm = "cosine_warmup_with_min_lr\nlr_scheduler_kwargs:\n  min_lr_rate: 0.1\n  warmup_lr_rate: 0.05";
    let expected =
        Shape::CosineWarmupWithMinLr { num_cycles: 0.5, min_lr_rate: 0.1, warmup_lr_rate: Some(0.05) };
    assert_eq!(shape(warm), expected);
}

#[test]
fn every_wrong_configuration_says_where_and_what_to_do() {
    let mut wrong = String::new();
    for (text, expected) in [
        ("learning_rat: 1", "t.yaml:4:1: unknown key `learning_rat` (did you mean `learning_rate`?)"),
        (
            "batch_size: 1",
            "t.yaml:4:1: unknown key `batch_size` (did you mean `per_device_train_batch_size`?)",
        ),
        (
            "wombat_count: 1",
            "t.yaml:4:1: unknown key `wombat_count` (`oarlock train --help` lists every key)",
        ),
        ("seed: 1\nseed: 2", "t.yaml:5:1: `seed` is written twice (remove one of them)"),
        (
            "learning_rate: fast",
            "t.yaml:4:16: `learning_rate` takes a number, at least 0, not `fast` (the default is 5e-5)",
        ),
        (
            "cutoff_len: 1",
            "t.yaml:4:13: `cutoff_len` takes a whole number, at least 2, not `1` (the default is 2048)",
        ),
        ("bf16: maybe", "t.yaml:4:7: `bf16` takes true or false, not `maybe` (the default is false)"),
        (
            "logging_steps: 1.5",
            "t.yaml:4:16: `logging_steps` takes a whole number of steps, or a share of all steps between 0 and 1, \
             not `1.5` (the default is 500)",
        ),
        (
            "adam_beta1: 1",
            "t.yaml:4:13: `adam_beta1` takes a number from 0 to below 1, not `1` (the default is 0.9)",
        ),
        (
            "adam_epsilon: 0",
            "t.yaml:4:15: `adam_epsilon` takes a number greater than 0, not `0` (the default is 1e-8)",
        ),
        (
            "warmup_ratio: 2",
            "t.yaml:4:15: `warmup_ratio` takes a number from 0 to 1, not `2` (the default is 0)",
        ),
        ("max_samples: {a: 1}", "t.yaml:4:14: `max_samples` takes a whole number, at least 1, not a mapping"),
        ("template: [a]", "t.yaml:4:11: `template` takes words, not a list"),
        ("tokenized_path: [a]", "t.yaml:4:17: `tokenized_path` takes a path, not a list"),
        (
            "eval_dataset: {a: 1}",
            "t.yaml:4:15: `eval_dataset` takes names separated by commas, not a mapping",
        ),
        (
            "resume_from_checkpoint: [a]",
            "t.yaml:4:25: `resume_from_checkpoint` takes true, false or a path, not a list",
        ),
        (
            "lr_scheduler_kwargs: 3",
            "t.yaml:4:22: `lr_scheduler_kwargs` takes a mapping such as {min_lr: 1e-5}, not `3`",
        ),
        (
            "eval_strategy: step",
            "t.yaml:4:16: `eval_strategy` takes one of no, steps, epoch, not `step` (did you mean `steps`?)",
        ),
        (
            "stage: ppo",
            "t.yaml:4:8: `stage: ppo` is not supported yet (pretraining, supervised fine-tuning, preferences (dpo, kto), \
             reward models (rm) and rejection sampling (raft) are there)",
        ),
        (
            "finetuning_type: oft\noft_rank: 8",
            "t.yaml:5:11: one of `oft_rank` (blocks of a layer) and `oft_block_size` (inputs of a block) is 0, and the other \
             one is not (write `oft_block_size: 0`)",
        ),
        (
            "deepspeed: ds.json",
            "t.yaml:4:12: cannot read the DeepSpeed configuration `ds.json`: No such file or directory (os error 2) \
             (paths are relative to the working directory)",
        ),
        (
            "fsdp_config: {a: 1}",
            "t.yaml:4:15: unknown key `a` in the FSDP configuration (there are sharding_strategy, reshard_after_forward, …",
        ),
        (
            "report_to: mlflow",
            "t.yaml:4:12: `report_to: mlflow` is not supported yet (there are tensorboard, wandb, swanlab, csv, jsonl, all \
             and none)",
        ),
        (
            "report_to: swanlab\nswanlab_project: a/b",
            "t.yaml:5:18: SwanLab has no projects of the name `a/b` (write 1 to 100 letters, digits, `_`, `-`, `+` and `.`)",
        ),
        (
            "report_to: [csv, tensorbord]",
            "t.yaml:4:12: no tracker `tensorbord` (did you mean `tensorboard`?)",
        ),
        ("bf16: true\nfp16: true", "t.yaml:4:7: `bf16` and `fp16` are mutually exclusive (keep one of them)"),
        (
            "val_size: 0.1\neval_dataset: e",
            "t.yaml:4:11: `val_size` and `eval_dataset` are mutually exclusive (hold out a part of the training data, or \
             evaluate on data of its own)",
        ),
        (
            "val_size: 10.5",
            "t.yaml:4:11: `val_size` is a whole number of records, or a share below 1 (write 10 or 0.105)",
        ),
        (
            "eval_strategy: epoch",
            "t.yaml:4:16: `eval_strategy` is on, but there is nothing to evaluate on (write `val_size: 0.01` or \
             `eval_dataset: …`)",
        ),
        (
            "do_eval: true",
            "t.yaml:4:10: `do_eval` is on, but there is nothing to evaluate on (write `val_size: 0.01` or \
             `eval_dataset: …`)",
        ),
        (
            "do_train: false",
            "t.yaml:4:11: `do_train` is off and there is nothing to evaluate on (remove it to train)",
        ),
        (
            "save_steps: 0",
            "t.yaml:4:13: `save_steps` is 0 (write a number of steps, or `save_strategy: \"no\"`)",
        ),
        (
            "evaluation_strategy: steps\neval_strategy: epoch\nval_size: 1",
            "t.yaml:4:22: `evaluation_strategy` and `eval_strategy` differ (they are two names of one setting; keep \
             eval_strategy)",
        ),
        (
            "resume_from_checkpoint: true\noverwrite_output_dir: true",
            "t.yaml:4:25: `resume_from_checkpoint: true` and `overwrite_output_dir: true` are mutually exclusive (resume \
             the run in output_dir, or start a new one)",
        ),
        (
            "lr_scheduler_type: cosin",
            "t.yaml:4:20: `lr_scheduler_type` takes one of linear, cosine, cosine_with_restarts, polynomial, \
             constant, constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, \
             warmup_stable_decay, minimind_seed, minimind, minimind3, WarmupLR, \
             WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle, not `cosin` (did you mean `cosine`?)",
        ),
        (
            "lr_scheduler_type: cosine_with_min_lr",
            "t.yaml:4:20: `cosine_with_min_lr` needs one of min_lr and min_lr_rate in lr_scheduler_kwargs and \
             min_lr_ratio as a key",
        ),
        (
            "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 0, min_lr_rate: 0}",
            "t.yaml:5:22: `cosine_with_min_lr` takes only one of min_lr and min_lr_rate in lr_scheduler_kwargs and \
             min_lr_ratio as a key",
        ),
        (
            "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: low, min_lr_rate: 0}",
            "t.yaml:5:31: `min_lr` takes a number, at least 0, not `low`",
        ),
        (
            "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1}",
            "t.yaml:5:22: `min_lr` (1) is greater than `learning_rate` (5e-5)",
        ),
        (
            "lr_scheduler_kwargs:\n  min_lr: 1\n  min_lr: 2",
            "t.yaml:6:3: `min_lr` is written twice (remove one of them)",
        ),
        (
            "lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {num_decay_steps: 1.5, decay_type: x}",
            "t.yaml:5:40: `num_decay_steps` takes a whole number, at least 0, not `1.5`\n\
             t.yaml:5:57: `decay_type` takes one of linear, cosine, 1-sqrt, not `x`",
        ),
        (
            "lr_scheduler_type: warmup_stable_decay\nmin_lr_ratio: 0.1\n\
             lr_scheduler_kwargs: {num_decay_steps: 1, min_lr_ratio: 0.1}",
            "t.yaml:6:22: `min_lr_ratio` stands both as a key and in lr_scheduler_kwargs",
        ),
        (
            "lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {lr_end: 1}",
            "t.yaml:5:22: `lr_end` (1) must be smaller than `learning_rate` (5e-5)",
        ),
        (
            "lr_scheduler_kwargs: {min_lr: 1}",
            "t.yaml:4:23: `linear` takes no argument `min_lr` (it takes none)",
        ),
        (
            "lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycle: 1}",
            "t.yaml:5:23: `cosine` takes no argument `num_cycle` (did you mean `num_cycles`?)",
        ),
        (
            "lr_scheduler_type: cosine\nlr_scheduler_kwargs: {wombat: 1}",
            "t.yaml:5:23: `cosine` takes no argument `wombat` (it takes num_cycles)",
        ),
        (
            "min_lr_ratio: 0.1",
            "t.yaml:4:15: `min_lr_ratio` has no meaning for `linear` (use lr_scheduler_type: cosine_with_min_lr)",
        ),
        (
            "seed: *x",
            "t.yaml:4:7: this is not valid YAML (a configuration is lines of `key: value`, or a JSON object; \
          blanks, not tabs, before a key)",
        ),
        ("a: &x 1\nseed: *x", "t.yaml:5:7: aliases (`*name`) are not supported (write the value itself)"),
        (
            "---\nseed: 1",
            "t.yaml:4:1: a second YAML document begins here (a configuration is one document; remove the line `---`)",
        ),
        ("? [a]\n: 1", "t.yaml:4:3: a key is a word"),
    ] {
        let problems = bad(text, &[], &[]);
        let begins = expected.strip_suffix('…').is_some_and(|begin| problems.starts_with(begin));
        if problems != expected && !begins {
            wrong += &format!(
                "{text}
  gives    {problems}
  expected {expected}
"
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn problems_come_all_together_with_excerpts() {
    let text = format!("{MINIMUM}learning_rat: 1e-4\n# 中文 before\nbf16: maybe\nnum_processes: 2\n");
    let problems = train(&text, &["save_step=1"], &[("WORLD_SIZE", "4")]).unwrap_err();
    assert_eq!(problems.len(), 4);
    let expected = "  × unknown key `learning_rat`
   ╭─[t.yaml:4:1]
 3 │ output_dir: out
 4 │ learning_rat: 1e-4
   · ────────────
 5 │ # 中文 before
   ╰────
  help: did you mean `learning_rate`?
";
    let shown = render::render(&problems, false, 100);
    assert!(shown.starts_with(expected), "{shown}");
    assert!(shown.contains("[t.yaml:6:7]") && shown.contains("[command line:1:1]"), "{shown}");
    assert!(shown.contains("`num_processes` is 2, but WORLD_SIZE says 4"), "{shown}");
}

#[test]
fn the_table_shows_every_value_with_its_origin() {
    let config =
        train(&format!("{MINIMUM}flash_attn: fa2\n"), &["learning_rate=1e-4"], &[("WORLD_SIZE", "2")])
            .unwrap();
    let table = config.table();
    for row in [
        "Model\n  model_name_or_path           m          t.yaml:1\n",
        "  learning_rate                1e-4       argument\n",
        "  num_processes                2          WORLD_SIZE\n",
        "  data_seed                    42         seed\n",
        "  cutoff_len                   2048       default\n",
        "Accepted without effect\n  flash_attn                   fa2        t.yaml:4: attention never stores",
    ] {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert!(words(&table).contains(&words(row)), "{row}\n{table}");
    }
}

#[test]
fn the_written_values_repeat_the_run() {
    let text = format!(
        "{MINIMUM}max_steps: 5\nlearning_rate: 3e-4\nbf16: yes\nlr_scheduler_type: cosine_with_min_lr\n\
        lr_scheduler_kwargs:\n  min_lr: 1e-5\nrun_name: 'a: b #1'\neval_dataset: x, y z\n"
    );
    let config = train(&text, &[], &[]).unwrap();
    let again = train(&config.as_yaml(), &[], &[]).unwrap();
    assert_eq!(again.train, config.train);
    assert_eq!(again.data, config.data);
    assert_eq!(again.as_yaml(), config.as_yaml());
    assert!(config.as_yaml().contains("run_name: \"a: b #1\"\n"), "{}", config.as_yaml());
}

#[test]
fn paths_are_checked_apart() {
    let config = good("resume_from_checkpoint: nowhere/checkpoint-1");
    let problems = paths::check(&config).unwrap_err().to_string();
    assert_eq!(
        problems,
        "t.yaml:1:21: no model folder `m` (it is a folder or a GGUF file, relative to the working directory, or \
         OWNER/NAME on a hub, which a run fetches)\n\
         t.yaml:2:10: no data set `d.jsonl` (it is neither a file nor a folder, here or in `data`, and there is no \
         `data/dataset_info.json` to name it; of a hub a run fetches OWNER/NAME)\n\
         t.yaml:4:25: no checkpoint folder `nowhere/checkpoint-1` (name a folder such as output_dir/checkpoint-100, \
         or true for the newest)"
    );
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("file"), "").unwrap();
    let text =
        format!("model_name_or_path: {}\ndataset: {}\noutput_dir: {}\n", at(""), at("file"), at("file"));
    let problems = paths::check(&train(&text, &[], &[]).unwrap()).unwrap_err().to_string();
    assert!(
        problems.contains("holds no config.json") && problems.contains("holds no tokenizer.json"),
        "{problems}"
    );
    assert!(problems.contains("is a file, not a folder"), "{problems}");
    let write = |name: &&str| std::fs::write(at(name), "{}").is_ok();
    assert!(["config.json", "tokenizer.json"].iter().all(write));
    std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
    for (output, expected) in
        [("file/below/it", "file` is a file, not a folder"), ("link", "link` is a link that leads nowhere")]
    {
        let text =
            text.replace(&format!("output_dir: {}", at("file")), &format!("output_dir: {}", at(output)));
        let problems = paths::check(&train(&text, &[], &[]).unwrap()).unwrap_err().to_string();
        assert!(problems.contains(expected), "{problems}");
    }
    let text = text.replace(&format!("output_dir: {}", at("file")), "output_dir: new");
    assert!(paths::check(&train(&text, &[], &[]).unwrap()).is_ok());
}
