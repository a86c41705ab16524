//! The manifest: what a checkpoint holds and where. Reading one checks all that can be checked without the files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

use oarlock_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use twox_hash::XxHash64;

use crate::disk::{Algorithm, Sum};
use crate::report::error::Problem;

/// The most ranks that a manifest may speak of: more than any machine room has, and few enough to count.
const MAX_WORLD_SIZE: usize = 1 << 20;

/// The most models of a manifest.
const MAX_MODELS: usize = 1 << 10;

/// The version of the format that this version of Oarlock writes; it reads all up to it.
///
/// 1: each file has one XXH64. 2: each file has an XXH3 for each of its runs of bytes, kinds of state may have shapes
/// of their own, and a checkpoint may hold the model alone, or leave frozen parameters out.
pub const FORMAT_VERSION: u64 = 2;

/// Its place in a checkpoint.
pub(super) const MANIFEST: &str = "state/manifest.json";

/// The dtype of all state.
pub(super) const STATE_DTYPE: &str = "F32";

/// Stands where the manifest's own checksum will be while that is computed.
const UNSEALED: &str = "0000000000000000";

/// The content of `state/manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format, at most [`FORMAT_VERSION`].
    pub format_version: u64,
    /// The number of ranks that wrote it.
    pub world_size: usize,
    /// How these ranks held the model. But for the optimizer's rule it is for people: any plan can load it.
    pub plan: PlanEntry,
    /// The optimizer steps done.
    pub optimizer_steps: u64,
    /// Further models that the same loop trains, in their order. The first one is what `plan` and `optimizer_steps`
    /// speak of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelEntry>,
    /// What the training loop keeps.
    pub client_state: ClientState,
    /// Every file but this one.
    pub files: Vec<FileEntry>,
    /// Where not all ranks wrote into one folder, the first of those that wrote into the same one, for each rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<usize>,
    /// Every parameter by name; none where the checkpoint holds the model alone. Those of further models have
    /// `model_1/`, `model_2/` … in front.
    pub parameters: BTreeMap<String, ParameterEntry>,
    /// The frozen parameters that were left out, named as those that are there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub frozen: BTreeMap<String, FrozenEntry>,
    /// XXH64 of this file with zeros in its place; last in the file.
    checksum: String,
}

/// A model beside the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelEntry {
    /// How the ranks held it.
    pub plan: PlanEntry,
    /// The optimizer steps done.
    pub optimizer_steps: u64,
}

/// How the ranks held the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// The dtype of the working copies.
    pub dtype: String,
    /// Where the optimizer state lay: `whole` or `sharded`.
    pub optimizer: String,
    /// Where gradient sums lay.
    #[serde(default = "whole")]
    pub gradients: String,
    /// Where the weights lay.
    #[serde(default = "whole")]
    pub parameters: String,
    /// The optimizer's rule, such as `adamw`. A run with another one cannot load it.
    #[serde(default = "adamw")]
    pub rule: String,
}

// What the first format did not say was always so.
fn whole() -> String {
    "whole".into()
}

fn adamw() -> String {
    "adamw".into()
}

/// A file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path inside the checkpoint.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The checksums of its runs of bytes in their order; together they cover all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sums: Vec<Sum>,
    /// The checksum of all of it as format 1 wrote it; once read, it is in `sums`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) xxh64: Option<String>,
}

/// A parameter and where its state lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterEntry {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// The dtype of its state, as safetensors names it.
    pub dtype: String,
    /// The sizes of those kinds of state that do not have a value for each element.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// By kind of state (master, exp_avg, …) the pieces in the order of their elements; together they hold each once.
    pub state: BTreeMap<String, Vec<Piece>>,
}

/// A parameter that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenEntry {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// 16 hexadecimal digits: the sum, modulo 2^64, of the XXH3 of each block of 4,096 elements (f32, little-endian) with
    /// the block's number as the seed.
    pub fingerprint: String,
}

/// A run of elements in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The first element of the parameter, row-major.
    pub first: u64,
    /// The number of elements.
    pub len: u64,
    /// The file's path inside the checkpoint.
    pub file: String,
    /// Where in the file they begin, in bytes.
    pub offset: u64,
}

/// What a training loop keeps in a checkpoint besides the model's state. Every rank gets what rank 0 gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientState {
    /// The steps of the loop that are done.
    pub step: u64,
    /// The epoch that the next sample belongs to, from 0.
    pub epoch: u64,
    /// The samples consumed so far, over all epochs and ranks.
    pub consumed_samples: u64,
    /// The seeds of the run, by what they are for.
    pub seeds: BTreeMap<String, u64>,
    /// Anything else: schedule, best metrics, history. Numbers come back bitwise identical.
    pub client: serde_json::Map<String, serde_json::Value>,
}

/// The name of a parameter of the model `index` in a manifest.
pub(crate) fn qualified(index: usize, name: &str) -> String {
    if index == 0 { name.to_string() } else { format!("model_{index}/{name}") }
}

impl ParameterEntry {
    /// The sizes of a kind of state.
    pub fn shape_of(&self, kind: &str) -> &[usize] {
        self.shapes.get(kind).unwrap_or(&self.shape)
    }
}

impl Piece {
    /// The element after the last.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.len)
    }
}

impl Manifest {
    /// A manifest without files and parameters.
    pub(super) fn new(
        world_size: usize,
        plan: PlanEntry,
        optimizer_steps: u64,
        client_state: ClientState,
    ) -> Manifest {
        Manifest {
            format_version: FORMAT_VERSION,
            world_size,
            plan,
            optimizer_steps,
            models: Vec::new(),
            client_state,
            files: Vec::new(),
            stores: Vec::new(),
            parameters: BTreeMap::new(),
            frozen: BTreeMap::new(),
            checksum: UNSEALED.into(),
        }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// When it is damaged, of another version, or contradicts itself.
    pub fn parse(text: &[u8]) -> Result<Manifest, Problem> {
        #[derive(Deserialize)]
        struct Version {
            format_version: Value,
        }
        let text = std::str::from_utf8(text).map_err(|error| bad(error.to_string()))?;
        let version: Version = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if !version.format_version.as_u64().is_some_and(|found| (1..=FORMAT_VERSION).contains(&found)) {
            let found = version.format_version.to_string();
            return Err(Problem::FormatVersion { found, known: FORMAT_VERSION });
        }
        let mut manifest: Manifest = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        let seal = text.rfind(&manifest.checksum).filter(|_| manifest.checksum.len() == UNSEALED.len());
        let expected = seal.map(|at| checksum_without(text, at));
        if expected.is_none_or(|expected| expected != manifest.checksum) {
            return Err(bad("it has changed since it was written".into()));
        }
        if manifest.format_version == 1 {
            for file in &mut manifest.files {
                let hash = file.xxh64.take().ok_or_else(|| bad(format!("{} has no checksum", file.path)))?;
                // A run has bytes; of an empty file its size says all.
                let whole = Sum { offset: 0, bytes: file.bytes, hash };
                file.sums = Some(whole).filter(|sum| sum.bytes > 0).into_iter().collect();
            }
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// What no other manifest has.
    pub(super) fn checksum(&self) -> &str {
        &self.checksum
    }

    /// Whether it holds the state, not the model alone.
    pub fn has_state(&self) -> bool {
        !self.parameters.is_empty() || !self.frozen.is_empty()
    }

    /// The models that it holds, with how they were held and their steps.
    pub(super) fn each_model(&self) -> impl Iterator<Item = (&PlanEntry, u64)> {
        let further = self.models.iter().map(|model| (&model.plan, model.optimizer_steps));
        std::iter::once((&self.plan, self.optimizer_steps)).chain(further)
    }

    /// The parameters of a model, with their names in it.
    pub(super) fn of_model(&self, index: usize) -> impl Iterator<Item = (&str, &ParameterEntry)> {
        self.parameters.iter().filter_map(move |(name, parameter)| {
            let (model, name) = self.model_and_name(name);
            (model == index).then_some((name, parameter))
        })
    }

    /// The first of the parameters that were left out of a model, with their number.
    pub(super) fn left_out_of(&self, index: usize) -> Option<(String, usize)> {
        let names = self.frozen.keys().map(|name| self.model_and_name(name));
        let mut own = names.filter(|(model, _)| *model == index).map(|(_, name)| name);
        own.next().map(|first| (first.to_owned(), 1 + own.count()))
    }

    /// The model to which a name in this manifest belongs, and the parameter's name in it.
    fn model_and_name<'n>(&self, name: &'n str) -> (usize, &'n str) {
        let inside = |index| Some((index, name.strip_prefix(&qualified(index, ""))?));
        (1..=self.models.len()).find_map(inside).unwrap_or((0, name))
    }

    /// How its checksums are computed.
    pub(super) fn algorithm(&self) -> Algorithm {
        if self.format_version == 1 { Algorithm::Xxh64 } else { Algorithm::Xxh3 }
    }

    /// Whether a folder is a checkpoint, whole or damaged.
    pub(super) fn is_in(dir: &Path) -> bool {
        dir.join(MANIFEST).is_file()
    }

    /// Reads the manifest of a checkpoint and looks whether all its files are there in full. Their content is not read.
    ///
    /// # Errors
    /// What is missing or damaged.
    pub fn open(dir: &Path) -> Result<Manifest, Problem> {
        let manifest = Manifest::read(dir)?;
        match manifest.missing(dir)?.into_iter().next() {
            None => Ok(manifest),
            Some(file) if manifest.is_part(dir)? => Err(Problem::OnePart { file: file.clone() }),
            Some(file) => Err(Problem::MissingFile { file: file.clone() }),
        }
    }

    /// As [`Manifest::open`], also of what one store of several wrote.
    ///
    /// # Errors
    /// As [`Manifest::open`].
    pub fn open_part(dir: &Path) -> Result<Manifest, Problem> {
        match Manifest::open(dir) {
            Err(Problem::OnePart { .. }) => Manifest::read(dir),
            opened => opened,
        }
    }

    /// Reads the manifest of a checkpoint, whatever else is there.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub fn read(dir: &Path) -> Result<Manifest, Problem> {
        let text = oarlock_comm::read_file(dir.join(MANIFEST), oarlock_comm::MAX_RECORDS_BYTES).map_err(
            |cause| match cause.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Problem::NoManifest,
                _ => Problem::Unreadable { file: MANIFEST.into(), cause: cause.to_string() },
            },
        )?;
        Manifest::parse(&text)
    }

    /// The files that are not in a folder.
    ///
    /// # Errors
    /// When one has another size, or cannot be read.
    pub(super) fn missing(&self, dir: &Path) -> Result<Vec<&String>, Problem> {
        let mut missing = Vec::new();
        for FileEntry { path, bytes, .. } in &self.files {
            match std::fs::metadata(dir.join(path)) {
                Ok(found) if found.len() == *bytes => {}
                Ok(found) => {
                    return Err(Problem::Size { file: path.clone(), found: found.len(), expected: *bytes });
                }
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => missing.push(path),
                Err(cause) => {
                    return Err(Problem::Unreadable { file: path.clone(), cause: cause.to_string() });
                }
            }
        }
        Ok(missing)
    }

    /// Whether a folder has all that one store of several wrote.
    fn is_part(&self, dir: &Path) -> Result<bool, Problem> {
        let missing = self.missing(dir)?;
        let ranks: Option<BTreeSet<usize>> =
            missing.iter().map(|file| rank_of_state_file(file, self.world_size)).collect();
        // Only state may be elsewhere.
        let Some(missing) = ranks else { return Ok(false) };
        let of_rank = |(rank, leader): (usize, &usize)| missing.contains(&rank).then_some(*leader);
        let incomplete: BTreeSet<usize> = self.stores.iter().enumerate().filter_map(of_rank).collect();
        Ok(self.stores.iter().any(|leader| !incomplete.contains(leader)))
    }

    /// The text of the file.
    ///
    /// # Errors
    /// When it contradicts itself and could not be read again.
    pub(super) fn to_text(&self) -> Result<String, Problem> {
        self.check()?;
        self.seal()
    }

    /// The text with its checksum.
    pub(super) fn seal(&self) -> Result<String, Problem> {
        let mut text = serde_json::to_string_pretty(self).map_err(|error| bad(error.to_string()))? + "\n";
        if let Some(at) = text.rfind(&self.checksum) {
            let seal = checksum_without(&text, at);
            text.replace_range(at..at + UNSEALED.len(), &seal);
        }
        Ok(text)
    }

    /// Everything that does not need the files: paths that stay inside, pieces that lie inside their files, and each
    /// element of each kind of state in exactly one place.
    fn check(&self) -> Result<(), Problem> {
        if self.world_size > MAX_WORLD_SIZE {
            return Err(bad(format!(
                "it says that {} ranks wrote it; there are at most {MAX_WORLD_SIZE}",
                self.world_size
            )));
        }
        if self.models.len() > MAX_MODELS {
            return Err(bad(format!(
                "it holds {} models; there are at most {MAX_MODELS}",
                self.models.len()
            )));
        }
        let mut sizes = BTreeMap::new();
        for file in &self.files {
            if !stays_inside(&file.path) {
                return Err(bad(format!("{:?} is not a path inside the checkpoint", file.path)));
            }
            if !are_covered(file) {
                return Err(bad(format!("the checksums of {} do not cover all of it once", file.path)));
            }
            if sizes.insert(file.path.as_str(), file.bytes).is_some() {
                return Err(bad(format!("it lists {} twice", file.path)));
            }
        }
        for (name, parameter) in &self.parameters {
            if parameter.dtype != STATE_DTYPE {
                return Err(bad(format!(
                    "\"{name}\" has the dtype {:?} instead of {STATE_DTYPE}",
                    parameter.dtype
                )));
            }
            let elements = |shape: &[usize]| {
                Shape::new(shape)
                    .map(|shape| shape.n_elems() as u64)
                    .map_err(|error| bad(format!("\"{name}\": {error}")))
            };
            elements(&parameter.shape)?;
            for (kind, pieces) in &parameter.state {
                let piece_in_file = |piece: &Piece| {
                    let size = sizes.get(piece.file.as_str())?;
                    let end = piece.len.checked_mul(4)?.checked_add(piece.offset)?;
                    (end <= *size).then_some(())
                };
                if let Some(piece) = pieces.iter().find(|piece| piece_in_file(piece).is_none()) {
                    return Err(bad(format!("{kind} of \"{name}\" lies outside of the file {}", piece.file)));
                }
                covers_once(name, kind, pieces, elements(parameter.shape_of(kind))?)?;
            }
        }
        Ok(())
    }
}

/// The rank whose state is in this file, if it is such a file.
pub(super) fn rank_of_state_file(path: &str, world_size: usize) -> Option<usize> {
    let rank = path.strip_prefix("state/rank-")?.split('-').next()?.parse().ok()?;
    (rank < world_size && path == state_file_of(rank, world_size)).then_some(rank)
}

/// The name of the file with the state of a rank.
pub(super) fn state_file_of(rank: usize, world_size: usize) -> String {
    format!("state/rank-{rank:05}-of-{world_size:05}.safetensors")
}

fn bad(why: String) -> Problem {
    Problem::BadManifest { why }
}

/// The checksum of a text whose bytes from `at` on, where the checksum itself goes, count as zeros.
fn checksum_without(text: &str, at: usize) -> String {
    let mut bytes = text.as_bytes().to_vec();
    bytes[at..at + UNSEALED.len()].copy_from_slice(UNSEALED.as_bytes());
    format!("{:016x}", XxHash64::oneshot(0, &bytes))
}

fn stays_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn are_covered(file: &FileEntry) -> bool {
    let mut next = 0;
    file.sums.iter().all(|sum| {
        let follows = sum.offset == next && sum.bytes > 0;
        next = sum.end();
        follows
    }) && next == file.bytes
}

fn covers_once(name: &str, kind: &str, pieces: &[Piece], n_elems: u64) -> Result<(), Problem> {
    let (name, kind) = (name.to_string(), kind.to_string());
    let mut next = 0;
    for piece in pieces {
        if piece.first > next {
            return Err(Problem::NotCovered { kind, name, start: next, end: piece.first });
        }
        if piece.first < next {
            return Err(Problem::CoveredTwice { kind, name, start: piece.first, end: next.min(piece.end()) });
        }
        next = piece.end();
    }
    if next < n_elems {
        return Err(Problem::NotCovered { kind, name, start: next, end: n_elems });
    }
    if next > n_elems {
        return Err(bad(format!("{kind} of \"{name}\" has {next} elements, its shape has {n_elems}")));
    }
    Ok(())
}
