//! What a DeepSpeed configuration means: batches and precision as settings of ours, stages as placements.

use std::path::PathBuf;

use super::super::node::Entry;
use super::super::problem::{Problem, Problems};
use super::super::resolve::{Setting, Settings, at};
use super::super::table::MINIMIND_SCHEDULES;
use super::super::value::{Value, float};
use super::block::{self, Dialect, Ranks, ReadFile, divides};
use super::methods;
use crate::config::{
    Elems, Lifetime, LossScale, Offload, Placement, Quantized, ShardArgs, ShardGroup, StateDict,
};
use oarlock_tensor::DType;

/// Settings that have a key of ours.
const SAME: &[(&str, &str)] = &[
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
    ("bfloat16.enabled", "bf16"),
    ("sequence_parallel_size", "sequence_parallel_size"),
];

/// The block that `deepspeed` holds or names.
pub fn read(settings: &Settings, file: &ReadFile<'_>, problems: &mut Problems) -> Option<Dialect> {
    let entries = block::entries(settings.get("deepspeed"), "the DeepSpeed configuration", file, problems)?;
    Some(Dialect::deepspeed(&entries, problems))
}

/// What the block says about keys of ours.
pub fn entries(block: &Dialect, settings: &Settings, problems: &mut Problems) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (theirs, ours) in SAME {
        if let Some((setting, location)) = block.settings.said_at(theirs)
            && !setting.broken
        {
            entries.push(Entry::new(ours, setting.value.to_string(), location));
        }
    }
    methods::optimizer(block, settings, &mut entries, problems);
    if scheduler_of_script(block, settings).is_none() {
        methods::scheduler(block, settings, &mut entries, problems);
    }
    entries
}

/// What to say of a scheduler that has no effect. MiniMind's script sets the learning rate itself before every
/// micro-step, so whatever DeepSpeed's scheduler sets after a step is gone by the next one.
pub fn scheduler_of_script(block: &Dialect, settings: &Settings) -> Option<String> {
    let [theirs, ours] = [block.settings.said("scheduler.type")?, settings.get("lr_scheduler_type")];
    let own = matches!(&ours.value, Value::Text(name) if MINIMIND_SCHEDULES.contains(&name.as_str()));
    own.then(|| {
        format!(
            "DeepSpeed's scheduler {} has no effect: lr_scheduler_type {} sets the learning rate, as MiniMind's \
             script does before every micro-step",
            theirs.value, ours.value
        )
    })
}

/// DeepSpeed's scheduler sets the learning rate, whatever its optimizer's is: of two rates in the block the scheduler's
/// stays, which the note says. Where the training says a rate itself, both must agree with it, as in transformers.
pub fn rate_of_scheduler(entries: &mut Vec<Entry>, settings: &Settings) -> Option<String> {
    let is_rate = |entry: &&Entry| entry.key == "learning_rate";
    let rates: Vec<&Entry> = entries.iter().filter(is_rate).collect();
    let [of_optimizer, of_scheduler] = rates.as_slice() else { return None };
    let [first, second] = [of_optimizer, of_scheduler].map(|entry| entry.value.to_yaml());
    if settings.get("learning_rate").is_written() || float(&first) == float(&second) {
        return None;
    }
    let note = format!(
        "DeepSpeed's scheduler sets the learning rate: its warmup_max_lr {second} ({}) counts, not the optimizer's lr {first} \
         ({})",
        of_scheduler.location, of_optimizer.location
    );
    let loser = entries.iter().position(|entry| entry.key == "learning_rate");
    loser.map(|index| entries.remove(index));
    Some(note)
}

/// Makes `train_batch_size` = batch of a rank x accumulation x ranks true: what was said must agree, what was not said
/// follows.
pub fn batch(block: &Dialect, settings: &mut Settings, problems: &mut Problems) {
    const NAMES: [&str; 2] = ["per_device_train_batch_size", "gradient_accumulation_steps"];
    let (Some(all), [micro, steps]) =
        (block.settings.said("train_batch_size"), NAMES.map(|name| settings.get(name)))
    else {
        return;
    };
    let said = |setting: &Setting| match setting.value {
        Value::Int(x) if setting.is_written() => Some(x),
        _ => None,
    };
    let differs =
        |theirs: &str, ours| block.settings.said(theirs).is_some_and(|said| !said.value.agrees(ours));
    let Some(ranks) = settings.known_ranks() else { return };
    let ranks = i64::try_from(ranks).unwrap_or(i64::MAX).max(1);
    // Ranks that divide sequences among them have one batch together.
    let parts = settings.int("sequence_parallel_size").max(1);
    let ranks = (ranks / parts).max(1);
    let Value::Int(total) = all.value else { return };
    if differs("train_micro_batch_size_per_gpu", &micro.value)
        || differs("gradient_accumulation_steps", &steps.value)
    {
        return;
    }
    let ranks_text = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    let mismatch = |message: String| {
        let written: Vec<_> = [all, micro, steps].into_iter().filter(|s| s.is_written()).collect();
        at(Problem::new(message), &written)
            .help("write \"auto\" for one of the three, and it follows from the others")
    };
    let (micro_said, steps_said) = (said(micro), said(steps));
    let product = micro_said.unwrap_or(1).saturating_mul(steps_said.unwrap_or(1)).saturating_mul(ranks);
    let rest = total / product.max(1);
    if let (Some(micro), Some(steps)) = (micro_said, steps_said) {
        if product != total {
            problems.push(mismatch(format!(
                "`train_batch_size` is {total}, but a batch of {micro} x {steps} accumulation steps x {ranks_text} \
                 is {product}"
            )));
        }
        return;
    }
    if rest == 0 || rest * product != total {
        let said = match (micro_said, steps_said) {
            (Some(micro), _) => format!("a batch of {micro} x {ranks_text}"),
            (_, Some(steps)) => format!("{steps} accumulation steps x {ranks_text}"),
            _ => ranks_text,
        };
        problems.push(mismatch(format!("`train_batch_size` ({total}) is no multiple of {said}")));
        return;
    }
    let derived = if micro_said.is_some() { NAMES[1] } else { NAMES[0] };
    settings.derive(derived, Value::Int(rest), "train_batch_size");
}

/// Placements, sizes and offloading.
pub fn shard(block: &Dialect, ranks: Ranks, notes: &mut Vec<String>, problems: &mut Problems) -> ShardArgs {
    const OPTIMIZER: &str = "zero_optimization.offload_optimizer";
    const PARAMS: &str = "zero_optimization.offload_param";
    let settings = &block.settings;
    let zero = |name: &str| format!("zero_optimization.{name}");
    let stage = stage(block, notes, problems);
    let from = |least: i64| if stage >= least { Placement::Sharded } else { Placement::Whole };
    let elems = |name: &str, auto: Elems| match settings.is_auto(&zero(name)) {
        true => auto,
        false => Elems::Count(settings.usize(&zero(name))),
    };

    let on_gpus = ranks.on_gpus;
    let offload_optimizer = offload(block, OPTIMIZER, &["cpu_offload"], on_gpus, notes, problems);
    let older = ["cpu_offload_param", "cpu_offload_params"];
    let offload_parameters = offload(block, PARAMS, &older, on_gpus, notes, problems);
    for (offloaded, name, least) in [(&offload_optimizer, OPTIMIZER, 1), (&offload_parameters, PARAMS, 3)] {
        if offloaded.is_some() && stage < least {
            let device = format!("{name}.device");
            let what = format!("`{name}` needs stage {least}{}", if least == 1 { " or higher" } else { "" });
            let written = [device.as_str(), "zero_optimization.stage", "zero_optimization"];
            let help = format!("write \"stage\": {least}, or \"device\": \"none\"");
            settings.report(problems, format!("{what}, and the stage is {stage}"), &written, help);
        }
    }

    let group = settings.usize(&zero("mics_shard_size"));
    let secondary = settings.usize(&zero("zero_hpz_partition_size"));
    for (name, size, is_on) in
        [("mics_shard_size", group, group > 0), ("zero_hpz_partition_size", secondary, secondary > 1)]
    {
        let name = zero(name);
        if is_on && stage < 3 {
            let message = format!("`{name}` needs stage 3, and the stage is {stage}");
            problems.push(settings.problem(message, &[&name, "zero_optimization.stage"]));
        }
        if is_on {
            divides(block, &name, size, ranks.n, problems);
        }
    }
    if group > 0 && secondary > 1 {
        let names = [zero("mics_shard_size"), zero("zero_hpz_partition_size")];
        settings.report(
            problems,
            "`mics_shard_size` and `zero_hpz_partition_size` exclude each other",
            &[&names[0], &names[1]],
            "both keep parameters near: shard states in groups, or keep a second copy",
        );
    }
    let asks = |name: &str| settings.bool(&zero(name));
    let quantized = Quantized {
        weights: asks("zero_quantized_weights"),
        frozen_weights: asks("zero_quantized_nontrainable_weights"),
        gradients: asks("zero_quantized_gradients"),
        machine: None,
    };
    for name in ["zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"]
        .map(zero)
    {
        if settings.bool(&name) && stage < 3 {
            let what = format!("`{name}` needs stage 3, and the stage is {stage}");
            let help = "write \"stage\": 3; other stages send gradients and weights as they are";
            settings.report(problems, what, &[&name, "zero_optimization.stage"], help);
        }
    }
    ShardArgs {
        optimizer: from(1),
        gradients: from(2),
        parameters: from(3),
        lifetime: Lifetime::OneUse,
        group: if group > 0 { ShardGroup::Ranks(group) } else { ShardGroup::World },
        secondary: (secondary > 1).then_some(secondary),
        prefetch: elems("stage3_prefetch_bucket_size", Elems::NineTenthsOfHiddenSquared),
        max_live: elems("stage3_max_live_parameters", Elems::Count(1_000_000_000)),
        persistence: elems("stage3_param_persistence_threshold", Elems::TenHidden),
        reduce_bucket: elems("reduce_bucket_size", Elems::HiddenSquared),
        overlap: settings.said(&zero("overlap_comm")).is_none() || settings.bool(&zero("overlap_comm")),
        reduce_dtype: match settings.text("communication_data_type").as_deref() {
            Some("fp16" | "float16") => Some(DType::F16),
            Some("bf16" | "bfloat16") => Some(DType::BF16),
            // f64 sums are not there; f32 is what is nearest to it.
            Some(_) => Some(DType::F32),
            None => None,
        },
        quantized,
        offload_optimizer: offload_optimizer.flatten(),
        offload_parameters: offload_parameters.flatten(),
        whole_weights_on_save: settings.bool(&zero("stage3_gather_16bit_weights_on_model_save"))
            || settings.bool(&zero("stage3_gather_fp16_weights_on_model_save")),
        state_dict: StateDict::Sharded,
        ..ShardArgs::UNSAID
    }
}

fn stage(block: &Dialect, notes: &mut Vec<String>, problems: &mut Problems) -> i64 {
    if block.settings.said("zero_optimization").is_some() {
        let stage = i64::from(block.settings.bool("zero_optimization"));
        notes.push(format!(
            "\"zero_optimization\": {} is an older form; it means {{\"stage\": {stage}}}",
            stage == 1
        ));
        return stage;
    }
    let stage = block.settings.int("zero_optimization.stage");
    if stage > 3 {
        block.settings.report(
            problems,
            format!("there is no stage {stage}"),
            &["zero_optimization.stage"],
            "stages are 0 (replicated), 1 (optimizer state sharded), 2 (also gradients), 3 (also parameters)",
        );
    }
    stage
}

/// Where one kind of state is offloaded to, if it is; `None` where it lies anyway. `older` are keys that say `cpu`.
fn offload(
    block: &Dialect,
    name: &str,
    older: &[&str],
    on_gpus: bool,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> Option<Option<Offload>> {
    let device_key = format!("{name}.device");
    let mut device = block.settings.text(&device_key).unwrap_or_default();
    for older in older {
        let is_on = block.settings.bool(&format!("zero_optimization.{older}"));
        if is_on && block.settings.said(&device_key).is_none() {
            notes.push(format!("\"{older}\": true is an older form of {name}.device \"cpu\""));
            device = "cpu".to_owned();
        }
    }
    match device.as_str() {
        "cpu" => {
            if !on_gpus {
                notes.push(format!(
                    "{name} to cpu: ranks are CPU processes, which have it in main memory anyway"
                ));
            }
            let elems = block.settings.usize("zero_optimization.sub_group_size").max(1);
            let sub_group_elems = elems.min(Offload::TO_MEMORY.sub_group_elems);
            Some(on_gpus.then_some(Offload { sub_group_elems, ..Offload::TO_MEMORY }))
        }
        "nvme" => {
            let path_key = format!("{name}.nvme_path");
            let path = block.settings.text(&path_key);
            if path.is_none() {
                let message = format!("`{name}` to nvme needs `nvme_path`");
                let help = "write \"nvme_path\": \"…\", a folder on a fast disk";
                block.settings.report(problems, message, &[&device_key], help);
            }
            Some(Some(Offload {
                dir: Some(PathBuf::from(path.unwrap_or_default())),
                sub_group_elems: block.settings.usize("zero_optimization.sub_group_size").max(1),
                buffers: block.settings.usize(&format!("{name}.buffer_count")),
            }))
        }
        _ => None,
    }
}

/// How the loss is scaled.
pub fn loss_scale(block: &Dialect, problems: &mut Problems) -> LossScale {
    const POWER: &str = "fp16.initial_scale_power";
    const LEAST: &str = "fp16.min_loss_scale";
    let settings = &block.settings;
    let fixed = settings.f64("fp16.loss_scale");
    if fixed > 0.0 {
        return LossScale::Static(fixed);
    }
    let power = settings.int(POWER);
    let min_scale = settings.f64(LEAST);
    // 2^120 still leaves room for gradients in f32.
    if power > 120 {
        let message = format!("`{POWER}` is {power}, and 2^{power} times a loss is infinite");
        settings.report(problems, message, &[POWER], "the default is 16");
    }
    let first = 2f64.powi(power.clamp(0, 120) as i32);
    if min_scale > first {
        let message = format!("`{LEAST}` ({min_scale}) is greater than the first scale ({first})");
        settings.report(problems, message, &[LEAST, POWER], "the default is 1");
    }
    LossScale::Dynamic {
        initial_power: power.clamp(0, 120) as u32,
        growth_interval: settings.int("fp16.loss_scale_window").unsigned_abs(),
        hysteresis: u32::try_from(settings.int("fp16.hysteresis")).unwrap_or(u32::MAX),
        consecutive_hysteresis: settings.bool("fp16.consecutive_hysteresis"),
        min_scale,
    }
}
