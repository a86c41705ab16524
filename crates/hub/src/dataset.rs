//! Data sets by name: which files they consist of, and these files here.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::card::{self, Config};
use crate::error::Error;
use crate::hub::Hub;
use crate::listing::{Entry, Listing};
use crate::names::{Kind, Repo, RepoPath};
use crate::reading;
use crate::splits::{self, Splits};
use crate::store::{SnapshotFile, Store};

/// The longest README.md.
const MAX_README_BYTES: u64 = 16 << 20;

/// What is wanted of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetQuery {
    /// One of its configurations: `subset` of LLaMA-Factory, `name` of `load_dataset`.
    pub config: Option<String>,
    /// The folder whose files are meant: `folder` of LLaMA-Factory, `data_dir` of `load_dataset`.
    pub folder: Option<String>,
    /// One of its splits. A slice behind it, as in `train[:100]`, is for who reads the rows.
    pub split: Option<String>,
    /// A branch, a tag or a commit.
    pub revision: Option<String>,
}

/// A data set that is here.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The folder that the files lie in.
    pub folder: PathBuf,
    /// The commit that the files are of. On ModelScope, the revision.
    pub commit: String,
    /// The configuration, where it has some.
    pub config: Option<String>,
    /// How its rows are written.
    pub format: Format,
    /// Its splits, in its order.
    pub splits: Vec<Split>,
}

/// The files of one split, in their order.
#[derive(Clone, Debug)]
pub struct Split {
    /// Such as `train`.
    pub name: String,
    /// The files, each with what names its content.
    pub files: Vec<SnapshotFile>,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// JSON, or JSON in lines.
    Json,
    /// Values with commas, or with tabs.
    Csv,
    /// Parquet.
    Parquet,
    /// A text in each line.
    Text,
}

/// The formats with the ends of their names, and other ones that `datasets` knows.
const FORMATS: [(&str, Option<Format>); 12] = [
    ("json", Some(Format::Json)),
    ("jsonl", Some(Format::Json)),
    ("ndjson", Some(Format::Json)),
    ("csv", Some(Format::Csv)),
    ("tsv", Some(Format::Csv)),
    ("parquet", Some(Format::Parquet)),
    ("txt", Some(Format::Text)),
    ("arrow", None),
    ("tar", None),
    ("zip", None),
    ("lance", None),
    ("xml", None),
];

impl Hub {
    /// The files of a data set: `owner/name` or `owner/name@revision`.
    ///
    /// # Errors
    /// No such data set, configuration or split; rows in a form that Oarlock does not read; no network where the cache
    /// does not have all of it.
    pub fn dataset(&self, name: &str, query: &DatasetQuery) -> Result<Dataset, Error> {
        let repo = self.repo(Kind::Dataset, name, query.revision.as_deref())?;
        let store = self.store(&repo);
        let listing = store.listing(&repo)?;
        let (config, found) = choose(&repo, &*store, &listing, query)?;
        let wanted = of_split(&repo, found, query)?;
        let (format, wanted) = of_one_format(&repo, &wanted)?;
        let entries = entries(&repo, &listing, &wanted)?;
        let mut files = store.fetch(&repo, &listing, entries)?.into_iter();
        let take = |(name, paths): (String, Vec<String>)| Split {
            name,
            files: files.by_ref().take(paths.len()).collect(),
        };
        let splits = wanted.into_iter().map(take).collect();
        Ok(Dataset { folder: store.folder(&repo, &listing), commit: listing.commit, config, format, splits })
    }
}

/// The configuration, and the splits with their files.
fn choose(
    repo: &Repo,
    store: &dyn Store,
    listing: &Listing,
    query: &DatasetQuery,
) -> Result<(Option<String>, Splits), Error> {
    let wrong = |problem: String| Error::dataset(&repo.id, problem);
    let paths: Vec<&str> = listing.entries.iter().map(|entry| entry.path.as_str()).collect();
    let folder = match &query.folder {
        Some(folder) => RepoPath::of(folder.trim_matches('/'))?.as_str().to_owned(),
        None => String::new(),
    };
    let configs = configs(repo, store, listing)?;
    let config = config_of(&configs, query).map_err(wrong)?;
    // A folder that is asked for counts more than what the README.md says of files.
    let (base, patterns) = match config {
        Some(config) if folder.is_empty() => {
            (config.folder.clone().unwrap_or_default(), config.splits.as_ref())
        }
        _ => (folder, None),
    };
    let Some(patterns) = patterns else {
        let found = splits::of_names(&paths, &base);
        let place = if base.is_empty() { String::new() } else { format!(" in {base:?}") };
        return match found.is_empty() {
            true => Err(wrong(format!("it has no files of rows{place}"))),
            false => Ok((config.map(|config| config.name.clone()), found)),
        };
    };
    let mut found = Splits::new();
    for (split, patterns) in patterns {
        if let Some(address) =
            patterns.iter().find(|pattern| pattern.contains("://") || pattern.contains("::"))
        {
            return Err(wrong(format!(
                "its README.md names {address:?}, which lies elsewhere; fetch it by hand"
            )));
        }
        let files = splits::of_patterns(&paths, &base, patterns);
        if files.is_empty() {
            return Err(wrong(format!(
                "its README.md names {patterns:?} for {split:?}, and no file is called so"
            )));
        }
        found.push((split.clone(), files));
    }
    Ok((config.map(|config| config.name.clone()), found))
}

fn configs(repo: &Repo, store: &dyn Store, listing: &Listing) -> Result<Vec<Config>, Error> {
    let Some(readme) = listing.get("README.md") else { return Ok(Vec::new()) };
    let files = store.fetch(repo, listing, vec![readme.clone()])?;
    let Some(file) = files.first() else { return Ok(Vec::new()) };
    let text = reading::text(&file.local, MAX_README_BYTES).map_err(|error| Error::io(&file.local, error))?;
    card::configs(&text).map_err(|problem| Error::dataset(&repo.id, problem))
}

/// The configuration that is asked for, or the one that is meant where none is.
fn config_of<'c>(configs: &'c [Config], query: &DatasetQuery) -> Result<Option<&'c Config>, String> {
    let names = || configs.iter().map(|config| config.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = &query.config {
        let found = configs.iter().find(|config| config.name == *name);
        return match (found, configs.is_empty()) {
            (Some(config), _) => Ok(Some(config)),
            (None, true) if name == "default" => Ok(None),
            (None, true) => {
                Err(format!("it has no configurations, so none is called {name:?}; name a folder instead"))
            }
            (None, false) => Err(format!("it has no configuration {name:?}; it has {}", names())),
        };
    }
    if query.folder.is_some() {
        return Ok(None);
    }
    let mut defaults = configs.iter().filter(|config| config.is_default || config.name == "default");
    match (configs, defaults.next(), defaults.next()) {
        ([], ..) => Ok(None),
        ([one], ..) => Ok(Some(one)),
        (_, Some(one), None) => Ok(Some(one)),
        (_, Some(one), Some(other)) => {
            Err(format!("{:?} and {:?} are both its default; name one of {}", one.name, other.name, names()))
        }
        (_, None, _) => Err(format!("it has several configurations; name one of {}", names())),
    }
}

/// The split that is asked for, or all.
fn of_split(repo: &Repo, found: Splits, query: &DatasetQuery) -> Result<Splits, Error> {
    let Some(wanted) = &query.split else { return Ok(found) };
    let name = wanted.split('[').next().unwrap_or_default().trim();
    let names = found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let of_name: Splits = found.iter().filter(|(split, _)| split == name).cloned().collect();
    match of_name.is_empty() {
        true => Err(Error::dataset(&repo.id, format!("it has no split {name:?}; it has {names}"))),
        false => Ok(of_name),
    }
}

/// The most common format, as `datasets` finds it, and the files of it.
fn of_one_format(repo: &Repo, splits: &Splits) -> Result<(Format, Splits), Error> {
    let ends = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
        name.split('.').skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let format_of = |path: &str| {
        let known = |end: &String| FORMATS.iter().find(|(name, _)| name == end).map(|(_, format)| *format);
        ends(path).iter().find_map(known)
    };
    let all = || splits.iter().flat_map(|(_, files)| files.iter());
    let mut counts: Vec<(Option<Format>, usize)> = Vec::new();
    for format in all().filter_map(|path| format_of(path)) {
        match counts.iter_mut().find(|(known, _)| *known == format) {
            Some((_, n)) => *n += 1,
            None => counts.push((format, 1)),
        }
    }
    // Of two that are equally common, Parquet.
    let most = counts.iter().max_by_key(|(format, n)| (*n, *format == Some(Format::Parquet)));
    let example = all().next().map(String::as_str).unwrap_or_default();
    let Some((Some(format), _)) = most else {
        let problem = format!(
            "its rows are in files such as {example:?}, which Oarlock does not read: it reads Parquet, JSON, CSV and texts. The hub may have a copy in Parquet, as revision refs/convert/parquet"
        );
        return Err(Error::dataset(&repo.id, problem));
    };
    let packed = |path: &&String| {
        let last = ends(path).pop().unwrap_or_default();
        format_of(path) == Some(Some(*format))
            && matches!(last.as_str(), "gz" | "zst" | "bz2" | "xz" | "zip" | "lz4")
    };
    if let Some(packed) = all().find(packed) {
        return Err(Error::dataset(
            &repo.id,
            format!("{packed:?} is compressed; unpack it by hand and name the file"),
        ));
    }
    let of_format = |files: &Vec<String>| {
        files.iter().filter(|path| format_of(path) == Some(Some(*format))).cloned().collect::<Vec<_>>()
    };
    let splits = splits.iter().map(|(name, files)| (name.clone(), of_format(files)));
    Ok((*format, splits.filter(|(_, files)| !files.is_empty()).collect()))
}

fn entries(repo: &Repo, listing: &Listing, splits: &Splits) -> Result<Vec<Entry>, Error> {
    let known: HashMap<&str, &Entry> =
        listing.entries.iter().map(|entry| (entry.path.as_str(), entry)).collect();
    let entry = |path: &String| {
        let missing = || Error::dataset(&repo.id, format!("{path:?} is not in its list of files"));
        known.get(path.as_str()).map(|entry| (*entry).clone()).ok_or_else(missing)
    };
    splits.iter().flat_map(|(_, files)| files.iter().map(entry)).collect()
}
