//! Which activations are recomputed: the one answer of all keys about it.

use oarlock::config::Recompute;
use oarlock_config::dialect::{Dialect, Dialects, deepspeed_keys, fsdp_keys};
use oarlock_config::settings::keys::{Key, Row};
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{Setting, Settings, at};
use oarlock_config::settings::value::{Value, boolean};

use super::table as keys;

const FULL: Recompute = Recompute::Units { every: 1 };

/// The answer of all keys; those that differ are reported together.
pub fn recompute(settings: &Settings, dialects: &Dialects, problems: &mut Problems) -> Recompute {
    const OWN: Key<String> = keys::ACTIVATION_CHECKPOINTING;
    let [on, off, own] =
        [keys::GRADIENT_CHECKPOINTING.row, keys::DISABLE_GRADIENT_CHECKPOINTING.row, OWN.row]
            .map(|key| settings.setting(key));
    let mut requested: Vec<(&Setting, Recompute)> = Vec::new();
    if on.is_written() {
        requested.push((on, if is_true(on) { FULL } else { Recompute::None }));
    }
    if is_true(off) {
        requested.push((off, Recompute::None));
    }
    if let Value::Text(text) = &own.value
        && own.is_written()
    {
        match parse(text) {
            Some(recompute) => requested.push((own, recompute)),
            None => {
                let message = format!("`{OWN}` takes none, full, every-N, attention or mlp, not `{text}`");
                settings.report(problems, message, &[OWN.row], "every-2 recomputes every second unit");
            }
        }
    }
    let deepspeed =
        of_block(&dialects.deepspeed, deepspeed_keys::ACTIVATION_CHECKPOINTING_NUMBER_CHECKPOINTS.row);
    let fsdp = of_block(&dialects.fsdp, fsdp_keys::ACTIVATION_CHECKPOINTING.row);
    requested.extend(deepspeed.into_iter().chain(fsdp).map(|setting| (setting, FULL)));
    if let Some(fsdp) = fsdp.filter(|_| is_true(on)) {
        let message = "`gradient_checkpointing` and FSDP's `activation_checkpointing` are both on";
        problems.push(at(Problem::new(message), &[on, fsdp]).help("keep one of them"));
        return FULL;
    }
    let Some((first, recompute)) = requested.first().copied() else { return Recompute::None };
    if let Some((other, _)) = requested.iter().find(|(_, other)| *other != recompute) {
        let message = format!("`{}` and `{}` differ", first.key.name, other.key.name);
        problems.push(
            at(Problem::new(message), &[first, other])
                .help("both select the recomputed activations; keep one of them"),
        );
    }
    recompute
}

/// Whether what recomputed units keep is to wait in main memory.
pub fn offloads(dialects: &Dialects) -> bool {
    let is_on = |block: &Option<Dialect>, key| block.as_ref().is_some_and(|block| block.settings.get(key));
    is_on(&dialects.deepspeed, deepspeed_keys::ACTIVATION_CHECKPOINTING_CPU_CHECKPOINTING)
        || is_on(&dialects.fsdp, fsdp_keys::ACTIVATION_CHECKPOINTING_OFFLOAD)
}

/// The setting of a block, if it switches recomputation on.
fn of_block<'d>(block: &'d Option<Dialect>, key: &'static Row) -> Option<&'d Setting> {
    let setting = block.as_ref()?.settings.setting(key);
    matches!(setting.value, Value::Bool(true) | Value::Int(_)).then_some(setting)
}

fn is_true(setting: &Setting) -> bool {
    matches!(setting.value, Value::Bool(true))
}

fn parse(text: &str) -> Option<Recompute> {
    if let Some(on) = boolean(text) {
        return Some(if on { FULL } else { Recompute::None });
    }
    if let Some(every) = text.strip_prefix("every-") {
        let every = every.parse().ok().filter(|every| *every > 0)?;
        return Some(Recompute::Units { every });
    }
    match text {
        "none" => Some(Recompute::None),
        "full" => Some(FULL),
        _ => {
            let (mut attention, mut mlp) = (false, false);
            for part in text.split([',', '+']).map(str::trim) {
                match part {
                    "attention" => attention = true,
                    "mlp" => mlp = true,
                    _ => return None,
                }
            }
            Some(Recompute::Parts { attention, mlp })
        }
    }
}
