//! What a DeepSpeed configuration means: batches and precision as settings of ours, stages as placements.

use std::path::PathBuf;

use oarlock_tensor::DType;

use super::block::{self, Dialect, Ranks, ReadFile, divides};
use super::{deepspeed_keys, methods};
use crate::config::table::{self as keys, MINIMIND_SCHEDULES};
use crate::config::{Elems, Lifetime, LossScale, Offload, Placements, Quantized, ShardingConfig};
use crate::settings::keys::{Key, Row};
use crate::settings::node::Entry;
use crate::settings::problem::{Problem, Problems};
use crate::settings::resolve::{Setting, Settings, at};
use crate::settings::value::{Value, float};

/// Settings that have a key of ours.
const SAME: &[(&Row, &Row)] = &[
    (deepspeed_keys::TRAIN_MICRO_BATCH_SIZE_PER_GPU.row, keys::PER_DEVICE_TRAIN_BATCH_SIZE.row),
    (deepspeed_keys::GRADIENT_ACCUMULATION_STEPS.row, keys::GRADIENT_ACCUMULATION_STEPS.row),
    (deepspeed_keys::GRADIENT_CLIPPING.row, keys::MAX_GRAD_NORM.row),
    (deepspeed_keys::FP16_ENABLED.row, keys::FP16.row),
    (deepspeed_keys::BF16_ENABLED.row, keys::BF16.row),
    (deepspeed_keys::BFLOAT16_ENABLED.row, keys::BF16.row),
    (deepspeed_keys::SEQUENCE_PARALLEL_SIZE.row, keys::SEQUENCE_PARALLEL_SIZE.row),
];

const STAGE: Key<i64> = deepspeed_keys::ZERO_OPTIMIZATION_STAGE;

/// The keys about where one kind of state is offloaded to.
struct OffloadKeys {
    /// The block that they are in.
    block: &'static str,
    device: Key<String>,
    nvme_path: Key<Option<String>>,
    buffer_count: Key<usize>,
    /// Older keys, which say `cpu`.
    older: &'static [Key<bool>],
}

const OPTIMIZER: OffloadKeys = OffloadKeys {
    block: "zero_optimization.offload_optimizer",
    device: deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_OPTIMIZER_DEVICE,
    nvme_path: deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_OPTIMIZER_NVME_PATH,
    buffer_count: deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_OPTIMIZER_BUFFER_COUNT,
    older: &[deepspeed_keys::ZERO_OPTIMIZATION_CPU_OFFLOAD],
};

const PARAMETERS: OffloadKeys = OffloadKeys {
    block: "zero_optimization.offload_param",
    device: deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_PARAM_DEVICE,
    nvme_path: deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_PARAM_NVME_PATH,
    buffer_count: deepspeed_keys::ZERO_OPTIMIZATION_OFFLOAD_PARAM_BUFFER_COUNT,
    older: &[
        deepspeed_keys::ZERO_OPTIMIZATION_CPU_OFFLOAD_PARAM,
        deepspeed_keys::ZERO_OPTIMIZATION_CPU_OFFLOAD_PARAMS,
    ],
};

/// The block that `deepspeed` holds or names.
pub fn read(settings: &Settings, file: &ReadFile<'_>, problems: &mut Problems) -> Option<Dialect> {
    let entries =
        block::entries(settings.setting(keys::DEEPSPEED), "the DeepSpeed configuration", file, problems)?;
    Some(Dialect::deepspeed(&entries, problems))
}

/// What the block says about keys of ours.
pub fn entries(block: &Dialect, settings: &Settings, problems: &mut Problems) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (theirs, ours) in SAME {
        if let Some((setting, location)) = block.settings.said_at(*theirs)
            && !setting.broken
        {
            entries.push(Entry::new(ours.name, setting.value.to_string(), location));
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
    let [theirs, ours] =
        [block.settings.said(deepspeed_keys::SCHEDULER_TYPE)?, settings.setting(keys::LR_SCHEDULER_TYPE)];
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
/// stays, which the note says. Where the run says a rate itself, both must agree with it, as in transformers.
pub fn rate_of_scheduler(entries: &mut Vec<Entry>, settings: &Settings) -> Option<String> {
    let is_rate = |entry: &&Entry| entry.key == "learning_rate";
    let rates: Vec<&Entry> = entries.iter().filter(is_rate).collect();
    let [of_optimizer, of_scheduler] = rates.as_slice() else { return None };
    let [first, second] = [of_optimizer, of_scheduler].map(|entry| entry.value.to_yaml());
    if settings.setting(keys::LEARNING_RATE).is_written() || float(&first) == float(&second) {
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
    const FACTORS: [Key<usize>; 2] = [keys::PER_DEVICE_TRAIN_BATCH_SIZE, keys::GRADIENT_ACCUMULATION_STEPS];
    let (Some(all), [micro, steps]) =
        (block.settings.said(deepspeed_keys::TRAIN_BATCH_SIZE), FACTORS.map(|key| settings.setting(key)))
    else {
        return;
    };
    let said = |setting: &Setting| match setting.value {
        Value::Int(x) if setting.is_written() => Some(x),
        _ => None,
    };
    let differs = |theirs: Key<Option<usize>>, ours| {
        block.settings.said(theirs).is_some_and(|said| !said.value.agrees(ours))
    };
    let Some(ranks) = settings.known(keys::NUM_PROCESSES) else { return };
    let ranks = i64::try_from(ranks).unwrap_or(i64::MAX).max(1);
    // Ranks that divide sequences among them have one batch together.
    let parts = i64::try_from(settings.get(keys::SEQUENCE_PARALLEL_SIZE)).unwrap_or(i64::MAX).max(1);
    let ranks = (ranks / parts).max(1);
    let Value::Int(total) = all.value else { return };
    if differs(deepspeed_keys::TRAIN_MICRO_BATCH_SIZE_PER_GPU, &micro.value)
        || differs(deepspeed_keys::GRADIENT_ACCUMULATION_STEPS, &steps.value)
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
        problems.push(mismatch(format!("`train_batch_size` ({total}) is not a multiple of {said}")));
        return;
    }
    let derived = if micro_said.is_some() { FACTORS[1] } else { FACTORS[0] };
    settings.derive(derived, Value::Int(rest), "train_batch_size");
}

/// Placements, sizes and offloading.
pub fn shard(
    block: &Dialect,
    ranks: Ranks,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> ShardingConfig<Elems> {
    let settings = &block.settings;
    let stage = stage(block, notes, problems);
    let on_gpus = ranks.on_gpus;
    let offload_optimizer = offload(block, &OPTIMIZER, on_gpus, notes, problems);
    let offload_parameters = offload(block, &PARAMETERS, on_gpus, notes, problems);
    for (offloaded, keys, least) in
        [(&offload_optimizer, &OPTIMIZER, 1), (&offload_parameters, &PARAMETERS, 3)]
    {
        if offloaded.is_some() && stage < least {
            let name = keys.block;
            let what = format!("`{name}` needs stage {least}{}", if least == 1 { " or higher" } else { "" });
            let written = [keys.device.row, STAGE.row, deepspeed_keys::ZERO_OPTIMIZATION.row];
            let help = format!("write \"stage\": {least}, or \"device\": \"none\"");
            settings.report(problems, format!("{what}, and the stage is {stage}"), &written, help);
        }
    }

    let (group_key, secondary_key) = (
        deepspeed_keys::ZERO_OPTIMIZATION_MICS_SHARD_SIZE,
        deepspeed_keys::ZERO_OPTIMIZATION_ZERO_HPZ_PARTITION_SIZE,
    );
    let group = usize::try_from(settings.get(group_key)).unwrap_or(0);
    let secondary = settings.get(secondary_key);
    for (key, size, is_on) in
        [(group_key.row, group, group > 0), (secondary_key.row, secondary, secondary > 1)]
    {
        if is_on && stage < 3 {
            let message = format!("`{}` needs stage 3, and the stage is {stage}", key.name);
            problems.push(settings.problem(message, &[key, STAGE.row]));
        }
        if is_on {
            divides(block, key, size, ranks.n, problems);
        }
    }
    if group > 0 && secondary > 1 {
        settings.report(
            problems,
            "`mics_shard_size` and `zero_hpz_partition_size` are mutually exclusive",
            &[group_key.row, secondary_key.row],
            "both keep parameters near: shard states in groups, or keep a second copy",
        );
    }
    let quantizing = [
        deepspeed_keys::ZERO_OPTIMIZATION_ZERO_QUANTIZED_WEIGHTS,
        deepspeed_keys::ZERO_OPTIMIZATION_ZERO_QUANTIZED_NONTRAINABLE_WEIGHTS,
        deepspeed_keys::ZERO_OPTIMIZATION_ZERO_QUANTIZED_GRADIENTS,
    ];
    let [weights, frozen_weights, gradients] = quantizing.map(|key| settings.get(key));
    let quantized = Quantized { weights, frozen_weights, gradients, machine: None };
    for key in quantizing {
        if settings.get(key) && stage < 3 {
            let what = format!("`{key}` needs stage 3, and the stage is {stage}");
            let help = "write \"stage\": 3; other stages send gradients and weights as they are";
            settings.report(problems, what, &[key.row, STAGE.row], help);
        }
    }
    let mut config = ShardingConfig {
        placements: match stage {
            ..=0 => Placements::WHOLE,
            1 => Placements::OPTIMIZER,
            2 => Placements::GRADIENTS,
            3.. => Placements::PARAMETERS,
        },
        lifetime: Lifetime::OneUse,
        group: (group > 0).then_some(group),
        secondary: (secondary > 1).then_some(secondary),
        overlap: settings.said(deepspeed_keys::ZERO_OPTIMIZATION_OVERLAP_COMM).is_none()
            || settings.get(deepspeed_keys::ZERO_OPTIMIZATION_OVERLAP_COMM),
        reduce_dtype: match settings.get(deepspeed_keys::COMMUNICATION_DATA_TYPE) {
            Some("fp16" | "float16") => Some(DType::F16),
            Some("bf16" | "bfloat16") => Some(DType::BF16),
            // f64 sums are not there; f32 is what is nearest to it.
            Some(_) => Some(DType::F32),
            None => None,
        },
        quantized,
        offload_optimizer: offload_optimizer.flatten(),
        offload_params: offload_parameters.flatten(),
        ..ShardingConfig::default()
    };
    for (key, auto, field) in deepspeed_keys::SIZES {
        if let Some(field) = field {
            *field(&mut config) = match settings.setting(*key).is_auto() {
                true => *auto,
                false => Elems::Count(settings.get(*key)),
            };
        }
    }
    config
}

fn stage(block: &Dialect, notes: &mut Vec<String>, problems: &mut Problems) -> i64 {
    if block.settings.said(deepspeed_keys::ZERO_OPTIMIZATION).is_some() {
        let stage = i64::from(block.settings.get(deepspeed_keys::ZERO_OPTIMIZATION));
        notes.push(format!(
            "\"zero_optimization\": {} is an older form; it means {{\"stage\": {stage}}}",
            stage == 1
        ));
        return stage;
    }
    let stage = block.settings.get(STAGE);
    if stage > 3 {
        block.settings.report(
            problems,
            format!("there is no stage {stage}"),
            &[STAGE.row],
            "stages are 0 (replicated), 1 (optimizer state sharded), 2 (also gradients), 3 (also parameters)",
        );
    }
    stage
}

/// Where one kind of state is offloaded to, if it is; `None` where it lies anyway.
fn offload(
    block: &Dialect,
    keys: &OffloadKeys,
    on_gpus: bool,
    notes: &mut Vec<String>,
    problems: &mut Problems,
) -> Option<Option<Offload>> {
    let (name, settings) = (keys.block, &block.settings);
    let mut device = settings.get(keys.device);
    for key in keys.older {
        if settings.get(*key) && settings.said(keys.device).is_none() {
            let older = key.name().rsplit('.').next().unwrap_or_default();
            notes.push(format!("\"{older}\": true is an older form of {name}.device \"cpu\""));
            device = "cpu";
        }
    }
    match device {
        "cpu" => {
            if !on_gpus {
                notes.push(format!(
                    "{name} to cpu: ranks are CPU processes, which have it in main memory anyway"
                ));
            }
            let elems = settings.get(deepspeed_keys::ZERO_OPTIMIZATION_SUB_GROUP_SIZE).max(1);
            let sub_group_elems = elems.min(Offload::TO_MEMORY.sub_group_elems);
            Some(on_gpus.then_some(Offload { sub_group_elems, ..Offload::TO_MEMORY }))
        }
        "nvme" => {
            let path = settings.get(keys.nvme_path);
            if path.is_none() {
                let message = format!("`{name}` to nvme needs `nvme_path`");
                let help = "write \"nvme_path\": \"…\", a folder on a fast disk";
                settings.report(problems, message, &[keys.device.row], help);
            }
            Some(Some(Offload {
                dir: Some(PathBuf::from(path.unwrap_or_default())),
                sub_group_elems: settings.get(deepspeed_keys::ZERO_OPTIMIZATION_SUB_GROUP_SIZE).max(1),
                buffers: settings.get(keys.buffer_count),
            }))
        }
        _ => None,
    }
}

/// Whether every checkpoint has whole weights beside the sharded ones.
pub fn whole_weights_on_save(block: &Dialect) -> bool {
    let settings = &block.settings;
    settings.get(deepspeed_keys::ZERO_OPTIMIZATION_STAGE3_GATHER_16BIT_WEIGHTS_ON_MODEL_SAVE)
        || settings.get(deepspeed_keys::ZERO_OPTIMIZATION_STAGE3_GATHER_FP16_WEIGHTS_ON_MODEL_SAVE)
}

/// How the loss is scaled.
pub fn loss_scale(block: &Dialect, problems: &mut Problems) -> LossScale {
    const POWER: Key<i64> = deepspeed_keys::FP16_INITIAL_SCALE_POWER;
    const LEAST: Key<f64> = deepspeed_keys::FP16_MIN_LOSS_SCALE;
    let settings = &block.settings;
    let fixed = settings.get(deepspeed_keys::FP16_LOSS_SCALE);
    if fixed > 0.0 {
        return LossScale::Static(fixed);
    }
    let power = settings.get(POWER);
    let min_scale = settings.get(LEAST);
    // 2^120 still leaves room for gradients in f32.
    if power > 120 {
        let message = format!("`{POWER}` is {power}, and 2^{power} times a loss is infinite");
        settings.report(problems, message, &[POWER.row], "the default is 16");
    }
    let first = 2f64.powi(power.clamp(0, 120) as i32);
    if min_scale > first {
        let message = format!("`{LEAST}` ({min_scale}) is greater than the first scale ({first})");
        settings.report(problems, message, &[LEAST.row, POWER.row], "the default is 1");
    }
    LossScale::Dynamic {
        initial_power: power.clamp(0, 120) as u32,
        growth_interval: settings.get(deepspeed_keys::FP16_LOSS_SCALE_WINDOW),
        hysteresis: u32::try_from(settings.get(deepspeed_keys::FP16_HYSTERESIS)).unwrap_or(u32::MAX),
        consecutive_hysteresis: settings.get(deepspeed_keys::FP16_CONSECUTIVE_HYSTERESIS),
        min_scale,
    }
}
