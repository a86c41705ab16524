//! Loading: everything is checked on all ranks before the first element of the model changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use oarlock_comm::Communicator;
use oarlock_tensor::Shape;

use super::fetch::complete;
use super::folder::{parent_of, recover};
use super::frozen::{self, check_same};
use super::job::in_manifest;
use super::manifest::{ClientState, FileEntry, Manifest, ParameterEntry, qualified};
use super::outcome::share;
use super::read::{Reader, verify};
use super::stores::Stores;
use crate::disk::Sum;
use crate::report::error::{CheckpointError, Problem};
use crate::shard::{Engine, MASTER, Slice, runs};
use crate::{Error, Result};

/// Elements that are read at once.
const CHUNK_ELEMS: usize = 1 << 18;

/// The kinds of state of each parameter.
type Kinds = BTreeMap<String, BTreeSet<String>>;

/// Restores the state that a [`Saver`](super::Saver) wrote into `dir`, on any number of ranks and in any placement, to the
/// bit; returns what the training loop had kept. All ranks call it. Each reads what it needs, and the ranks divide the
/// files among them to verify the checksums.
///
/// # Errors
/// When the checkpoint is incomplete, damaged or of another model ([`CheckpointError::NotLoaded`], the same on all
/// ranks; the model is as it was), or a rank fails.
#[track_caller]
pub fn load(dir: &Path, comm: &Communicator, engine: &mut Engine) -> Result<ClientState> {
    check(dir, comm, &[engine])?.restore(comm, &mut [engine])
}

/// A checkpoint in which everything was found to be in order; nothing of it is in the models yet.
pub struct Checked {
    dir: PathBuf,
    manifest: Manifest,
    /// What this rank needs of each model.
    needed: Vec<Vec<Slice>>,
}

/// Checks all of a checkpoint of these models, in the order in which they were saved: the first half of [`load`], which
/// [`Checked::restore`] ends. All ranks call it.
///
/// # Errors
/// As [`load`].
#[track_caller]
pub fn check(dir: &Path, comm: &Communicator, engines: &[&Engine]) -> Result<Checked> {
    check_in(dir, comm, None, engines)
}

/// As [`check`]; `stores` says who sees which folder, where that is not one for all.
#[track_caller]
pub(crate) fn check_in(
    dir: &Path,
    comm: &Communicator,
    stores: Option<&Stores>,
    engines: &[&Engine],
) -> Result<Checked> {
    let refused = |problem| Error::from(CheckpointError::NotLoaded { path: dir.to_path_buf(), problem });
    let opened = match stores {
        None if comm.rank() == 0 => open(dir).map(Some),
        // A machine that is new has none, and gets that of another.
        Some(stores) if stores.leader_of(comm.rank()) == comm.rank() => part(dir),
        _ => Ok(None),
    };
    let opened = share(comm, opened)?.map_err(|(_, problem)| refused(problem))?;
    let manifest = opened.into_iter().flatten().next().ok_or_else(|| refused(Problem::NoManifest))?;

    if !manifest.has_state() {
        return Err(refused(Problem::OnlyModel));
    }
    let mut needed: Vec<Vec<Slice>> = engines.iter().map(|engine| engine.needed_slices()).collect();
    let named: Vec<Slice> = (needed.iter().enumerate())
        .flat_map(|(index, slices)| slices.iter().map(move |slice| in_manifest(index, slice)))
        .collect();
    let kinds = kinds_of(&named);
    let here = match stores {
        Some(stores) => {
            let files = files_of(&manifest, &named);
            let here = complete(dir, &manifest, comm, stores, &files)?.map_err(refused)?;
            Some((stores.ranks_of(stores.leader_of(comm.rank())), here))
        }
        None => None,
    };
    let checked = check_optimizers(&manifest, engines)
        .and_then(|()| check_model(&manifest, &named, &kinds))
        .and_then(|()| check_files(dir, &manifest, comm, here.as_ref()))
        .and_then(|()| frozen::parts(&manifest, engines));
    let of_ranks =
        share(comm, checked.map(|parts| (kinds, parts)))?.map_err(|(_, problem)| refused(problem))?;
    let (of_ranks, parts): (Vec<Kinds>, Vec<_>) = of_ranks.into_iter().unzip();
    check_nothing_else(&manifest, &of_ranks).map_err(refused)?;
    check_same(&manifest, parts.into_iter().flatten(), engines).map_err(refused)?;
    for (index, slices) in needed.iter_mut().enumerate() {
        slices.retain(|slice| !manifest.frozen.contains_key(&qualified(index, &slice.name)));
    }
    Ok(Checked { dir: dir.to_path_buf(), manifest, needed })
}

impl Checked {
    /// What the training loop had kept.
    pub fn client_state(&self) -> &ClientState {
        &self.manifest.client_state
    }

    /// Puts the state into the models for which it was checked.
    ///
    /// # Errors
    /// When a rank fails while it reads ([`Problem::Interrupted`]).
    #[track_caller]
    pub fn restore(self, comm: &Communicator, engines: &mut [&mut Engine]) -> Result<ClientState> {
        let Checked { dir, manifest, needed } = self;
        let mut reader = Reader::new(&dir, &manifest);
        let mut models = engines.iter_mut().zip(&needed).enumerate();
        let read =
            models.try_for_each(|(index, (engine, needed))| restore(&mut reader, index, engine, needed));
        share(comm, read.map_err(|error| error.to_string()))?.map_err(|(rank, cause)| {
            let problem = Problem::Interrupted { rank, cause };
            CheckpointError::NotLoaded { path: dir.clone(), problem }
        })?;
        for (engine, (_, steps)) in engines.iter_mut().zip(manifest.each_model()) {
            engine.finish_load(steps)?;
        }
        Ok(manifest.client_state)
    }
}

/// The manifest of what this machine has of a checkpoint, if it has anything.
fn part(dir: &Path) -> std::result::Result<Option<Manifest>, Problem> {
    finish_exchange(dir)?;
    match Manifest::read(dir) {
        Err(Problem::NoManifest) => Ok(None),
        read => read.map(Some),
    }
}

fn open(dir: &Path) -> std::result::Result<Manifest, Problem> {
    finish_exchange(dir)?;
    Manifest::open(dir)
}

/// Ends the exchange of two checkpoints that a crash interrupted.
fn finish_exchange(dir: &Path) -> std::result::Result<(), Problem> {
    if let Some(name) = dir.file_name()
        && let Err(error) = recover(parent_of(dir), &name.to_string_lossy())
    {
        return Err(Problem::Unreadable { file: name.to_string_lossy().into(), cause: error.to_string() });
    }
    Ok(())
}

fn kinds_of(slices: &[Slice]) -> Kinds {
    let mut kinds = Kinds::new();
    for Slice { kind, name, .. } in slices {
        kinds.entry(name.clone()).or_default().insert((*kind).to_string());
    }
    kinds
}

/// Whether the checkpoint is of as many models, with the same optimizers.
fn check_optimizers(manifest: &Manifest, engines: &[&Engine]) -> std::result::Result<(), Problem> {
    let (found, expected) = (manifest.each_model().count(), engines.len());
    if found != expected {
        return Err(Problem::OtherModels { found, expected });
    }
    for ((plan, _), engine) in manifest.each_model().zip(engines) {
        let (found, expected) = (plan.rule.clone(), engine.rule().name());
        if found != expected {
            return Err(Problem::OtherOptimizer { found, expected: expected.to_string() });
        }
    }
    Ok(())
}

/// Whether the checkpoint has all that this rank needs.
fn check_model(manifest: &Manifest, needed: &[Slice], kinds: &Kinds) -> std::result::Result<(), Problem> {
    for Slice { kind, name, shape, .. } in needed {
        if let Some(frozen) = manifest.frozen.get(name) {
            if *kind != MASTER {
                // This model trains it.
                return Err(Problem::MissingState { kind: (*kind).into(), name: name.clone() });
            }
            // The words of a quantized weight are a row of numbers.
            if frozen.shape.len() != shape.sizes().len() {
                return Err(Problem::OtherForm { name: name.clone() });
            }
            check_shape(name, &frozen.shape, shape)?;
            continue;
        }
        let Some(parameter) = manifest.parameters.get(name) else {
            return Err(Problem::MissingParameter { name: name.clone() });
        };
        if !parameter.state.contains_key(*kind) {
            return Err(match parameter.state.keys().find(|&found| !kinds[name].contains(found)) {
                Some(_) => other_state(name, parameter, &kinds[name]),
                None => Problem::MissingState { kind: (*kind).into(), name: name.clone() },
            });
        }
        check_shape(name, parameter.shape_of(kind), shape)?;
    }
    Ok(())
}

fn check_shape(name: &str, found: &[usize], expected: &Shape) -> std::result::Result<(), Problem> {
    let (found, expected) = (found.to_vec(), expected.sizes().to_vec());
    match found == expected {
        true => Ok(()),
        false => Err(Problem::Shape { name: name.to_owned(), found, expected }),
    }
}

fn other_state(name: &str, parameter: &ParameterEntry, expected: &BTreeSet<String>) -> Problem {
    let listed = |kinds: Vec<&str>| kinds.join(", ");
    Problem::OtherState {
        name: name.to_string(),
        found: listed(parameter.state.keys().map(String::as_str).collect()),
        expected: listed(expected.iter().map(String::as_str).collect()),
    }
}

/// Whether the checkpoint has nothing that no rank needs.
fn check_nothing_else(manifest: &Manifest, of_ranks: &[Kinds]) -> std::result::Result<(), Problem> {
    let mut frozen = manifest.frozen.keys();
    if let Some(name) = frozen.find(|name| !of_ranks.iter().any(|kinds| kinds.contains_key(*name))) {
        return Err(Problem::UnknownParameter { name: name.clone() });
    }
    for (name, parameter) in &manifest.parameters {
        let needed: BTreeSet<String> =
            of_ranks.iter().filter_map(|kinds| kinds.get(name)).flatten().cloned().collect();
        if needed.is_empty() {
            return Err(Problem::UnknownParameter { name: name.clone() });
        }
        if parameter.state.keys().any(|kind| !needed.contains(kind)) {
            return Err(other_state(name, parameter, &needed));
        }
    }
    Ok(())
}

/// The files with state that a rank needs.
fn files_of<'m>(manifest: &'m Manifest, needed: &[Slice]) -> BTreeSet<&'m str> {
    let pieces = needed.iter().flat_map(|Slice { kind, name, elements, .. }| {
        let pieces = manifest.parameters.get(name).and_then(|parameter| parameter.state.get(*kind));
        let (start, end) = (elements.start as u64, elements.end as u64);
        pieces.into_iter().flatten().filter(move |piece| piece.first < end && start < piece.end())
    });
    pieces.map(|piece| piece.file.as_str()).collect()
}

/// Verifies the checksums of this rank's share of the files. `here`: the ranks that see this folder, and the files in it, where not
/// all see one.
fn check_files(
    dir: &Path,
    manifest: &Manifest,
    comm: &Communicator,
    here: Option<&(Vec<usize>, BTreeSet<String>)>,
) -> std::result::Result<(), Problem> {
    let (mut files, mut place, mut n) = (manifest.files.clone(), comm.rank(), comm.world_size());
    if let Some((ranks, here)) = here {
        files.retain(|file| here.contains(&file.path));
        (place, n) = (ranks.iter().position(|&rank| rank == place).unwrap_or(0), ranks.len());
    }
    share_of(&files, place, n).into_iter().try_for_each(|(file, sum)| verify(dir, manifest, file, sum))
}

/// The runs that a rank verifies: the largest first, each to the rank with the least so far.
fn share_of(files: &[FileEntry], rank: usize, world_size: usize) -> Vec<(&FileEntry, &Sum)> {
    let mut by_size: Vec<(&FileEntry, &Sum)> =
        files.iter().flat_map(|file| file.sums.iter().map(move |sum| (file, sum))).collect();
    by_size.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    let mut bytes = vec![0u64; world_size];
    let mut mine = Vec::new();
    for run in by_size {
        let least = (0..world_size).min_by_key(|&r| bytes[r]).unwrap_or(0);
        bytes[least] = bytes[least].saturating_add(run.1.bytes);
        if least == rank {
            mine.push(run);
        }
    }
    mine
}

fn restore(reader: &mut Reader<'_>, index: usize, engine: &mut Engine, needed: &[Slice]) -> Result<()> {
    let mut values = Vec::new();
    let chunks = needed.iter().flat_map(|slice| {
        let run = move |elements| Slice { elements, ..slice.clone() };
        runs(slice.elements.clone(), CHUNK_ELEMS).map(run)
    });
    for slice in chunks {
        values.resize(slice.elements.len(), 0.0f32);
        let Slice { kind, name, elements, .. } = in_manifest(index, &slice);
        reader.read(kind, &name, &elements, &mut values)?;
        engine.write_state(&slice, &values)?;
    }
    Ok(())
}
