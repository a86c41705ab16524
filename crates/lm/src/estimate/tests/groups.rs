//! States that are sharded inside groups of ranks, gathered weights and second copies: predicted, and as the engines
//! of all ranks hold them.

use oarlock_config::config::Lifetime;
use oarlock_engine::shard::{Gather, Quantized, Resident};

use super::*;

/// What the engine of each of `ranks` ranks holds after some steps, and its part of the second copy of the weights.
fn held(ranks: usize, options: &ShardingConfig) -> Vec<(Resident, u64)> {
    let rank = |comm: Communicator| {
        let config = AcceleratorConfig { shard: options.clone(), threads: Some(1), ..Default::default() };
        let accelerator = Accelerator::over(comm.clone(), &config).unwrap();
        let model = llama(64, 3, 500, 32);
        let adamw = optim::adamw(&model).weight_decay(0.0);
        let (model, optimizer) = accelerator.prepare((model, adamw)).unwrap();
        let (window, mut timer) = (vec![batch(2, 32, false)], PhaseTimer::new());
        for _ in 0..3 {
            train_step(&accelerator, &NextToken::PLAIN, &model, &optimizer, &window, 1.0, &mut timer)
                .unwrap();
        }
        let usage = accelerator.device().arena().usage();
        let second = usage.iter().find(|(name, _)| *name == "secondary parameters");
        let resident = optimizer.with_engine(Engine::resident).unwrap();
        comm.finish();
        (resident, second.map_or(0, |(_, usage)| usage.peak_bytes as u64))
    };
    oarlock_comm::shm::on_threads(ranks, rank).unwrap()
}

#[test]
fn groups_and_second_copies_take_what_the_estimate_says() {
    let ranks = 4;
    let disk = tempfile::tempdir().unwrap();
    let in_place = ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() };
    let copied = ShardingConfig { gather: Gather::Copy, persistence_elems: 0, ..in_place.clone() };
    let offload = Offload { dir: Some(disk.path().to_path_buf()), sub_group_elems: 1 << 14, buffers: 3 };
    let in_files = ShardingConfig { offload_params: Some(offload), persistence_elems: 0, ..in_place.clone() };
    let layers = Wrap::Transformer(vec!["LlamaDecoderLayer".to_owned()]);
    let grouped = |options: &ShardingConfig| ShardingConfig { group: Some(2), ..options.clone() };
    let second = |options: &ShardingConfig| ShardingConfig { secondary: Some(2), ..options.clone() };
    let in_8_bits = |options: &ShardingConfig| ShardingConfig {
        quantized: Quantized { weights: true, ..Quantized::NONE },
        persistence_elems: 0,
        ..options.clone()
    };
    let kept = |options: ShardingConfig| ShardingConfig { lifetime: Lifetime::ForwardToBackward, ..options };
    let not_ahead = |options: ShardingConfig| ShardingConfig { prefetch_elems: 0, ..options };
    let ways = [
        ("ZeRO-3", in_place.clone()),
        ("MiCS", grouped(&in_place)),
        ("MiCS of one rank", ShardingConfig { group: Some(1), ..in_place.clone() }),
        ("MiCS, a layer a unit", ShardingConfig { wrap: layers.clone(), ..grouped(&in_place) }),
        ("MiCS, copies", grouped(&copied)),
        ("MiCS, copies, small ones stay", ShardingConfig { persistence_elems: 3000, ..grouped(&copied) }),
        ("MiCS, copies, little live", ShardingConfig { max_live_elems: 40_000, ..grouped(&copied) }),
        ("HYBRID_SHARD_ZERO2, copies", kept(not_ahead(grouped(&copied)))),
        ("FULL_SHARD, copies, a layer a unit", not_ahead(ShardingConfig { wrap: layers, ..copied.clone() })),
        ("hpZ in one memory", second(&in_place)),
        ("hpZ", second(&copied)),
        ("hpZ, no prefetch", not_ahead(second(&copied))),
        ("hpZ in files", not_ahead(second(&in_files))),
        ("MiCS in files", not_ahead(grouped(&in_files))),
        ("qwZ", in_8_bits(&in_place)),
        ("qwZ and hpZ, no prefetch", not_ahead(second(&in_8_bits(&in_place)))),
    ];
    let model = llama(64, 3, 500, 32);
    for (dtype, (name, options)) in [DType::F32, DType::BF16].into_iter().cycle().zip(&ways) {
        let options = ShardingConfig { dtype, ..options.clone() };
        let size = ModelSize::wrapped(&model, dtype, &options.wrap);
        let settings = Settings {
            group: options.group.unwrap_or(ranks),
            sharding: options.clone(),
            ..Settings::new(dtype, Stage::Parameters, ranks)
        };
        let parts = model_states(&size, &settings, None);
        let held = held(ranks, &options);
        let sum = |of: &dyn Fn(&Resident) -> usize| held.iter().map(|(r, _)| of(r) as u64).sum::<u64>();
        // An engine counts memory that a group shares in full on each of its ranks.
        let predicted = |name: &str| -> u64 {
            let counted = |part: &Part| part.machine * if part.shared { settings.group as u64 } else { 1 };
            parts.iter().filter(|part| part.name == name).map(counted).sum()
        };
        let within = |share: u64, what: &str, held: u64, predicted: u64| {
            assert!(
                held.abs_diff(predicted) <= held / share,
                "{name}, {dtype}, {what}: {held} and {predicted}"
            );
        };
        // Buffers of a rank's own are rounded up to cache lines.
        let near = |what: &str, held, predicted| within(100, what, held, predicted);
        let states = predicted("master weights") + predicted("optimizer state");
        near("parameters", sum(&|held| held.parameters), predicted("working weights"));
        near("states", sum(&|held| held.optimizer), states);
        let of = |name: &str| parts.iter().find(|part| part.name == name).map_or(0, |part| part.machine);
        near("gradients", sum(&|held| held.gradients + held.leaving), of("gradients"));
        let gathered = if settings.gathers() { size.gathered(&settings) } else { Default::default() };
        let held_gathered = sum(&|held| held.gathered);
        match settings.in_8_bits() {
            // The prediction counts buffers for both kinds of gathers, which share those of decoded weights.
            true => {
                let predicted = of("gathered weights");
                let about = predicted * 2 / 3..=predicted * 101 / 100;
                assert!(about.contains(&held_gathered), "{name}, {dtype}: {held_gathered} and {predicted}");
            }
            false => {
                let both = gathered.first + gathered.second;
                assert_eq!(held_gathered, ranks as u64 * both, "{name}, {dtype}");
            }
        }
        let second = of("second copy of the weights");
        // These borrow free pieces of the pool, which may be larger.
        within(10, "second copies", held.iter().map(|(_, bytes)| bytes).sum(), second);
        assert_eq!(second > 0, settings.sharding.secondary.is_some() && settings.gathers(), "{name}");
        // Ranks of the same group share what it holds: all ranks together are charged for what the machine has.
        let machine: u64 = parts.iter().map(|part| part.machine).sum();
        let charged = ranks as u64 * parts.iter().map(|part| part.rank).sum::<u64>();
        assert!((machine..machine * 11 / 10).contains(&charged), "{name}, {dtype}: {machine} and {charged}");
    }
}
