//! Which activations are recomputed: every key that asks for it, in one answer.

use oarlock::config::Recompute;

use oarlock::settings::dialect::{Dialect, Dialects};
use oarlock::settings::problem::{Problem, Problems};
use oarlock::settings::resolve::{Setting, Settings, at};
use oarlock::settings::value::{Value, boolean};

const FULL: Recompute = Recompute::Units { every: 1 };

/// The answer of all keys; those that differ are reported together.
pub fn recompute(settings: &Settings, dialects: &Dialects, problems: &mut Problems) -> Recompute {
    let (on, off) = (settings.get("gradient_checkpointing"), settings.get("disable_gradient_checkpointing"));
    let own = settings.get("activation_checkpointing");
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
            None => problems.push(
                at(
                    Problem::new(format!(
                        "`activation_checkpointing` takes none, full, every-N, attention or mlp, not `{text}`"
                    )),
                    &[own],
                )
                .help("every-2 recomputes every second unit"),
            ),
        }
    }
    let said = |block: &'_ Option<Dialect>, name: &str| {
        block.as_ref().is_some_and(|block| match &block.settings.get(name).value {
            Value::Bool(on) => *on,
            Value::Int(_) => true,
            _ => false,
        })
    };
    for (block, name) in [
        (&dialects.deepspeed, "activation_checkpointing.number_checkpoints"),
        (&dialects.fsdp, "activation_checkpointing"),
    ] {
        if said(block, name)
            && let Some(block) = block
        {
            requested.push((block.settings.get(name), FULL));
        }
    }
    if said(&dialects.fsdp, "activation_checkpointing")
        && is_true(on)
        && let Some(block) = &dialects.fsdp
    {
        let both = [on, block.settings.get("activation_checkpointing")];
        problems.push(
            at(
                Problem::new("`gradient_checkpointing` and FSDP's `activation_checkpointing` are both on"),
                &both,
            )
            .help("keep one of them"),
        );
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
