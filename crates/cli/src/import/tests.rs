//! Checkpoints of DeepSpeed become ours, bitwise identical, and what is damaged or hostile is refused without a panic.

use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use oarlock::checkpoint::{Manifest, MergeOptions, load};
use oarlock::model::hf::HfConfig;
use oarlock::model::{Decoder, merge_weights};
use oarlock::nn::NamedParam;
use oarlock::shard::{Engine, MASTER, Placements, ShardingConfig};
use oarlock_comm::shm;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::{Role, Rule};
use oarlock_tensor::{DType, Device, Par};
use proptest::prelude::*;
use safetensors::SafeTensors;
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use super::container::{Run, TorchFile};
use super::pickle::{Element, Pickle};
use super::pieces::{Piece, cut, share_of};
use super::{deepspeed, import_checkpoint};

const CASES: [(&str, u64, DType); 6] = [
    ("stage1-bf16", 1, DType::BF16),
    ("stage1-bf16-f32-gradients", 1, DType::BF16),
    ("stage2-f32", 2, DType::F32),
    ("stage3-bf16", 3, DType::BF16),
    ("stage2-fp16", 2, DType::F16),
    ("stage3-fp16", 3, DType::F16),
];

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deepspeed").join(case)
}

/// A copy of a case to damage.
fn copy_of(case: &str) -> tempfile::TempDir {
    let site = tempfile::tempdir().unwrap();
    fs::create_dir(site.path().join("global_step3")).unwrap();
    for name in ["", "global_step3"] {
        for entry in fs::read_dir(golden(case).join(name)).unwrap() {
            let from = entry.unwrap().path();
            if from.is_file() {
                fs::copy(&from, site.path().join(name).join(from.file_name().unwrap())).unwrap();
            }
        }
    }
    site
}

/// Why an import is refused; nothing is left of it.
fn refusal(from: &Path) -> String {
    let to = tempfile::tempdir().unwrap();
    let error = import_checkpoint(from, &to.path().join("out"), None).unwrap_err().to_string();
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "{error}");
    error
}

#[test]
fn what_deepspeed_held_is_there_to_the_bit() {
    for (case, stage, dtype) in CASES {
        let site = tempfile::tempdir().unwrap();
        let to = site.path().join("checkpoint-3");
        let imported = import_checkpoint(&golden(case), &to, None).unwrap();
        assert_eq!((imported.stage, imported.n_ranks, imported.dtype), (stage, 2, dtype));
        assert!(imported.has_config);

        let manifest = Manifest::open(&to).unwrap();
        assert_eq!((manifest.optimizer_steps, manifest.client_state.step), (3, 3));
        assert_eq!(manifest.client_state.consumed_samples, 6);
        let kept = serde_json::json!({ "epoch_of_mine": 2, "note": "mine" });
        assert_eq!(manifest.client_state.client["client_state"], kept);
        assert_eq!(manifest.plan.rule, "adamw");
        // It began with 64 and doubles after two steps without an overflow.
        let scale = &manifest.client_state.client.get("loss_scale");
        let expected =
            serde_json::json!({ "scale": 128.0, "iteration": 3, "last_overflow": -1, "hysteresis": 3 });
        assert_eq!(*scale, (dtype == DType::F16).then_some(&expected), "{case}");

        let bytes = fs::read(golden(case).join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let state = fs::read(to.join("state/rank-00000-of-00001.safetensors")).unwrap();
        let state = SafeTensors::deserialize(&state).unwrap();
        for (key, tensor) in expected.tensors() {
            let (_, name) = key.split_once('/').unwrap();
            assert_eq!(manifest.parameters[name].shape, tensor.shape(), "{case}: {key}");
            let found = state.tensor(&format!("{key}/0")).unwrap();
            assert!(found.data() == tensor.data(), "{case}: {key}");
        }
        let held = manifest.parameters.values().map(|parameter| parameter.state.len()).sum::<usize>();
        assert_eq!(held, expected.len(), "{case}");
    }
}

#[test]
fn an_engine_goes_on_from_it_and_the_weights_merge() {
    let (site, case) = (tempfile::tempdir().unwrap(), golden("stage1-bf16"));
    let to = site.path().join("checkpoint-3");
    // The folder of the tag itself will do.
    import_checkpoint(&case.join("global_step3"), &to, None).unwrap();
    let config = HfConfig::read(&to).unwrap();
    let model = Decoder::new(config.decoder().clone(), 8).unwrap();
    let comm = shm::threads(1).unwrap().pop().unwrap();
    let device = Device::cpu(Isa::detect(), Par::threads(1).unwrap());
    let options =
        ShardingConfig { dtype: DType::BF16, placements: Placements::OPTIMIZER, ..ShardingConfig::default() };
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let param_group = |named: &NamedParam| usize::from(named.param.shape().sizes().len() < 2);
    let role = |_: &NamedParam| Role::Other;
    let mut engine = Engine::new(&model, &comm, &device, options, rule, &param_group, &role).unwrap();
    let client = load(&to, &comm, &mut engine).unwrap();
    assert_eq!((client.step, engine.n_steps()), (3, 3));

    let options =
        MergeOptions { tag: None, model: None, dtype: None, max_shard_bytes: 1 << 30, overwrite: false };
    let merged = merge_weights(&to, &site.path().join("model"), &options).unwrap();
    assert_eq!(merged.dtype, DType::BF16);
    let [ours, theirs] = [to.join("model.safetensors"), site.path().join("model/model.safetensors")];
    assert!(fs::read(ours).unwrap() == fs::read(theirs).unwrap());
}

#[test]
fn what_is_missing_or_of_another_save_is_told() {
    let tag = |site: &tempfile::TempDir| site.path().join("global_step3");
    let optim = |rank| format!("bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");

    let site = copy_of("stage3-bf16");
    fs::remove_file(tag(&site).join(optim(1))).unwrap();
    assert!(refusal(site.path()).ends_with("it has the optimizer states of 1 ranks, and 2 ranks wrote it"));
    fs::copy(tag(&site).join(optim(0)), tag(&site).join(optim(2))).unwrap();
    assert!(refusal(site.path()).ends_with("it has the optimizer states of 2 ranks, and 3 ranks wrote it"));

    let site = copy_of("stage3-bf16");
    fs::remove_file(tag(&site).join("zero_pp_rank_1_mp_rank_00_model_states.pt")).unwrap();
    assert!(refusal(site.path()).contains("zero_pp_rank_1_mp_rank_00_model_states.pt"));

    let site = copy_of("stage1-bf16");
    let other = golden("stage3-bf16/global_step3").join(optim(0));
    fs::copy(other, tag(&site).join(optim(0))).unwrap();
    assert!(refusal(site.path()).contains("the same in the files of all ranks"));

    let site = copy_of("stage1-bf16");
    fs::write(site.path().join("latest"), "global_step9").unwrap();
    assert!(refusal(site.path()).ends_with("holds no checkpoint \"global_step9\""));
    fs::write(site.path().join("latest"), "../elsewhere").unwrap();
    assert!(refusal(site.path()).contains("latest"));

    let site = copy_of("stage1-bf16");
    fs::rename(tag(&site).join(optim(1)), tag(&site).join("zero_pp_rank_0_mp_rank_01_optim_states.pt"))
        .unwrap();
    assert!(refusal(site.path()).contains("tensor, pipeline or expert parallelism"));

    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(empty.path()).contains("it lacks zero_pp_rank_0"));
    fs::create_dir(empty.path().join("pytorch_model_fsdp_0")).unwrap();
    fs::write(empty.path().join("pytorch_model_fsdp_0/.metadata"), "").unwrap();
    assert!(refusal(empty.path()).contains("FSDP"));
}

#[test]
fn a_damaged_entry_is_named() {
    let site = copy_of("stage3-bf16");
    let dir = site.path().join("global_step3");
    for path in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        let whole = fs::read(&path).unwrap();
        let mut zip = ZipArchive::new(Cursor::new(&whole)).unwrap();
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).unwrap();
            let (name, start, size) =
                (entry.name().unwrap().into_owned(), entry.data_start().unwrap(), entry.size());
            // Values in which any bits make sense; a number of steps is looked at before.
            if size <= 4 || !name.contains("/data/") {
                continue;
            }
            let mut damaged = whole.clone();
            damaged[(start + size / 2) as usize] ^= 16;
            fs::write(&path, damaged).unwrap();
            let error = refusal(site.path());
            let expected = format!("its entry {name} is damaged: its bytes do not have the CRC-32");
            assert!(error.contains(&format!("{} cannot be imported: {expected}", path.display())), "{error}");
        }
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn a_file_without_checksums_is_imported() {
    let site = copy_of("stage3-bf16");
    for path in fs::read_dir(site.path().join("global_step3")).unwrap().map(|entry| entry.unwrap().path()) {
        let mut file = fs::read(&path).unwrap();
        let entries = ZipArchive::new(Cursor::new(&file)).unwrap().len();
        // The directory at the end, in which an entry has its CRC-32 at byte 16.
        let heads = file.windows(4).enumerate().filter(|(_, head)| *head == b"PK\x01\x02");
        let heads: Vec<usize> = heads.map(|(at, _)| at).collect();
        assert_eq!(heads.len(), entries);
        heads.iter().for_each(|at| file[at + 16..at + 20].fill(0));
        fs::write(&path, file).unwrap();
    }
    let to = tempfile::tempdir().unwrap();
    import_checkpoint(site.path(), &to.path().join("out"), None).unwrap();
}

/// A file of `torch.save` with another pickle.
fn repacked(file: &[u8], pickle: &[u8], options: SimpleFileOptions) -> Vec<u8> {
    let mut from = ZipArchive::new(Cursor::new(file)).unwrap();
    let mut to = ZipWriter::new(Cursor::new(Vec::new()));
    for index in 0..from.len() {
        let mut entry = from.by_index(index).unwrap();
        let name = entry.name().unwrap().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        to.start_file(name.as_str(), options).unwrap();
        to.write_all(if name.ends_with("/data.pkl") { pickle } else { &bytes }).unwrap();
    }
    to.finish().unwrap().into_inner()
}

fn stored() -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored)
}

#[test]
fn a_hostile_pickle_is_refused_by_its_name() {
    let site = copy_of("stage2-f32");
    let path = site.path().join("global_step3/mp_rank_00_model_states.pt");
    let file = fs::read(&path).unwrap();
    let system = b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R.";
    fs::write(&path, repacked(&file, system, stored())).unwrap();
    let error = refusal(site.path());
    assert!(error.contains("mp_rank_00_model_states.pt cannot be imported"), "{error}");
    assert!(error.contains("posix.system, which is not on the list"), "{error}");

    fs::write(&path, &file[..file.len() / 2]).unwrap();
    assert!(refusal(site.path()).contains("it is not a file of torch.save"));
    fs::write(&path, b"\x80\x02N.").unwrap();
    assert!(refusal(site.path()).contains("it is not a file of torch.save"));
}

/// Every place that reads elements of a damaged folder; whatever comes of it, nothing panics.
fn read_all(dir: &Path) {
    let Ok(source) = deepspeed::open(dir) else { return };
    for piece in source.parameters.values().flat_map(|parameter| parameter.state.values()).flatten() {
        let mut values = vec![0.0; piece.run.n_elems.min(1 << 12) as usize];
        let _ = source.files[piece.file].read(piece.run, &mut values);
    }
    assert!(source.parameters.values().all(|parameter| parameter.state.contains_key(MASTER)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_damage_panics(case in 0usize..CASES.len(), changes in prop::collection::vec((0usize..1 << 20, any::<u8>()), 1..6)) {
        let site = copy_of(CASES[case].0);
        let dir = site.path().join("global_step3");
        let mut paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for (at, byte) in changes {
            let path = &paths[at % paths.len()];
            let mut file = fs::read(path).unwrap();
            // In the pickle of the file, which comes first, and then anywhere: headers, sizes, the directory.
            let reach = if byte % 2 == 0 { file.len().min(4000) } else { file.len() };
            file[at / paths.len() % reach] = byte;
            fs::write(path, file).unwrap();
        }
        read_all(&dir);
    }

    #[test]
    fn a_cut_has_the_elements_that_it_should(
        sizes in prop::collection::vec(0u64..9, 0..6),
        first in 0u64..30,
        n_elems in 0u64..30,
    ) {
        let run = |n_elems| Run { offset: 100, n_elems, element: Element::Bf16 };
        let row: Vec<Piece> = sizes.iter().enumerate().map(|(file, size)| Piece { file, run: run(*size) }).collect();
        let places = |piece: &Piece| {
            let (file, first) = (piece.file, piece.run.offset);
            (0..piece.run.n_elems).map(move |index| (file, first + 2 * index)).collect::<Vec<_>>()
        };
        let all: Vec<_> = row.iter().flat_map(places).collect();
        let expected = all.get(first as usize..(first + n_elems) as usize).map(<[_]>::to_vec);
        let found = cut(&row, first, n_elems).map(|pieces| pieces.iter().flat_map(places).collect::<Vec<_>>());
        // Nothing of nothing is there wherever it is looked for.
        prop_assert_eq!(found, expected.or((n_elems == 0).then(Vec::new)));
    }

    #[test]
    fn shares_of_all_ranks_are_the_whole(n_elems in 0u64..100, n_ranks in 1u64..9) {
        let shares: Vec<u64> = (0..n_ranks).map(|rank| share_of(n_elems, rank, n_ranks)).collect();
        prop_assert_eq!(shares.iter().sum::<u64>(), n_elems);
        prop_assert!(shares.is_sorted_by(|a, b| a >= b), "{:?}", shares);
    }

    #[test]
    fn no_pickle_panics(at in 0usize..1 << 16, cut in 0usize..1 << 16, byte: u8, rest in prop::collection::vec(any::<u8>(), 0..64)) {
        let path = golden("stage2-f32/global_step3/mp_rank_00_model_states.pt");
        let mut zip = ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
        let mut pickle = Vec::new();
        zip.by_name("mp_rank_00_model_states/data.pkl").unwrap().read_to_end(&mut pickle).unwrap();
        prop_assert!(Pickle::read(&pickle).is_ok());
        let (at, cut) = (at % pickle.len(), cut % pickle.len());
        let _ = Pickle::read(&[&pickle[..cut], &rest[..]].concat());
        pickle[at] = byte;
        let _ = Pickle::read(&pickle);
        let _ = Pickle::read(&rest);
    }
}

#[test]
fn compressed_and_foreign_archives_are_refused() {
    let site = tempfile::tempdir().unwrap();
    let path = site.path().join("file.pt");
    for (name, bytes, expected) in [
        ("file/data.pkl", &b"\x80\x02N."[..], None),
        ("file/byteorder", b"big", Some("little-endian")),
        ("file/version", b"3", Some("it has no data.pkl")),
    ] {
        let mut zip = ZipWriter::new(fs::File::create(&path).unwrap());
        zip.start_file(name, stored()).unwrap();
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap();
        match (TorchFile::open(&path), expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (opened, _) => panic!("{name}: {:?}", opened.map(|_| ())),
        }
    }
}
