//! A checkpoint that is damaged, incomplete or of another model is refused by name.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::checkpoint::manifest::{FileEntry, MANIFEST, Manifest, Piece};
use crate::checkpoint::newest;

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
                fs::write(dir.join(MANIFEST), text.replace("\"format_version\": 1", "\"format_version\": 2"))
                    .unwrap();
            },
            "its format has version 2, this version of Oarlock reads 1",
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
    let cases: [(Change, &str); 10] = [
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
            |m| m.files.push(FileEntry { path: "../secret".into(), bytes: 0, xxh64: String::new() }),
            "\"../secret\" is not a path inside the checkpoint",
        ),
        (|m| m.files.push(m.files[0].clone()), "it lists state/rank-00000-of-00002.safetensors twice"),
        (
            |m| m.parameters.get_mut("norm.weight").unwrap().dtype = "F64".into(),
            "\"norm.weight\" has the dtype \"F64\" instead of F32",
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
        crate::checkpoint::save(&without, comm, &engine, &client(1), &mut no_extra).unwrap();
    });
    assert!(refusal(&without).ends_with("it lacks the parameter \"proj.bias\" of this model"));
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
