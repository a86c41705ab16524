//! `oarlock man`: a man page for the program and for each of its commands, from what `--help` says.

mod page;

use std::path::{Path, PathBuf};

use clap::{Args, Command};

use self::page::{MARK, Page};
use crate::config::explain::{described, grouped_keys};
use crate::console::{Outcome, print};
use crate::error::{Error, Result};
use crate::front;

#[derive(Args)]
pub(super) struct ManArgs {
    /// The folder for the pages, such as ~/.local/share/man/man1; it is made where it is missing
    folder: PathBuf,
}

/// The most bytes of a page that is replaced.
const MOST_READ: u64 = 1 << 24;

/// Writes the pages of the program, whose commands have their examples.
pub(super) fn run(args: &ManArgs, program: Command) -> Outcome {
    let pages = pages(program);
    let taken: Vec<&str> = pages
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| is_foreign(&args.folder.join(name)))
        .collect();
    if !taken.is_empty() {
        let message = format!(
            "nothing was written: in {} there is something else under {}. Name another folder, or remove it",
            args.folder.display(),
            taken.join(", ")
        );
        return Err(Error::Usage(message).into());
    }
    write(&args.folder, &pages)?;
    print(&format!("{} pages are in {}\n", pages.len(), args.folder.display()))
}

fn write(folder: &Path, pages: &[(String, String)]) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    for (name, text) in pages {
        let path = folder.join(name);
        oarlock_files::replace(&path, text.as_bytes()).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

/// Whether something lies there that is no page of ours.
fn is_foreign(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        Ok(_) => {
            !oarlock_comm::read_file(path, MOST_READ).is_ok_and(|text| text.starts_with(MARK.as_bytes()))
        }
    }
}

/// All pages with the names of their files.
fn pages(mut program: Command) -> Vec<(String, String)> {
    program.build();
    let mut pages = Vec::new();
    add(&mut pages, &mut program, &[]);
    pages
}

/// The page of a command and those of its subcommands; `above` are the words before its name.
fn add(pages: &mut Vec<(String, String)>, command: &mut Command, above: &[String]) {
    let words: Vec<String> = above.iter().cloned().chain([command.get_name().to_owned()]).collect();
    pages.push((format!("{}.1", words.join("-")), page(command, &words)));
    for one in command.get_subcommands_mut() {
        // `help` says what the pages say.
        if !one.is_hide_set() && one.get_name() != "help" {
            add(pages, one, &words);
        }
    }
}

fn page(command: &mut Command, words: &[String]) -> String {
    let name = words.join("-");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = Page::begin(&name, env!("CARGO_PKG_VERSION"));
    page.section("NAME");
    // What it does, without how.
    page.name(&name, about.split(": ").next().unwrap_or_default());
    page.section("SYNOPSIS");
    let usage = command.render_usage().to_string();
    page.synopsis(usage.trim_start_matches("Usage:").trim());
    page.section("DESCRIPTION");
    page.text(&format!("{about}."));
    let visible: Vec<_> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    for (title, is_operand) in [("ARGUMENTS", true), ("OPTIONS", false)] {
        let mut of_kind = visible.iter().filter(|arg| arg.is_positional() == is_operand).peekable();
        if of_kind.peek().is_some() {
            page.section(title);
        }
        of_kind.for_each(|arg| page.argument(arg));
    }
    let commands: Vec<_> =
        command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help").collect();
    if !commands.is_empty() {
        page.section("COMMANDS");
    }
    for one in &commands {
        let about = one.get_about().map(ToString::to_string).unwrap_or_default();
        page.item(&format!("{name}-{}(1)", one.get_name()), &about);
    }
    match words {
        [_] => {
            page.section("COMMANDS OF OTHER PROGRAMS");
            front::ALL.iter().for_each(|one| page.item(one.names[0], one.about));
        }
        [_, name] if name == "train" => {
            page.section("KEYS");
            for (title, keys) in grouped_keys() {
                page.subsection(title);
                for key in keys {
                    page.item(&format!("{}={}", key.name, key.value_type.placeholder()), &described(key));
                }
            }
        }
        _ => {}
    }
    if let Some(example) = command.get_before_help().map(ToString::to_string) {
        page.section("EXAMPLES");
        page.example(example.trim_start_matches("Example:").trim());
    }
    let related: Vec<String> = (words.len() > 1)
        .then(|| format!("{}(1)", words[..words.len() - 1].join("-")))
        .into_iter()
        .chain(commands.iter().map(|one| format!("{name}-{}(1)", one.get_name())))
        .collect();
    page.section("SEE ALSO");
    page.related(&related);
    page.end()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    use clap::CommandFactory;

    use super::super::Cli;
    use super::super::examples::with_examples;
    use super::*;

    fn program() -> Command {
        with_examples(Cli::command())
    }

    #[test]
    fn every_command_has_a_page_with_all_its_flags() {
        let pages = pages(program());
        let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), pages.len());
        for name in ["oarlock.1", "oarlock-train.1", "oarlock-tokenizer-train.1", "oarlock-man.1"] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("complete-words") || name.contains("help")));
        let page = |name: &str| &pages.iter().find(|(own, _)| own == name).unwrap().1;
        for flag in ["\\-\\-max\\-new\\-tokens", "\\-\\-temperature", "\\-\\-model"] {
            assert!(page("oarlock-chat.1").contains(flag), "{flag}");
        }
        for key in crate::config::table::KEYS.iter().filter(|key| key.is_used()) {
            assert!(page("oarlock-train.1").contains(&format!("\\fB{}=\\fR", key.name)), "{}", key.name);
        }
        assert!(page("oarlock-train.1").contains("oarlock train recipes/pretrain.yaml"));
        // Each page that another one names is there.
        for (name, text) in &pages {
            for one in text.split("\\fB").filter_map(|rest| rest.split_once("\\fR(1)")).map(|(one, _)| one) {
                let file = format!("{}.1", one.replace("\\-", "-"));
                assert!(names.contains(file.as_str()), "{name}: {file}");
            }
        }
    }

    #[test]
    fn pages_are_renewed_but_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let man = folder.path().join("share/man1");
        let run = || run(&ManArgs { folder: man.clone() }, program());
        assert!(run().is_ok() && run().is_ok());
        let n_pages = std::fs::read_dir(&man).unwrap().count();
        assert_eq!(n_pages, pages(program()).len());
        std::fs::write(man.join("oarlock.1"), ".TH SOMEBODY 1\n").unwrap();
        std::fs::remove_file(man.join("oarlock-train.1")).unwrap();
        symlink("/nowhere", man.join("oarlock-train.1")).unwrap();
        assert!(run().is_err());
        assert_eq!(std::fs::read_to_string(man.join("oarlock.1")).unwrap(), ".TH SOMEBODY 1\n");
        assert!(std::fs::symlink_metadata(man.join("oarlock-train.1")).unwrap().is_symlink());
    }
}
