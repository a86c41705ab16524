//! The method `freeze`: some layers of a decoder are trained, and all else stays.

use std::collections::BTreeSet;

use oarlock_config::config::{FreezeArgs, TrainedLayers};
use oarlock_engine::{Error, Result, nn};

use crate::model::Decoder;

/// Freezes all parameters of a decoder that is not prepared yet, but for those of the layers and modules that `args` names.
///
/// # Errors
/// Modules that the model does not have, layers that cannot be spread evenly, and a choice of nothing.
pub fn freeze(model: &Decoder, args: &FreezeArgs) -> Result<()> {
    let n_layers = model.config().layers.len();
    let layers: BTreeSet<usize> = match args.layers {
        TrainedLayers::Last(n) => (n_layers.saturating_sub(n)..n_layers).collect(),
        TrainedLayers::First(n) => (0..n.min(n_layers)).collect(),
        TrainedLayers::Spread(n) if n == 0 || !n_layers.is_multiple_of(n) => {
            return Err(Error::Model(format!(
                "`num_layers` {n_layers} should be divisible by `num_layer_trainable` {n} \
                 (freeze_trainable_layers with use_llama_pro)"
            )));
        }
        TrainedLayers::Spread(n) => (1..=n).map(|part| part * (n_layers / n) - 1).collect(),
    };
    let params = nn::parameters(model);
    let (mut inside, mut outside) = (BTreeSet::new(), BTreeSet::new());
    for named in &params {
        match place(&named.name) {
            Place::Layer(module) => inside.insert(module),
            Place::Outside(module) => outside.insert(module),
        };
    }
    check(&args.modules, &inside)?;
    check(&args.extra, &outside)?;
    // As in LLaMA-Factory, a name is looked for anywhere in that of a parameter: `norm` is in those of all layers too.
    let mut parts = args.extra.clone();
    for layer in layers {
        match args.modules.is_empty() {
            true => parts.push(format!(".{layer}.")),
            false => parts.extend(args.modules.iter().map(|module| format!(".{layer}.{module}"))),
        }
    }
    let is_trained = |name: &str| parts.iter().any(|part| name.contains(part.as_str()));
    let (trained, frozen): (Vec<_>, Vec<_>) = params.iter().partition(|named| is_trained(&named.name));
    if trained.is_empty() {
        return Err(Error::Model(
            "nothing is trained: freeze_trainable_layers is 0 and freeze_extra_modules names no module; name \
             layers or modules"
                .to_owned(),
        ));
    }
    frozen.iter().for_each(|named| named.param.freeze());
    Ok(())
}

/// Where a parameter is.
enum Place<'n> {
    /// In a layer, in the module of this name.
    Layer(&'n str),
    /// In a module outside of the layers.
    Outside(&'n str),
}

fn place(name: &str) -> Place<'_> {
    let in_layer = || {
        let (_, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        Some(Place::Layer(rest.split('.').next()?))
    };
    in_layer().unwrap_or_else(|| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        Place::Outside(name.split('.').next().unwrap_or(name))
    })
}

fn check(modules: &[String], known: &BTreeSet<&str>) -> Result<()> {
    match modules.iter().find(|module| !known.contains(module.as_str())) {
        Some(module) => Err(Error::Model(format!(
            "Module {module} is not found, please choose from {}",
            known.iter().copied().collect::<Vec<_>>().join(", ")
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DecoderConfig;

    fn trained(args: &FreezeArgs) -> Result<Vec<String>> {
        let model = Decoder::new(DecoderConfig::llama(100, 64, 4, 16), 16).unwrap();
        freeze(&model, args)?;
        let trained = nn::parameters(&model).into_iter().filter(|named| !named.param.is_frozen());
        Ok(trained.map(|named| named.name).collect())
    }

    fn args(layers: TrainedLayers, modules: &[&str], extra: &[&str]) -> FreezeArgs {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        FreezeArgs { layers, modules: owned(modules), extra: owned(extra) }
    }

    #[test]
    fn layers_and_modules_are_those_of_llama_factory() {
        let all = trained(&args(TrainedLayers::Last(2), &[], &[])).unwrap();
        assert!(
            all.iter().all(|name| name.starts_with("model.layers.2.") || name.starts_with("model.layers.3."))
        );
        assert_eq!(all.len(), 18);
        let mlp = trained(&args(TrainedLayers::First(1), &["mlp"], &["embed_tokens"])).unwrap();
        assert_eq!(
            mlp,
            [
                "model.embed_tokens.weight",
                "model.layers.0.mlp.gate_proj.weight",
                "model.layers.0.mlp.up_proj.weight",
                "model.layers.0.mlp.down_proj.weight",
            ]
        );
        // A part of a name is enough: the norms of all layers are trained beside the last one.
        let norms = trained(&args(TrainedLayers::Last(1), &["mlp"], &["norm"])).unwrap();
        let of_norms = |name: &&String| name.contains("norm");
        assert_eq!((norms.len(), norms.iter().filter(of_norms).count()), (3 + 2 * 4 + 1, 2 * 4 + 1));
        let spread = trained(&args(TrainedLayers::Spread(2), &["self_attn"], &[])).unwrap();
        assert_eq!(spread[0], "model.layers.1.self_attn.q_proj.weight");
        assert_eq!(spread[4], "model.layers.3.self_attn.q_proj.weight");
        assert_eq!(spread.len(), 8);
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        let error = |args: FreezeArgs| trained(&args).unwrap_err().to_string();
        let unknown = error(args(TrainedLayers::Last(1), &["attn"], &[]));
        let expected = "Module attn is not found, please choose from input_layernorm, mlp, \
                        post_attention_layernorm, self_attn";
        assert_eq!(unknown, expected);
        assert!(error(args(TrainedLayers::Last(1), &[], &["mlp"])).contains("embed_tokens, lm_head, norm"));
        assert!(error(args(TrainedLayers::Spread(3), &[], &[])).contains("should be divisible"));
        assert!(error(args(TrainedLayers::Last(0), &[], &[])).contains("nothing is trained"));
    }
}
