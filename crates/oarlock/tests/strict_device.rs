//! Every golden model on the strict device: memory that the host cannot touch outside of kernels and copies, launches
//! that run as late as their dependencies allow, and the CPU's bits. Placements and offloading on that device are in
//! `placements.rs`, checkpoints and generation beside their code.

use std::path::{Path, PathBuf};

use oarlock::model::{Decoder, HfConfig};
use oarlock::shard::{Engine, ShardingConfig};
use oarlock::train::Inputs;
use oarlock::weights::SafetensorsSource;
use oarlock::{Accelerator, AcceleratorConfig, SeededInit, WeightSource, optim};
use oarlock_comm::Communicator;
use oarlock_tensor::ops::{Labels, Mask};
use oarlock_tensor::{DType, DeviceKind, Tensor};

const LEN: usize = 12;

/// The folders of models of one file or more, whatever their family.
fn models() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folders = [golden.clone(), golden.join("families")].map(|folder| std::fs::read_dir(folder).unwrap());
    let folders = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut models: Vec<_> = folders.filter(|folder| folder.join("config.json").exists()).collect();
    models.sort();
    models
}

/// Losses of two steps of two micro-batches, one of them packed, and the bits of the state afterward.
fn train(folder: &Path, device: DeviceKind, dtype: DType) -> (Vec<u64>, Vec<u32>) {
    let shard = ShardingConfig { dtype, ..ShardingConfig::default() };
    let config = AcceleratorConfig { shard, device, threads: Some(1), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::over(Communicator::solo(), &config).unwrap();
    let hf = HfConfig::read(folder).unwrap();
    let model = Decoder::new(hf.decoder().clone(), LEN).unwrap();
    let weights: Box<dyn WeightSource> = match SafetensorsSource::open(folder, &hf, &model) {
        Ok(weights) => Box::new(weights),
        Err(_) => Box::new(SeededInit::new(3, accelerator.device())),
    };
    let adamw = optim::adamw(&model).lr(3e-3);
    let (model, optimizer) = accelerator.prepare_with_weights((model, adamw), weights).unwrap();
    let place = |values: &[i32]| Tensor::from_slice(values, [2, LEN], accelerator.device()).unwrap();
    let mut losses = Vec::new();
    for step in 0..2 {
        accelerator.accumulation_window(&optimizer, 2.0 * 22.0).unwrap();
        let mut sums = Vec::new();
        for micro in 0..2 {
            let ids: Vec<i32> =
                (0..2 * LEN as i32).map(|i| 3 + (i * 7 + step * 5 + micro * 11) % 50).collect();
            let mut labels: Vec<i32> = ids[1..].iter().copied().chain([-100]).collect();
            labels[LEN - 1] = -100;
            let starts: Vec<i32> =
                (0..2 * LEN as i32).map(|i| if i % LEN as i32 >= 5 { 5 } else { 0 }).collect();
            let mask = if micro == 0 { Mask::Causal } else { Mask::Documents(place(&starts)) };
            let inputs = Inputs::of_tensors(place(&ids), Labels::new(labels), mask);
            let loss = |model: &Decoder, ids: &Tensor| model.loss(ids, &inputs.labels, &inputs.mask);
            let loss = model.loss(&inputs.ids, loss).unwrap();
            accelerator.backward(&loss).unwrap();
            sums.push(loss.exact);
        }
        optimizer.step().unwrap();
        losses.extend(sums.iter().map(|sum| sum.read().unwrap().to_bits()));
    }
    let snapshot = optimizer.with_engine(Engine::snapshot).unwrap();
    let mut state = Vec::new();
    for slice in (0..snapshot.units()).flat_map(|unit| snapshot.slices(unit)) {
        let mut values = vec![0.0; slice.elements.len()];
        snapshot.read(&slice, &mut values).unwrap();
        state.extend(values.into_iter().map(f32::to_bits));
    }
    (losses, state)
}

#[test]
fn every_model_trains_with_the_bits_of_the_cpu() {
    let models = models();
    assert!(models.len() >= 12, "{models:?}");
    for folder in models {
        for dtype in [DType::F32, DType::BF16] {
            let want = train(&folder, DeviceKind::Cpu, dtype);
            assert!(want.0.iter().all(|loss| f64::from_bits(*loss).is_finite()));
            for device in [DeviceKind::Strict, DeviceKind::Staging] {
                let got = train(&folder, device, dtype);
                assert_eq!(got.0, want.0, "{}, {dtype}, {device:?}", folder.display());
                assert!(got.1 == want.1, "{}, {dtype}, {device:?}: other weights", folder.display());
            }
        }
    }
}
