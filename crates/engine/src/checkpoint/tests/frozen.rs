//! Checkpoints that leave frozen parameters out: what comes back beside them, and which models are refused.

use super::*;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::{Frozen, MergeOptions, load, merge_weights};
use crate::nn;

/// A model whose embedding is frozen.
fn frozen() -> Model {
    let model = Model::new(90, true);
    nn::freeze(&model.embed);
    model
}

/// Saves a pattern without the embedding.
fn save_without(dir: &Path, n: usize, placements: Placements) {
    on_ranks(n, |comm| {
        let model = frozen();
        let mut engine = engine_of(&model, comm, placements, DType::F32);
        fill(&mut engine, 7, 5);
        let contents = Contents { frozen: Frozen::Exclude, ..Contents::state(client(7)) };
        save(dir, comm, &engine, contents).unwrap();
    });
}

/// Gives the embedding the values of a pattern.
fn fill_base(engine: &mut Engine, salt: u64) {
    for slice in engine.needed_slices().iter().filter(|slice| slice.name == "embed.weight") {
        let values: Vec<f32> =
            slice.elements.clone().map(|i| pattern(&slice.name, slice.kind, i, salt)).collect();
        engine.write_state(slice, &values).unwrap();
    }
    engine.finish_load(3).unwrap();
}

#[test]
fn any_number_of_ranks_and_any_placement_goes_on_beside_the_same_base() {
    let folder = tempfile::tempdir().unwrap();
    let mut fingerprints = Vec::new();
    let ways = [Placements::WHOLE, Placements::OPTIMIZER, Placements::GRADIENTS, Placements::PARAMETERS];
    for (saving, placements) in [1, 2, 3, 4].into_iter().zip(ways) {
        let dir = folder.path().join(format!("checkpoint-{saving}"));
        save_without(&dir, saving, placements);
        let manifest = Manifest::open(&dir).unwrap();
        assert!(!manifest.parameters.contains_key("embed.weight") && manifest.parameters.len() == 3);
        fingerprints.push(manifest.frozen);
        for (loading, placements) in [3, 4, 1, 2].into_iter().zip(ways) {
            on_ranks(loading, |comm| {
                let model = frozen();
                let mut engine = engine_of(&model, comm, placements, DType::F32);
                fill_base(&mut engine, 5);
                assert_eq!(load(&dir, comm, &mut engine).unwrap(), client(7));
                assert!(is_pattern(&engine, 5), "{saving} to {loading} {placements:?}");
            });
        }
    }
    assert!(fingerprints[0].len() == 1 && fingerprints.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(fingerprints[0]["embed.weight"].shape, [90, 50]);
}

/// Loads into another model on two ranks, and expects the same refusal and an unchanged model.
fn refused(dir: &Path, dtype: DType, model: impl Fn() -> Model + Sync) -> String {
    let mut errors = on_ranks(2, |comm| {
        let model = model();
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, dtype);
        let before = state_of(&engine);
        let error = load(dir, comm, &mut engine).unwrap_err().to_string();
        assert!(before == state_of(&engine), "a refused checkpoint changes nothing");
        error
    });
    assert_eq!(errors[0], errors[1]);
    errors.swap_remove(0)
}

#[test]
fn another_base_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-7");
    save_without(&dir, 2, Placements::OPTIMIZER);
    let saved = Manifest::open(&dir).unwrap().frozen["embed.weight"].fingerprint.clone();
    let message = refused(&dir, DType::F32, frozen);
    let begin = "it leaves out the frozen parameters, and this model holds others: 1 of 1 differ, first \"embed.weight\" with \
                 the fingerprint ";
    assert!(message.contains(begin), "{message}");
    let end = format!(
        " instead of {saved}; load the base that it was trained on (`load_pretrained`, `load_model`) before the checkpoint, or \
         save the whole model (`Frozen::Include`)"
    );
    assert!(message.ends_with(&end), "{message}");
    let message = refused(&dir, DType::BF16, frozen);
    assert!(
        message.contains("computed in f32 and this one computes in bf16")
            && message.contains("resume in f32"),
        "{message}"
    );
    // A model that trains it, and one of another shape.
    let message = refused(&dir, DType::F32, || Model::new(90, true));
    assert!(message.contains("it lacks exp_avg") && message.ends_with("of \"embed.weight\""), "{message}");
    let other = || {
        let model = Model::new(91, true);
        nn::freeze(&model.embed);
        model
    };
    let message = refused(&dir, DType::F32, other);
    assert!(
        message.ends_with("\"embed.weight\" has the shape [90, 50] in it and [91, 50] in this model"),
        "{message}"
    );
    let options =
        MergeOptions { tag: None, model: None, dtype: None, max_shard_bytes: u64::MAX, overwrite: false };
    let message =
        merge_weights(&dir, &folder.path().join("out"), &options, &lay_out).unwrap_err().to_string();
    assert!(
        message.contains("it leaves out its frozen parameters (1, such as \"embed.weight\"), so"),
        "{message}"
    );
    assert!(message.contains("`save_pretrained`"), "{message}");
    // Of an adapter, a command says more than a function.
    std::fs::write(dir.join("adapter_config.json"), "{}").unwrap();
    let message =
        merge_weights(&dir, &folder.path().join("out"), &options, &lay_out).unwrap_err().to_string();
    let command = format!(
        "`oarlock export model_name_or_path=BASE adapter_name_or_path={} export_dir=OUT`",
        dir.display()
    );
    assert!(message.contains(&command) && !message.contains("Frozen"), "{message}");
}

#[test]
fn all_parameters_may_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-7");
    on_ranks(3, |comm| {
        let model = Model::new(90, true);
        nn::freeze(&model);
        let mut engine = engine_of(&model, comm, Placements::PARAMETERS, DType::F32);
        fill(&mut engine, 7, 5);
        let contents = || Contents { frozen: Frozen::Exclude, ..Contents::state(client(7)) };
        save(&dir, comm, &engine, contents()).unwrap();
        assert_eq!(load(&dir, comm, &mut engine).unwrap(), client(7));
        assert!(is_pattern(&engine, 5));
    });
    let manifest = Manifest::open(&dir).unwrap();
    assert!(manifest.has_state() && manifest.parameters.is_empty() && manifest.frozen.len() == 4);
}
