//! The variables by which a program that uses Accelerate learns what it was started with.

use crate::config::accelerate::keys;
use crate::config::accelerate::keys::{FLAGS, OF_DEEPSPEED, OF_FSDP, PRECISION, Variable};
use crate::config::accelerate::{File, exported};
use crate::config::resolve::Settings;

use super::strategy::{DistributedType, Strategy};

/// The variables of a launch; `paths` is PYTHONPATH, `here` the working directory.
pub(super) fn variables(
    settings: &Settings,
    file: Option<&File>,
    strategy: &Strategy,
    paths: Option<&str>,
    here: &str,
) -> Vec<(String, String)> {
    let mut out = Exports { settings, variables: Vec::new() };
    let kind = strategy.kind;
    if settings.get(keys::DEBUG) {
        out.put("ACCELERATE_DEBUG_MODE", "true");
    }
    if let Some(ids) = settings.get(keys::GPU_IDS).filter(|ids| *ids != "all") {
        out.put("CUDA_VISIBLE_DEVICES", ids);
    }
    if strategy.cpu || kind == DistributedType::No {
        out.put("ACCELERATE_USE_CPU", if strategy.cpu { "True" } else { "False" });
    }
    if strategy.cpu {
        out.put("KMP_AFFINITY", "granularity=fine,compact,1,0");
        out.put("KMP_BLOCKTIME", "1");
    }
    let precision = settings.get(keys::MIXED_PRECISION).unwrap_or("no");
    let fp8 = precision == "fp8";
    out.put(PRECISION, precision);
    if fp8 {
        out.fp8();
    }
    match kind {
        DistributedType::DeepSpeed => {
            let paths = paths.map(|paths| paths.split(':').filter(|path| !path.is_empty()).collect());
            let paths: Vec<&str> = paths.unwrap_or_default();
            out.put("PYTHONPATH", paths.into_iter().chain([here]).collect::<Vec<_>>().join(":"));
            out.put("ACCELERATE_CONFIG_DS_FIELDS", fields(settings, file).to_lowercase());
            out.put("ACCELERATE_USE_DEEPSPEED", "true");
            OF_DEEPSPEED.iter().for_each(|variable| out.setting(variable));
        }
        _ => out.dynamo(),
    }
    if kind == DistributedType::Fsdp {
        out.put("ACCELERATE_USE_FSDP", "true");
        OF_FSDP.iter().for_each(|variable| out.setting(variable));
        if let Some(names) = file.and_then(|file| exported(file.own.setting(keys::FSDP_IGNORED_MODULES))) {
            out.put("FSDP_IGNORED_MODULES", names);
        }
    }
    if kind == DistributedType::MegatronLm {
        out.put("ACCELERATE_USE_MEGATRON_LM", "true");
        out.prefixed("megatron_lm_", "");
    }
    if settings.get(keys::ENABLE_CPU_AFFINITY) {
        out.put("ACCELERATE_CPU_AFFINITY", "1");
    }
    if parallel(settings, file) && matches!(kind, DistributedType::DeepSpeed | DistributedType::Fsdp) {
        out.put("ACCELERATE_USE_PARALLELISM_CONFIG", "true");
        out.prefixed("parallelism_config_", "");
        let (cp, sp) =
            (settings.get(keys::PARALLELISM_CONFIG_CP_SIZE), settings.get(keys::PARALLELISM_CONFIG_SP_SIZE));
        // What belongs to ranks that there are not is left out.
        out.variables.retain(|(name, _)| match name.strip_prefix("PARALLELISM_CONFIG_") {
            Some("CP_COMM_STRATEGY") => cp > 1,
            Some("SP_SEQ_LENGTH" | "SP_SEQ_LENGTH_IS_VARIABLE" | "SP_ATTN_IMPLEMENTATION") => sp > 1,
            _ => true,
        });
    }
    out.variables
}

/// Whether the flags `parallelism_config_` count.
pub(super) fn parallel(settings: &Settings, file: Option<&File>) -> bool {
    let in_file = |file: &File| {
        file.settings.iter().any(|s| s.key.name.starts_with("parallelism_config_") && s.location().is_some())
    };
    settings.get(keys::USE_PARALLELISM_CONFIG) || file.is_some_and(in_file)
}

/// What a configuration file of DeepSpeed does not say here: the keys of the block beside it, and precision where the
/// file of Accelerate says it.
fn fields(settings: &Settings, file: Option<&File>) -> String {
    let Some(file) = file else { return String::new() };
    let mut names = file.deepspeed.clone();
    let by_flag = settings.setting(keys::MIXED_PRECISION).location().is_some_and(|location| {
        file.settings
            .setting(keys::MIXED_PRECISION)
            .location()
            .is_none_or(|own| !std::sync::Arc::ptr_eq(&own.source, &location.source))
    });
    if !by_flag && file.settings.setting(keys::MIXED_PRECISION).is_written() {
        names.push("mixed_precision".to_owned());
    }
    names.join(",")
}

struct Exports<'s> {
    settings: &'s Settings,
    variables: Vec<(String, String)>,
}

impl Exports<'_> {
    fn put(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.variables.push((name.into(), value.into()));
    }

    fn setting(&mut self, variable: &Variable) {
        if let Some(value) = exported(self.settings.setting(variable.flag)) {
            self.put(variable.name, if variable.lower { value.to_lowercase() } else { value });
        }
    }

    /// All flags of a prefix, by their own names behind another prefix.
    fn prefixed(&mut self, prefix: &str, before: &str) {
        for key in FLAGS.iter().filter(|key| key.name.starts_with(prefix)) {
            if let Some(value) = exported(self.settings.setting(key)) {
                self.put(format!("{before}{}", key.name.to_uppercase()), value);
            }
        }
    }

    fn dynamo(&mut self) {
        let backend =
            exported(self.settings.setting(keys::DYNAMO_BACKEND)).unwrap_or_else(|| "no".to_owned());
        self.prefixed("dynamo_", "ACCELERATE_");
        self.variables.retain(|(name, _)| name != "ACCELERATE_DYNAMO_BACKEND");
        self.put("ACCELERATE_DYNAMO_BACKEND", backend.to_uppercase());
    }

    fn fp8(&mut self) {
        const LINEAR: &str = "ACCELERATE_FP8_OVERRIDE_LINEAR_PRECISION";
        self.prefixed("fp8_", "ACCELERATE_");
        let Some(i) = self.variables.iter().position(|(name, _)| name == LINEAR) else { return };
        let (_, value) = self.variables.remove(i);
        let parts = ["FPROP", "DGRAD", "WGRAD"].into_iter().zip(value.split(','));
        let truth = |word: &str| match crate::config::value::boolean(word.trim()) {
            Some(true) => "True",
            _ => "False",
        };
        let parts: Vec<_> = parts
            .map(|(name, value)| (format!("ACCELERATE_FP8_OVERRIDE_{name}"), truth(value).to_owned()))
            .collect();
        self.variables.extend(parts);
    }
}
