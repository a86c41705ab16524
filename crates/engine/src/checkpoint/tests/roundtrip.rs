//! What is saved comes back bitwise identical, whatever the ranks and the placement.

use super::*;
use crate::checkpoint::load;
use crate::checkpoint::manifest::Manifest;
use crate::optim;
use crate::shard::ParamGroup;

#[test]
fn any_number_of_ranks_and_any_placement_loads_it_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    for saving in [1, 2, 3, 4] {
        let dir = folder.path().join(format!("checkpoint-{saving}"));
        save_pattern(&dir, saving, 5);
        for loading in [1, 2, 3, 4] {
            for placement in [Placements::OPTIMIZER, Placements::WHOLE, Placements::PARAMETERS] {
                for dtype in [DType::F32, DType::BF16] {
                    on_ranks(loading, |comm| {
                        let model = Model::new(90, true);
                        let mut engine = engine_of(&model, comm, placement, dtype);
                        assert_eq!(load(&dir, comm, &mut engine).unwrap(), client(7));
                        assert!(is_pattern(&engine, 5), "{saving} to {loading} {placement:?} {dtype}");
                        assert_eq!(engine.n_steps(), 7);
                    });
                }
            }
        }
    }
}

#[test]
fn the_state_does_not_depend_on_the_placement_that_saved_it() {
    let folder = tempfile::tempdir().unwrap();
    for (index, (placement, dtype)) in [
        (Placements::WHOLE, DType::F32),
        (Placements::WHOLE, DType::BF16),
        (Placements::OPTIMIZER, DType::BF16),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = folder.path().join(format!("checkpoint-{index}"));
        on_ranks(2, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine_of(&model, comm, placement, dtype);
            fill(&mut engine, 7, 5);
            save(&dir, comm, &engine, Contents::state(client(7))).unwrap();
        });
        on_ranks(3, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
            load(&dir, comm, &mut engine).unwrap();
            assert!(is_pattern(&engine, 5));
        });
        let plan = Manifest::open(&dir).unwrap().plan;
        assert_eq!(
            (plan.dtype, plan.optimizer),
            (dtype.to_string(), format!("{:?}", placement.optimizer).to_lowercase())
        );
    }
}

#[test]
fn working_copies_follow_the_master_weights() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-1");
    save_pattern(&dir, 2, 5);
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::BF16);
        load(&dir, comm, &mut engine).unwrap();
        let weight = model.proj.module().weight.weight().unwrap().to_vec::<half::bf16>().unwrap();
        for (i, found) in weight.iter().enumerate() {
            let expected = half::bf16::from_f32(pattern("proj.weight", "master", i, 5));
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{i}");
        }
    });
}

/// Steps without gradients still move the weights, by the moments and the number of steps done.
pub fn steps(engine: &mut Engine, n: usize) {
    for _ in 0..n {
        let rule = engine.rule().clone();
        let groups = [0.1, 0.0].map(|weight_decay| ParamGroup { rule: rule.clone(), lr: 1e-2, weight_decay });
        engine.step(&groups, 1.0).unwrap();
    }
}

#[test]
fn a_run_goes_on_as_if_it_had_not_stopped() {
    for dtype in [DType::F32, DType::BF16] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("checkpoint-3");
        let uninterrupted = on_ranks(2, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, dtype);
            for slice in engine.needed_slices().iter().filter(|slice| slice.kind != "master") {
                let values: Vec<f32> = slice.elements.clone().map(|i| 1.0 + i as f32 / 7.0).collect();
                engine.write_state(slice, &values).unwrap();
            }
            steps(&mut engine, 3);
            save(&dir, comm, &engine, Contents::state(client(3))).unwrap();
            let saved = state_of(&engine);
            steps(&mut engine, 2);
            assert_ne!(saved, state_of(&engine));
            state_of(&engine)
        });
        let resumed = on_ranks(2, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, dtype);
            load(&dir, comm, &mut engine).unwrap();
            steps(&mut engine, 2);
            state_of(&engine)
        });
        assert!(uninterrupted == resumed);
    }
}

/// Blocks of 8 bits lie on one rank each, whatever the ranks, and are saved as they are.
#[test]
fn states_of_8_bits_go_on_with_the_same_bits_on_any_number_of_ranks() {
    let run = |saving: usize, loading: usize, placement: Placements| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("checkpoint-3");
        let engine = |model: &Model, comm: &Communicator| {
            let rule = OptimizerConfig::default().rule.in_8_bits().unwrap();
            let mut engine = engine_with(rule, model, comm, placement, DType::BF16);
            engine.initialize(&mut SeededInit::new(1, &device())).unwrap();
            engine
        };
        on_ranks(saving, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine(&model, comm);
            for slice in engine.needed_slices().iter().filter(|slice| slice.kind != "master") {
                assert_eq!(slice.shape.sizes() == [47, 65], slice.name == "proj.weight", "{slice:?}");
                // Four codes in each word, and every 65th is a scale.
                let values: Vec<f32> = slice.elements.clone().map(|i| 1.0 + i as f32 / 7.0).collect();
                engine.write_state(slice, &values).unwrap();
            }
            steps(&mut engine, 3);
            save(&dir, comm, &engine, Contents::state(client(3))).unwrap();
        });
        let states = on_ranks(loading, |comm| {
            let model = Model::new(90, true);
            let mut engine = engine(&model, comm);
            load(&dir, comm, &mut engine).unwrap();
            steps(&mut engine, 2);
            state_of(&engine)
        });
        let mut all: Vec<_> = (states.into_iter().flatten())
            .flat_map(|(slice, bits)| {
                let Slice { kind, name, elements, .. } = slice;
                elements.zip(bits).map(move |(at, bits)| (kind, name.clone(), at, bits))
            })
            .collect();
        all.sort();
        all
    };
    let alone = run(1, 1, Placements::WHOLE);
    assert_eq!(
        alone.iter().filter(|(kind, name, ..)| *kind == "exp_avg" && name == "proj.weight").count(),
        47 * 65
    );
    for (saving, loading, placement) in
        [(2, 3, Placements::OPTIMIZER), (3, 2, Placements::PARAMETERS), (4, 1, Placements::OPTIMIZER)]
    {
        assert!(run(saving, loading, placement) == alone, "{saving} to {loading}, {placement:?}");
    }
}

#[test]
fn the_accelerator_saves_and_loads() {
    use crate::accelerator::{Accelerator, AcceleratorConfig};
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("any name");
    let prepared = || {
        let config = AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() };
        let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
        let model = Model::new(90, true);
        let adamw = optim::adamw(&model);
        let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
        (accelerator, model, optimizer)
    };
    let (accelerator, model, _optimizer) = prepared();
    fill(model.state.optimizer().unwrap().engine_mut(), 11, 8);
    let mut saver = Saver::default();
    accelerator.begin_save(&mut saver, &dir, Contents::state(client(11))).unwrap();
    saver.finish(accelerator.communicator()).unwrap();
    let (accelerator, model, optimizer) = prepared();
    let found = accelerator.load_checkpoint(&dir).unwrap();
    assert_eq!((found.step, found.consumed_samples), (11, client(11).consumed_samples));
    assert!(is_pattern(model.state.optimizer().unwrap().engine(), 8) && optimizer.n_steps().unwrap() == 11);
}

#[test]
fn the_files_are_what_the_format_says() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-7");
    save_pattern(&dir, 2, 5);
    assert_eq!(names(folder.path()), ["checkpoint-7"]);
    assert_eq!(names(&dir), ["config.json", "state"]);
    let state = dir.join("state");
    let expected = ["manifest.json", "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"];
    assert_eq!(names(&state), expected);
    let manifest = Manifest::open(&dir).unwrap();
    let parameter = &manifest.parameters["embed.weight"];
    assert_eq!((parameter.shape.as_slice(), parameter.dtype.as_str()), (&[90, 50][..], "F32"));
    for (kind, pieces) in &parameter.state {
        for piece in pieces {
            let bytes = std::fs::read(dir.join(&piece.file)).unwrap();
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            let entry = &header[format!("{kind}/embed.weight/{}", piece.first)];
            assert!(piece.offset.is_multiple_of(4096));
            safetensors::SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(entry["dtype"], "F32");
            assert_eq!(entry["shape"][0], piece.len);
            assert_eq!(entry["data_offsets"][0], piece.offset - 8 - length as u64);
            assert_eq!(entry["data_offsets"][1], piece.offset - 8 - length as u64 + 4 * piece.len);
            let first = pattern("embed.weight", kind, piece.first as usize, 5);
            let at = piece.offset as usize;
            assert_eq!(bytes[at..at + 4], first.to_le_bytes());
        }
    }
}
