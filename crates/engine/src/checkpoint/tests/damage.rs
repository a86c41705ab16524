//! A checkpoint that is damaged, incomplete or of another model is refused by name.

use std::fs;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::checkpoint::manifest::{FileEntry, MANIFEST, Manifest, Piece};
use crate::checkpoint::read::verify;
use crate::checkpoint::{Problem, newest};
use crate::disk::Algorithm;

const RANK_1: &str = "state/rank-00001-of-00002.safetensors";

fn flip(path: &Path, at: impl Fn(usize) -> usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn saved() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-7");
    save_pattern(&dir, 2, 5);
    (folder, dir)
}

#[test]
fn damaged_files_are_named() {
    type Damage = fn(&Path);
    let cases: [(Damage, &str, bool); 10] = [
        (|dir| fs::remove_dir_all(dir).unwrap(), "there is no state/manifest.json", true),
        (|dir| fs::remove_file(dir.join(MANIFEST)).unwrap(), "there is no state/manifest.json", true),
        (
            |dir| {
                let text = fs::read(dir.join(MANIFEST)).unwrap();
                fs::write(dir.join(MANIFEST), &text[..text.len() / 2]).unwrap();
            },
            "state/manifest.json is damaged: EOF while parsing",
            true,
        ),
        (
            |dir| {
                let text = fs::read_to_string(dir.join(MANIFEST)).unwrap();
                fs::write(dir.join(MANIFEST), text.replace("\"epoch\": 1", "\"epoch\": 2")).unwrap();
            },
            "state/manifest.json is damaged: it has changed since it was written",
            true,
        ),
        (
            |dir| {
                let text = fs::read_to_string(dir.join(MANIFEST)).unwrap();
                fs::write(dir.join(MANIFEST), text.replace("\"format_version\": 2", "\"format_version\": 3"))
                    .unwrap();
            },
            "its format has version 3, this version of Oarlock reads those up to 2",
            true,
        ),
        (
            |dir| fs::remove_file(dir.join(RANK_1)).unwrap(),
            "the file state/rank-00001-of-00002.safetensors is missing",
            true,
        ),
        (
            |dir| {
                let file = fs::OpenOptions::new().write(true).open(dir.join(RANK_1)).unwrap();
                file.set_len(file.metadata().unwrap().len() - 1).unwrap();
            },
            "the file state/rank-00001-of-00002.safetensors has ",
            true,
        ),
        (
            |dir| flip(&dir.join(RANK_1), |len| len / 2),
            "the file state/rank-00001-of-00002.safetensors has changed since it was written",
            false,
        ),
        (
            |dir| flip(&dir.join("state/rank-00000-of-00002.safetensors"), |_| 9),
            "the file state/rank-00000-of-00002.safetensors has changed since it was written",
            false,
        ),
        (
            |dir| flip(&dir.join("config.json"), |len| len - 1),
            "the file config.json has changed since it was written",
            false,
        ),
    ];
    for (damage, expected, is_seen_without_reading) in cases {
        let (folder, dir) = saved();
        damage(&dir);
        let error = refusal(&dir);
        assert!(
            error.starts_with(&format!("checkpoint {} cannot be loaded: {expected}", dir.display())),
            "{error}"
        );
        let found = newest(folder.path()).unwrap();
        assert_eq!(found.path.is_none(), is_seen_without_reading, "{expected}");
    }
}

#[test]
fn contradictions_in_a_manifest_are_named() {
    fn pieces(manifest: &mut Manifest) -> &mut Vec<Piece> {
        manifest.parameters.get_mut("proj.weight").unwrap().state.get_mut("exp_avg").unwrap()
    }
    type Change = fn(&mut Manifest);
    let cases: [(Change, &str); 13] = [
        (|m| drop(pieces(m).remove(0)), "elements 0 to 4096 of exp_avg of \"proj.weight\" are in no file"),
        (|m| drop(pieces(m).pop()), "elements 4096 to 11790 of exp_avg of \"proj.weight\" are in no file"),
        (
            |m| {
                let first = pieces(m)[0].clone();
                pieces(m).insert(0, first);
            },
            "elements 0 to 4096 of exp_avg of \"proj.weight\" are there twice",
        ),
        (|m| pieces(m)[1].first -= 1, "elements 4095 to 4096 of exp_avg of \"proj.weight\" are there twice"),
        (|m| pieces(m)[1].len += 1, "exp_avg of \"proj.weight\""),
        (
            |m| pieces(m)[0].offset = u64::MAX - 3,
            "exp_avg of \"proj.weight\" lies outside of the file state/rank-00000",
        ),
        (
            |m| pieces(m)[0].file = "elsewhere".into(),
            "exp_avg of \"proj.weight\" lies outside of the file elsewhere",
        ),
        (
            |m| m.files.push(FileEntry { path: "../secret".into(), bytes: 0, sums: Vec::new(), xxh64: None }),
            "\"../secret\" is not a path inside the checkpoint",
        ),
        (|m| m.files.push(m.files[0].clone()), "it lists state/rank-00000-of-00002.safetensors twice"),
        (
            |m| drop(m.files[0].sums.remove(1)),
            "the checksums of state/rank-00000-of-00002.safetensors do not cover all of it once",
        ),
        (|m| m.files[1].sums[0].bytes += 1, "do not cover all of it once"),
        (
            |m| m.parameters.get_mut("norm.weight").unwrap().dtype = "F64".into(),
            "\"norm.weight\" has the dtype \"F64\" instead of F32",
        ),
        (
            |m| m.world_size = 1_000_000_000_000,
            "it says that 1000000000000 ranks wrote it; there are at most 1048576",
        ),
    ];
    let (_folder, dir) = saved();
    let whole = Manifest::open(&dir).unwrap();
    for (change, expected) in cases {
        let mut manifest = whole.clone();
        change(&mut manifest);
        assert!(manifest.to_text().is_err(), "would not be written: {expected}");
        fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
        let error = refusal(&dir);
        assert!(error.contains(expected), "{error}\nexpected: {expected}");
    }
    let mut manifest = whole.clone();
    manifest.parameters.get_mut("proj.weight").unwrap().state.remove("exp_avg_sq");
    fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    assert!(refusal(&dir).ends_with("it lacks exp_avg_sq of \"proj.weight\""));
}

#[test]
fn another_model_is_refused() {
    let (_folder, dir) = saved();
    let error = refusal_for(&dir, || Model::new(91, true));
    assert!(
        error.ends_with("\"embed.weight\" has the shape [90, 50] in it and [91, 50] in this model"),
        "{error}"
    );
    let error = refusal_for(&dir, || Model::new(90, false));
    assert!(
        error.ends_with("it holds the parameter \"proj.bias\", which this model does not have"),
        "{error}"
    );
    let without = dir.with_file_name("checkpoint-8");
    on_ranks(1, |comm| {
        let model = Model::new(90, false);
        let engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        save(&without, comm, &engine, Contents::state(client(1))).unwrap();
    });
    assert!(refusal(&without).ends_with("it lacks the parameter \"proj.bias\" of this model"));
}

/// With as many ranks as a manifest may speak of, and no file of them.
#[test]
fn a_manifest_of_a_million_ranks_is_read_at_once() {
    let (_folder, dir) = saved();
    let mut manifest = Manifest::open(&dir).unwrap();
    manifest.world_size = 1 << 20;
    fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    let first = manifest.files.iter().find(|file| file.path.starts_with("state/")).unwrap();
    fs::remove_file(dir.join(&first.path)).unwrap();
    let begin = std::time::Instant::now();
    assert!(Manifest::open_part(&dir).is_err());
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

#[test]
fn another_optimizers_state_is_refused_by_name() {
    let (_folder, dir) = saved();
    let mut manifest = Manifest::open(&dir).unwrap();
    for parameter in manifest.parameters.values_mut() {
        let pieces = parameter.state.remove("exp_avg").unwrap();
        parameter.state.remove("exp_avg_sq");
        parameter.state.insert("momentum_buffer".into(), pieces);
    }
    fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    let expected = "it holds master, momentum_buffer of \"embed.weight\", where this run's optimizer keeps exp_avg, exp_avg_sq, master";
    let error = refusal(&dir);
    assert!(error.ends_with(expected), "{error}");

    manifest.plan.rule = "sgd".into();
    fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    assert!(refusal(&dir).ends_with("it holds the state of the optimizer sgd, and this run uses adamw"));

    // More than is needed is another optimizer's as well.
    let (_folder, dir) = saved();
    let mut manifest = Manifest::open(&dir).unwrap();
    let norm = manifest.parameters.get_mut("norm.weight").unwrap();
    norm.state.insert("step".into(), norm.state["exp_avg"].clone());
    fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    assert!(refusal(&dir).contains("it holds exp_avg, exp_avg_sq, master, step of \"norm.weight\""));
}

#[test]
fn a_kind_of_state_may_have_a_shape_of_its_own() {
    let (_folder, dir) = saved();
    let mut manifest = Manifest::open(&dir).unwrap();
    let proj = manifest.parameters.get_mut("proj.weight").unwrap();
    let mut rows = proj.state.remove("exp_avg").unwrap();
    rows.truncate(1);
    rows[0].len = 90;
    proj.state.insert("exp_avg_sq_row".into(), rows);
    assert!(manifest.to_text().is_err());
    manifest.parameters.get_mut("proj.weight").unwrap().shapes.insert("exp_avg_sq_row".into(), vec![90]);
    let read = Manifest::parse(manifest.to_text().unwrap().as_bytes()).unwrap();
    assert_eq!(read.parameters["proj.weight"].shape_of("exp_avg_sq_row"), [90]);
    assert_eq!(read.parameters["proj.weight"].shape_of("master"), [131, 90]);
}

#[test]
fn the_first_format_is_read() {
    let (_folder, dir) = saved();
    let mut manifest = Manifest::open(&dir).unwrap();
    manifest.format_version = 1;
    for file in &mut manifest.files {
        let read = fs::File::open(dir.join(&file.path)).unwrap();
        file.sums.clear();
        file.xxh64 = Some(Algorithm::Xxh64.of_file(&read, 0, file.bytes).unwrap());
    }
    fs::write(dir.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        assert_eq!(crate::checkpoint::load(&dir, comm, &mut engine).unwrap(), client(7));
        assert!(is_pattern(&engine, 5));
    });
    flip(&dir.join(RANK_1), |len| len - 9);
    assert!(refusal(&dir).contains("rank-00001-of-00002.safetensors has changed since it was written"));
}

#[test]
fn every_changed_byte_of_a_checkpoint_is_noticed() {
    struct Small(RmsNorm);
    impl Module for Small {
        fn visit(&self, visitor: &mut dyn Visitor) {
            visitor.child("norm", &self.0);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("checkpoint-1");
    on_ranks(1, |comm| {
        let model = Small(RmsNorm::new(700, 1e-5).unwrap());
        let engine = bare_engine(&model, comm, Placements::OPTIMIZER, DType::F32);
        let extra = |dir: &Path| {
            fs::write(dir.join("notes.txt"), "some words").unwrap();
            Ok(())
        };
        save(&dir, comm, &engine, Contents { extra: Box::new(extra), ..Contents::state(client(1)) }).unwrap();
    });
    let manifest = Manifest::open(&dir).unwrap();
    let mut n_bytes = 0;
    for entry in &manifest.files {
        let file = fs::OpenOptions::new().read(true).write(true).open(dir.join(&entry.path)).unwrap();
        for sum in &entry.sums {
            for at in sum.offset..sum.end() {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ (1 << (at % 8))], at).unwrap();
                let noticed = matches!(verify(&dir, &manifest, entry, sum), Err(Problem::Checksum { .. }));
                assert!(noticed, "byte {at} of {}", entry.path);
                file.write_all_at(&byte, at).unwrap();
                n_bytes += 1;
            }
        }
    }
    assert_eq!(n_bytes, manifest.files.iter().map(|file| file.bytes).sum::<u64>());
    assert_eq!(n_bytes, 4 * 4096 + 10);
}

#[test]
fn every_changed_byte_of_a_manifest_is_noticed() {
    let (_folder, dir) = saved();
    let text = fs::read(dir.join(MANIFEST)).unwrap();
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(Manifest::parse(&changed).is_err(), "byte {at}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_manifest_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Manifest::parse(&bytes).is_err());
    }

    #[test]
    fn any_numbers_in_a_manifest_are_sound_or_an_error(
        numbers in prop::collection::vec(prop_oneof![Just(u64::MAX), Just(0), any::<u64>(), 0u64..20], 5),
        shape in prop::collection::vec(prop_oneof![Just(usize::MAX), 0usize..5], 0..8),
    ) {
        let [first, len, offset, bytes, other] = numbers[..] else { unreachable!() };
        let text = format!(
            r#"{{"format_version":1,"world_size":{other},"plan":{{"dtype":"f32","optimizer":"whole"}},
            "optimizer_steps":0,"client_state":{{"step":0,"epoch":0,"consumed_samples":0,"seeds":{{}},"client":{{}}}},
            "files":[{{"path":"a","bytes":{bytes},"xxh64":""}}],
            "parameters":{{"w":{{"shape":{shape:?},"dtype":"F32","state":{{"master":[
            {{"first":{first},"len":{len},"file":"a","offset":{offset}}},
            {{"first":{len},"len":{other},"file":"a","offset":{offset}}}]}}}}}},"checksum":"0000000000000000"}}"#
        );
        let manifest: std::result::Result<Manifest, _> = serde_json::from_str(&text);
        if let Ok(manifest) = manifest
            && let Ok(manifest) = Manifest::parse(manifest.seal().unwrap().as_bytes())
        {
            let n_elems: usize = manifest.parameters["w"].shape.iter().product();
            prop_assert_eq!(manifest.parameters["w"].state["master"].iter().map(|p| p.len).sum::<u64>(), n_elems as u64);
            prop_assert!(offset + 4 * len <= bytes);
        }
    }
}
