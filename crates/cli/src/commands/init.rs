//! `oarlock init`: a folder in which a recipe runs at once, with its data.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::config::{Problem, Problems};
use crate::console::{Failure, Outcome, print};
use crate::error::Error;
use crate::front::recipes::{self, Recipe};

#[derive(Args)]
pub(super) struct InitArgs {
    /// What to train: a model from scratch, one that answers, one that answers by an adapter, or one that knows the better
    /// of two answers
    #[arg(default_value = "pretrain", value_parser = PossibleValuesParser::new(recipes::NAMES))]
    recipe: String,
    /// The folder, which is made or is empty; by default oarlock-RECIPE
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &InitArgs) -> Outcome {
    let recipe = recipes::find(&args.recipe)
        .ok_or_else(|| Failure::from(Error::Usage(format!("there is no recipe `{}`", args.recipe))))?;
    let folder = args.folder.clone().unwrap_or_else(|| PathBuf::from(format!("oarlock-{}", recipe.name)));
    refuse_taken(&folder, recipe)?;
    let n_written = recipe.write(&folder)?;
    print(&format!(
        "{n_written} files are in {}: {} and what it reads. Train with\n{}",
        folder.display(),
        recipe.path().display(),
        commands(&folder, recipe)
    ))
}

/// Refuses a place where something lies.
fn refuse_taken(folder: &Path, recipe: &Recipe) -> Outcome {
    let what = match std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Ok(false) => "is not empty",
        Err(_) if std::fs::symlink_metadata(folder).is_err() => return Ok(()),
        Err(_) if folder.exists() && !folder.is_dir() => "is a file",
        Err(error) => return Err(Error::io("read", folder)(error).into()),
    };
    let help = format!("name a folder that is not there, as in `oarlock init {} river`", recipe.name);
    Err(Problems::from(
        Problem::new(format!("`{}` {what}, and nothing was written", folder.display())).help(help),
    )
    .into())
}

/// What to call next, a command a line.
fn commands(folder: &Path, recipe: &Recipe) -> String {
    let shown = folder.display().to_string();
    let quoted = shlex::try_quote(&shown).map_or(shown.clone(), |text| text.into_owned());
    let mut lines = vec![format!("cd {quoted}")];
    if folder == Path::new(".") {
        lines.clear();
    }
    lines.extend(recipe.chain.iter().map(|name| format!("oarlock train recipes/{name}.yaml")));
    lines.push(recipe.next.to_owned());
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_commands_can_be_copied() {
        let sft = recipes::find("sft").unwrap();
        assert_eq!(
            commands(Path::new("my river"), sft),
            "    cd 'my river'\n    oarlock train recipes/pretrain.yaml\n    oarlock train recipes/sft.yaml\n    \
             oarlock chat --model out/sft --temperature 0\n"
        );
        assert!(!commands(Path::new("."), sft).contains("cd "));
    }
}
