//! Every flag of MiniMind's scripts, and what becomes of it.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use oarlock_tensor::DType;

use super::*;
use crate::config::{
    IntervalStrategy, Length, ModelSource, Packing, Placement, ResolvedConfig, Resume, Shape, Steps, keys,
    train_config_of, written,
};

/// The command of the guide, behind the name of the script.
const GUIDE: &str = "--epochs 3 --batch_size 24 --learning_rate 2e-4 --dtype bfloat16 --accumulation_steps 32 \
                     --grad_clip 1.0 --log_interval 100 --save_interval 10000 --dim 1024 --n_layers 32 \
                     --max_seq_len 1024 --use_flash_attn --profile --profile_interval 10";

fn plan_in(line: &str, environment: &[(&str, &str)]) -> Result<(ResolvedConfig, Vec<String>), Problems> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let look_up =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let training = training(&Words::new(&words), &look_up)?;
    Ok((train_config_of(training.layers, &look_up)?, training.notes))
}

/// The run of some flags and a tokenizer.
fn plan(line: &str) -> (ResolvedConfig, Vec<String>) {
    plan_in(&format!("--tokenizer_path tok {line}"), &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

fn refused(line: &str) -> String {
    match plan_in(&format!("--tokenizer_path tok {line}"), &[]) {
        Ok((config, _)) => panic!("{line} is accepted: {}", config.table()),
        Err(problems) => problems.to_string(),
    }
}

fn model(config: &ResolvedConfig) -> Json {
    match &config.model.source {
        ModelSource::Fields(fields) => json!(fields),
        ModelSource::Folder(folder) => panic!("{}", folder.display()),
    }
}

#[test]
fn the_command_of_the_guide_is_a_training() {
    let (config, notes) = plan(GUIDE);
    let fields = json!({
        "model_type": "minimind", "vocab_size": 6400, "hidden_size": 1024, "num_hidden_layers": 32,
    });
    assert_eq!(model(&config), fields);
    assert!(config.model.from_scratch && config.model.tokenizer == Path::new("tok"));
    let train = &config.train;
    assert_eq!((train.batch_size, train.accumulation, train.length), (24, 32, Length::Epochs(3.0)));
    assert_eq!((train.max_grad_norm, train.dtype, train.seed), (Some(1.0), DType::BF16, 1337));
    assert_eq!((train.schedule.learning_rate, train.schedule.shape), (2e-4, Shape::MinimindSeed));
    assert_eq!(train.optimizer.weight_decay, 0.01);
    assert_eq!((config.data.cutoff_len, config.data.packing), (1024, Packing::MiniMind));
    assert_eq!(config.data.datasets, ["./dataset/pretrain_hq.jsonl"]);
    // 100, 10000 and 10 micro-steps are 3.125, 312.5 and 0.3125 steps.
    assert_eq!(config.log.when, IntervalStrategy::Every(Steps::Count(3)));
    assert_eq!(config.save.when, IntervalStrategy::Every(Steps::Count(313)));
    assert_eq!((config.log.profile, config.log.first_step), (Some(1), true));
    assert_eq!(config.save.output_dir, Path::new("out/pretrain_1024"));
    assert_eq!((&config.save.resume, config.save.keep), (&Resume::Never, Some(1)));
    assert_eq!(
        notes,
        [
            "MiniMind's intervals count micro-steps, 32 of which make an optimizer step: --log_interval 100 is every \
             3, --save_interval 10000 is every 313, --profile_interval 10 is every 1",
            "accepted without effect: --use_flash_attn (attention never stores its S x S scores, whatever is written)",
        ]
    );
    let origin = |name: &str| config.origin(name).map(ToString::to_string).unwrap_or_default();
    assert_eq!(origin("cutoff_len"), "argument");
    assert_eq!([origin("seed"), origin("dataset")], ["default of train_pretrain"; 2]);
    // Hyphens, equal signs and order change nothing.
    let hyphens = GUIDE.replace("batch_size 24", "batch-size=24").replace("--n_layers", "--n-layers");
    assert_eq!(plan(&hyphens).0.as_yaml(), config.as_yaml());
}

#[test]
fn no_flag_at_all_is_the_script_as_it_stands() {
    let (config, notes) = plan("");
    assert_eq!(model(&config)["hidden_size"], 512);
    assert_eq!((config.train.batch_size, config.train.accumulation), (32, 8));
    assert_eq!((config.train.length, config.data.cutoff_len), (Length::Epochs(1.0), 512));
    assert_eq!((config.log.when, config.log.profile), (IntervalStrategy::Every(Steps::Count(13)), None));
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(plan("--accumulation_steps 1").1.is_empty());
}

#[test]
fn flags_of_the_newest_script_make_the_newest_model() {
    for line in ["--hidden_size 768", "--save_dir ../out", "--from_resume 1", "--use_compile 0"] {
        let (config, _) = plan(line);
        assert_eq!(model(&config)["model_type"], "minimind3", "{line}");
        assert_eq!((config.train.length, config.data.cutoff_len), (Length::Epochs(2.0), 340));
        assert_eq!((config.train.schedule.shape, config.train.seed), (Shape::Minimind3, 42));
        assert_eq!(config.save.output_dir, Path::new("../out/pretrain_768"));
        assert_eq!(config.save.when, IntervalStrategy::Every(Steps::Count(125)));
        assert!(!config.log.first_step);
    }
    // What DeepSpeed's launcher adds in front decides nothing.
    let ranks = plan("--local_rank=1 --save_dir ../out").0;
    assert_eq!(ranks.table(), plan("--save_dir ../out").0.table());
    let (config, _) =
        plan("--hidden_size 512 --num_hidden_layers 4 --save_weight tiny --from_resume 1 --use_moe 0");
    assert_eq!(config.save.output_dir, Path::new("../out/tiny_512"));
    assert_eq!((&config.save.resume, config.save.overwrite), (&Resume::IfPresent, false));
    assert_eq!(model(&config)["num_hidden_layers"], 4);
    // The width decides where flags of both are written.
    assert_eq!(model(&plan("--dim 512 --save_dir here").0)["model_type"], "minimind");
    assert_eq!(plan("--dim 512 --save_dir here").0.save.output_dir, Path::new("here/pretrain_512"));
}

#[test]
fn what_is_not_there_is_refused_with_a_reason() {
    for (line, expected) in [
        (
            "--use_moe True",
            "mixtures of experts (`--use_moe`) are not supported (remove it to train the dense model)",
        ),
        ("--use_moe 1", "mixtures of experts"),
        ("--from_weight pretrain", "scripts/convert_model.py"),
        ("--device cuda:1", "ranks do not run on `cuda:1` (write --device cuda or --device cpu;"),
        ("--dim 512 --hidden_size 768", "they make different models"),
        ("--out_dir a --save_dir b", "`--out_dir` and `--save_dir` are one setting of two scripts"),
        ("--dtype fp8", "`dtype` takes one of bfloat16, float16, float32, not `fp8`"),
        ("--epoches 3", "`train_pretrain` has no flag `--epoches` (did you mean `--epochs`?)"),
        ("--save 3", "ambiguous option: --save could match --save_dir, --save_weight, --save_interval"),
        ("train.yaml", "`train_pretrain` takes flags only, not `train.yaml`"),
        ("--help", "`oarlock train_pretrain --help` shows its flags"),
    ] {
        let problems = refused(line);
        assert!(problems.contains(expected), "{line}: {problems}");
    }
    let problems = plan_in("", &[]).unwrap_err().to_string();
    assert_eq!(
        problems,
        "no tokenizer.json in ./model/minimind_tokenizer, ./model, ../model (write --tokenizer_path FOLDER, or run it \
         in MiniMind's folder; `oarlock tokenizer train` makes one)"
    );
}

/// A value of a flag that is not its default.
fn other_value(key: &Row) -> &'static str {
    match (key.name, key.value_type) {
        ("device", _) => "cpu",
        ("from_weight", _) => "other",
        ("memory_check", _) => "false",
        (_, keys::ValueType::Bool) => "",
        (_, keys::ValueType::Choice(_)) if key.name == "dtype" => "float16",
        (_, keys::ValueType::Choice(_)) => "1",
        (_, keys::ValueType::Text | keys::ValueType::Path) => "elsewhere",
        (_, _) => "3",
    }
}

#[test]
fn every_flag_changes_the_plan_or_says_why_not() {
    for key in FLAGS.keys {
        // Flags of one script are tried with its model; a width, and what a profile needs, with what differs from it.
        let base = match key.name {
            "dim" | "hidden_size" | "profile" => "",
            "profile_interval" => "--profile",
            name if Era::MINIMIND3.iter().any(|key| key.name == name) => "--hidden_size 80",
            _ => "--dim 80",
        };
        let read = |line: &str| plan_in(&format!("--tokenizer_path tok {base} {line}"), &[]);
        let (before, _) = read("").unwrap();
        let flag = format!("--{}", key.name);
        match read(&format!("{flag} {}", other_value(key))) {
            Err(problems) => {
                let reason = problems.to_string();
                assert!(reason.contains(&flag) || reason.contains("report_to"), "{flag}: {reason}");
            }
            Ok((after, notes)) => {
                let message = notes.iter().any(|note| note.contains(&format!("{flag} ")));
                let changed = after.as_yaml() != before.as_yaml();
                match key.status {
                    Status::NoEffect(reason) => {
                        assert!(
                            !changed && message && notes.iter().any(|note| note.contains(reason)),
                            "{flag}"
                        );
                    }
                    _ => assert!(changed || message, "{flag}: {notes:?}"),
                }
            }
        }
    }
}

#[test]
fn accelerate_decides_over_the_precision_and_says_so() {
    let of = |line: &str, precision: &str| {
        plan_in(
            &format!("--tokenizer_path tok --accumulation_steps 1 {line}"),
            &[("ACCELERATE_MIXED_PRECISION", precision)],
        )
    };
    let (config, notes) = of("", "bf16").unwrap();
    assert_eq!((config.train.dtype, notes.len()), (DType::BF16, 0));
    assert_eq!(config.origin("bf16").unwrap().to_string(), "ACCELERATE_MIXED_PRECISION");
    let (config, notes) = of("--dtype bfloat16", "fp16").unwrap();
    assert_eq!(config.train.dtype, DType::F16);
    assert_eq!(
        notes,
        ["accelerate's --mixed_precision fp16 decides over --dtype bfloat16, as it does in the original"]
    );
    assert_eq!(of("", "no").unwrap().0.train.dtype, DType::F32);
    assert!(of("", "fp8").unwrap_err().to_string().contains("no, fp16 or bf16"));
    assert_eq!(plan("--dtype float32").0.train.dtype, DType::F32);
}

/// A training run under a launcher that says `text`, too.
fn with_said(line: &str, text: &str) -> Result<ResolvedConfig, Problems> {
    let words: Vec<String> = format!("--tokenizer_path tok {line}").split(' ').map(str::to_owned).collect();
    let mut layers = training(&Words::new(&words), &|_| None)?.layers;
    layers.push(written::text_of_file("launcher", text.to_owned())?);
    train_config_of(layers, &|_| None)
}

#[test]
fn defaults_of_the_script_yield_to_deepspeed_and_flags_do_not() {
    let block =
        |rest: &str| format!("num_processes: 2\ndeepspeed: {{zero_optimization: {{stage: 2}}, {rest}}}\n");
    let auto = "train_batch_size: auto, train_micro_batch_size_per_gpu: auto, gradient_accumulation_steps: auto, \
                gradient_clipping: auto, fp16: {enabled: auto}, bf16: {enabled: auto}, \
                optimizer: {type: AdamW, params: {lr: auto, betas: auto, eps: auto, weight_decay: auto}}, \
                scheduler: {type: WarmupDecayLR, params: {warmup_min_lr: auto, warmup_max_lr: auto, \
                warmup_num_steps: auto, total_num_steps: auto}}";
    let config = with_said(GUIDE, &block(auto)).unwrap();
    assert_eq!((config.train.accumulation, config.train.dtype), (32, DType::BF16));
    assert_eq!(config.shard.placements.gradients, Placement::Sharded);
    // The script's own learning rate counts, and that is said.
    assert_eq!(config.train.schedule.shape, Shape::MinimindSeed);
    assert!(
        config
            .notes()
            .iter()
            .any(|note| note.starts_with("DeepSpeed's scheduler WarmupDecayLR has no effect"))
    );
    let said = "gradient_accumulation_steps: 16, optimizer: {type: AdamW, params: {weight_decay: 0.1}}";
    let config = with_said("--dim 64", &block(said)).unwrap();
    assert_eq!((config.train.accumulation, config.train.optimizer.weight_decay), (16, 0.1));
    let problems = with_said("--accumulation_steps 4", &block(said)).unwrap_err().to_string();
    assert!(problems.contains("`gradient_accumulation_steps` is 4, but launcher:2:"), "{problems}");
}

#[test]
fn false_is_false_although_the_original_takes_it_for_true() {
    let (_, notes) = plan("--accumulation_steps 1 --use_moe False");
    assert_eq!(notes, ["`--use_moe False` is read as false; MiniMind2's script takes every word for true"]);
}

#[test]
fn the_tables_fit_together() {
    for (_, key) in RENAMED.iter().chain(&INTERVALS) {
        let key = key.split('.').next().unwrap_or_default();
        assert!(crate::config::table::find(key).is_some(), "{key}");
    }
    for (flag, _) in NEWEST {
        assert!(FLAGS.keys.iter().any(|key| key.name == flag), "{flag}");
    }
}

proptest! {
    #[test]
    fn no_words_panic(
        words in proptest::collection::vec((0..FLAGS.keys.len(), "(|=|-|[0-9e.-]{0,20}|\\PC{0,12})"), 0..6),
        precision in "(|no|fp16|\\PC{0,5})",
    ) {
        let named = |(i, value): &(usize, String)| [format!("--{}", FLAGS.keys[*i].name), value.clone()];
        let words: Vec<String> = words.iter().flat_map(named).collect();
        let environment = |name: &str| (name == "ACCELERATE_MIXED_PRECISION").then(|| precision.clone());
        let plan = training(&Words::new(&words), &environment)
            .and_then(|training| train_config_of(training.layers, &environment));
        if let Err(problems) = plan {
            prop_assert!(!crate::config::render::render(&problems, true, 80).is_empty());
        }
    }
}
