//! The recipes inside the program: their files, which a folder is given, and training by the name of a recipe.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::config::{Arguments, Problem, Problems};
use crate::error::Error;
use crate::front::script;
use crate::front::training::Training;
use crate::launch;

/// A run that the program has the files of.
#[derive(Debug)]
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// The recipes that it needs the results of, each of which needs the one before it, and itself.
    pub chain: &'static [&'static str],
    /// Words that its model answers or continues, once it is trained.
    pub next: &'static str,
}

/// The recipes with which people begin. Each writes its result to `out/NAME`.
pub const ALL: [Recipe; 4] = [
    Recipe {
        name: "pretrain",
        chain: &["pretrain"],
        next: "oarlock generate --model out/pretrain --temperature 0.3 --prompt \"Nils and Wren\"",
    },
    Recipe { name: "sft", chain: &["pretrain", "sft"], next: "oarlock chat --model out/sft --temperature 0" },
    Recipe {
        name: "lora",
        chain: &["pretrain", "lora"],
        next: "oarlock chat --model out/pretrain --adapter out/lora --temperature 0",
    },
    Recipe {
        name: "dpo",
        chain: &["pretrain", "sft", "dpo"],
        next: "oarlock chat --model out/sft --adapter out/dpo --temperature 0",
    },
];

/// The names of [`ALL`].
pub const NAMES: [&str; 4] = ["pretrain", "sft", "lora", "dpo"];

/// A file in the folder of recipes, with what is in it.
type Packed = (&'static str, &'static [u8]);

macro_rules! packed {
    ($($name:literal),* $(,)?) => { [$(($name, include_bytes!(concat!("../../recipes/", $name)))),*] };
}

/// The configurations of [`ALL`], in its order.
const CONFIGURATIONS: [Packed; 4] = packed!["pretrain.yaml", "sft.yaml", "lora.yaml", "dpo.yaml"];

/// What they read: the shape and the tokenizer of a model, and the corpus.
const MATERIAL: [Packed; 8] = packed![
    "minimind-small/config.json",
    "minimind-small/tokenizer.json",
    "minimind-small/tokenizer_config.json",
    "corpus/pretrain.jsonl",
    "corpus/heldout.jsonl",
    "corpus/conversations.jsonl",
    "corpus/preferences.jsonl",
    "corpus/dataset_info.json",
];

/// The recipe of this name.
pub fn find(name: &str) -> Option<&'static Recipe> {
    ALL.iter().find(|recipe| recipe.name == name)
}

impl Recipe {
    /// Its configuration in the folder of a run.
    pub fn path(&self) -> PathBuf {
        place(&format!("{}.yaml", self.name))
    }

    /// Where its result lies in the folder of a run.
    pub fn output(&self) -> PathBuf {
        Path::new("out").join(self.name)
    }

    /// Writes its configuration, those of the recipes that it needs, and what all of them read. A file that is there stays as
    /// it is. Returns how many were written.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<usize, Error> {
        let is_needed =
            |(name, _): &&Packed| name.strip_suffix(".yaml").is_some_and(|name| self.chain.contains(&name));
        let mut n_written = 0;
        for (name, bytes) in CONFIGURATIONS.iter().filter(is_needed).chain(&MATERIAL) {
            n_written += usize::from(write_new(&folder.join(place(name)), bytes)?);
        }
        Ok(n_written)
    }

    /// The recipe that must run before this one.
    fn base(&self) -> Option<&'static Recipe> {
        find(self.chain.iter().rev().nth(1)?)
    }
}

/// Where a file of a recipe lies in the folder of a run.
fn place(name: &str) -> PathBuf {
    Path::new("recipes").join(name)
}

/// Writes a file unless one is there; whether it did.
fn write_new(path: &Path, bytes: &[u8]) -> Result<bool, Error> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let mut file = match oarlock_files::create_new(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(Error::io("create", path)(error)),
    };
    file.write_all(bytes).map_err(|error| {
        // Half a file would pass for a whole one.
        let _ = std::fs::remove_file(path);
        Error::io("write", path)(error)
    })?;
    Ok(true)
}

/// The run that arguments describe, of which the first may be the name of a recipe in the place of a file. Its files are then
/// written into this folder, as far as they are not there.
///
/// # Errors
/// As [`script::training`], and where a file cannot be written.
pub fn training(arguments: &Arguments) -> Result<Training, Problems> {
    let named = arguments.file.as_deref().filter(|name| !Path::new(name).is_file());
    let Some(recipe) = named.and_then(find) else { return script::training(arguments) };
    // Ranks find what their launcher has written.
    let n_written = if launch::is_rank() { 0 } else { recipe.write(Path::new("")).map_err(unwritten)? };
    let path = recipe.path().display().to_string();
    let mut training = script::training(&Arguments { file: Some(path.clone()), ..arguments.clone() })?;
    if n_written > 0 {
        let note = format!("`{}` is {path}, which was written here with what it reads", recipe.name);
        training.notes.push(note);
    }
    if let Some(base) = recipe.base().filter(|base| !base.output().is_dir()) {
        let (name, output) = (base.name, base.output());
        training.notes.push(format!(
            "`{}` goes on from {}, which `oarlock train {name}` makes",
            recipe.name,
            output.display()
        ));
    }
    Ok(training)
}

/// The problem of files of a recipe that cannot be written.
fn unwritten(error: Error) -> Problems {
    let help =
        "a recipe is written into the working directory; go to a folder of your own, or run `oarlock init`";
    Problem::new(error.to_string()).help(help).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_is_found_with_all_that_it_needs() {
        assert_eq!(ALL.each_ref().map(|recipe| recipe.name), NAMES);
        for recipe in &ALL {
            assert_eq!(recipe.chain.last(), Some(&recipe.name));
            let (_, text) = CONFIGURATIONS
                .iter()
                .find(|(name, _)| name.strip_suffix(".yaml") == Some(recipe.name))
                .expect(recipe.name);
            let text = std::str::from_utf8(text).unwrap();
            let has = |key: &str, path: &Path| text.contains(&format!("\n{key}: {}\n", path.display()));
            assert!(has("output_dir", &recipe.output()), "{}", recipe.name);
            if let Some(base) = recipe.base() {
                assert!(has("model_name_or_path", &base.output()), "{}", recipe.name);
            }
        }
    }

    #[test]
    fn what_is_there_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("recipes/sft.yaml");
        std::fs::create_dir(mine.parent().unwrap()).unwrap();
        std::fs::write(&mine, "mine").unwrap();
        let sft = find("sft").unwrap();
        assert_eq!(sft.write(folder.path()).unwrap(), 1 + MATERIAL.len());
        assert_eq!(sft.write(folder.path()).unwrap(), 0);
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
        assert!(!folder.path().join("recipes/dpo.yaml").exists());
        // A link is somebody's, wherever it leads.
        let other = tempfile::tempdir().unwrap();
        std::fs::create_dir(other.path().join("recipes")).unwrap();
        let target = other.path().join("nowhere");
        std::os::unix::fs::symlink(&target, other.path().join("recipes/pretrain.yaml")).unwrap();
        sft.write(other.path()).unwrap();
        assert!(!target.exists());
    }
}
