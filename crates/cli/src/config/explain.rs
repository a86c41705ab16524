//! The table of keys in words: the help text of `oarlock train` and the page `docs/keys.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use oarlock_config::settings::keys::{Group, Row, Status, ValueType};
use oarlock_config::settings::problem::Problem;

use super::table::{KEYS, nearest};
use super::words::Words;

/// Our own flags, which every front end has beside those of its original.
pub const OWN: [(&str, &str); 2] = [
    ("dry-run", "Stop before anything is started, and show what would be"),
    ("print-config", "Show every value of the run with its origin"),
];

/// The help text of a command that trains, which is called as `command`: how it is called, and its keys. `words` narrow
/// it to groups, or to the keys that contain a word.
///
/// # Errors
/// A word that names no group and that no key contains.
pub fn help(command: &str, words: &Words) -> Result<String, Problem> {
    let mut out = format!(
        "Example: {command} recipes/pretrain.yaml learning_rate=1e-3\n\n\
         Usage: {command} FILE.yaml [key=value …]\n\n\
         \x20 --dry-run       Check the configuration, predict the memory, and stop\n\
         \x20 --print-config  Show every value of the run with its origin\n\
         \x20 --help [WORD]   List the keys: all of them, those of a group, or those that contain a word\n\n\
         Groups: {}\n\n",
        group_names()
    );
    let is_own = |word: &str| OWN.iter().any(|(flag, _)| word.strip_prefix("--") == Some(flag));
    let asked = (0..words.len()).filter(|at| words.get(*at).is_some_and(|word| !is_own(word)));
    match asked.collect::<Vec<_>>().as_slice() {
        [] => out.push_str(&all_keys()),
        asked => out.push_str(&matching_keys(command, words, asked)?),
    }
    Ok(out)
}

/// The keys that have a meaning, in groups, then the names of the others.
fn all_keys() -> String {
    let keys: Vec<&Row> = used().collect();
    let mut out = grouped(&keys);
    let names = |keep: &dyn Fn(Status) -> bool| {
        KEYS.iter().filter(|key| keep(key.status)).map(|key| key.name).collect::<Vec<_>>()
    };
    out.push_str("Accepted without effect:\n");
    wrap(&mut out, &names(&|status| matches!(status, Status::NoEffect(_))));
    out.push_str("\nNot supported yet (accepted while they change nothing):\n");
    wrap(&mut out, &names(&|status| matches!(status, Status::Later(_))));
    out
}

/// The keys of the groups that some of the words name, and those that contain one of them.
fn matching_keys(command: &str, words: &Words, asked: &[usize]) -> Result<String, Problem> {
    let mut keys: Vec<&Row> = Vec::new();
    for &at in asked {
        let word = words.get(at).unwrap_or_default().trim_start_matches('-');
        let word = word.split('=').next().unwrap_or_default().to_lowercase();
        let group = Group::ALL.into_iter().find(|group| group_name(*group) == word);
        let is_meant = |key: &&Row| match group {
            Some(group) => key.group == group,
            None => contains(key, &word),
        };
        let found: Vec<&Row> = KEYS.iter().filter(is_meant).collect();
        if found.is_empty() {
            let problem = Problem::new(format!("no key contains `{word}`")).at(&words.location(at), "");
            return Err(match nearest(&word) {
                Some(near) => problem.help(format!("did you mean `{near}`?")),
                None => {
                    problem.help(format!("`{command} --help` lists every key; groups: {}", group_names()))
                }
            });
        }
        keys.extend(found);
    }
    Ok(grouped(&keys))
}

/// Whether a word stands in the name of a key, its meaning or its values.
fn contains(key: &Row, word: &str) -> bool {
    let choices = match key.value_type {
        ValueType::Choice(names) => names,
        _ => &[],
    };
    key.name.contains(&word.replace('-', "_"))
        || key.doc.to_lowercase().contains(word)
        || choices.contains(&word)
}

/// Keys under the headings of their groups; behind one that changes nothing the reason.
fn grouped(keys: &[&Row]) -> String {
    let mut out = String::new();
    let name = |key: &Row| format!("{}={}", key.name, key.value_type.placeholder());
    let width = keys.iter().map(|key| name(key).len()).max().unwrap_or(0);
    for group in Group::ALL {
        let mut of_group: Vec<&Row> = keys.iter().copied().filter(|key| key.group == group).collect();
        // Two words may have found the same key.
        let mut seen = BTreeSet::new();
        of_group.retain(|key| seen.insert(key.name));
        if of_group.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{}:", group.title());
        for key in of_group {
            let _ = writeln!(out, "  {:width$}  {}{}", name(key), described(key), without_effect(key));
        }
        out.push('\n');
    }
    out
}

/// The word by which a help text is narrowed to a group.
fn group_name(group: Group) -> String {
    group.title().split(' ').next().unwrap_or_default().to_lowercase()
}

fn group_names() -> String {
    Group::ALL.map(group_name).join(", ")
}

/// Why a key changes nothing, for help texts; empty where it has a meaning.
pub fn without_effect(key: &Row) -> String {
    match key.status {
        Status::NoEffect(reason) => format!(" (accepted without effect: {reason})"),
        Status::Later(reason) => format!(" (not supported: {reason})"),
        Status::Used | Status::Only(_) | Status::Among(..) => String::new(),
    }
}

/// What a key means, with the values it takes and its default, for help texts.
pub fn described(key: &Row) -> String {
    let mut text = key.doc.to_owned();
    if let ValueType::Choice(names) = key.value_type {
        let _ = write!(text, " ({})", names.join(", "));
    }
    if !key.default.is_empty() {
        let _ = write!(text, " [{}]", key.default);
    }
    text
}

/// The default of a key as a cell of a table.
fn default_cell(key: &Row) -> String {
    if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) }
}

fn used() -> impl Iterator<Item = &'static Row> {
    KEYS.iter().filter(|key| key.is_used())
}

fn wrap(out: &mut String, names: &[&str]) {
    let mut column = 0;
    for name in names {
        if column > 0 && column + name.len() > 96 {
            out.push('\n');
            column = 0;
        }
        let gap = if column == 0 { "  " } else { ", " };
        out.push_str(gap);
        out.push_str(name);
        column += gap.len() + name.len();
    }
    out.push('\n');
}

/// The page `docs/keys.md`.
pub fn page() -> String {
    let mut out = String::from(
        "# Keys of the training configuration\n\n\
         Generated from the tables in `crates/config/src/config/`; a test keeps both equal \
         (`OARLOCK_BLESS=1 cargo test -p oarlock-cli --lib docs_page` updates it).\n\n\
         A configuration is a YAML or JSON file with the keys of LLaMA-Factory, and `key=value` arguments, which win over it.\n\
         Paths are relative to the working directory.\n\
         A key that is not on this page is an error.\n",
    );
    for group in Group::ALL {
        let _ =
            write!(out, "\n## {}\n\n| key | value | default | meaning |\n|---|---|---|---|\n", group.title());
        for key in used().filter(|key| key.group == group) {
            let so_far = match key.status {
                Status::Only(reason) | Status::Among(_, reason) => format!("; so far {reason}"),
                _ => String::new(),
            };
            let (kind, default) = (key.value_type.describe(), default_cell(key));
            let _ = writeln!(out, "| `{}` | {kind} | {default} | {}{so_far} |", key.name, key.doc);
        }
    }
    out.push_str(
        "\n## Accepted without effect\n\n| key | elsewhere | why it changes nothing here |\n|---|---|---|\n",
    );
    for key in KEYS {
        if let Status::NoEffect(reason) = key.status {
            let _ = writeln!(out, "| `{}` | {} | {reason} |", key.name, key.doc);
        }
    }
    out.push_str(
        "\n## Not supported yet\n\n\
         Accepted while they are false, null or the default; any other value is an error.\n\n\
         | key | elsewhere | default | instead |\n|---|---|---|---|\n",
    );
    for key in KEYS {
        if let Status::Later(reason) = key.status {
            let _ = writeln!(out, "| `{}` | {} | {} | {reason} |", key.name, key.doc, default_cell(key));
        }
    }
    out
}

/// The keys of another program's block as tables, for its page.
pub fn block_tables(keys: &[Row]) -> String {
    let mut out = String::new();
    for (title, heading, wanted) in [
        ("With a meaning", "meaning here", 0),
        ("Accepted without effect", "elsewhere | why it changes nothing here", 1),
        ("Not supported yet", "elsewhere | instead", 2),
    ] {
        let n_columns = heading.split('|').count() + 2;
        let _ =
            write!(out, "\n### {title}\n\n| key | default | {heading} |\n|{}\n", "---|".repeat(n_columns));
        for key in keys {
            let (kind, reason) = match key.status {
                Status::Used => (0, None),
                Status::NoEffect(reason) => (1, Some(reason)),
                Status::Later(reason) | Status::Only(reason) | Status::Among(_, reason) => (2, Some(reason)),
            };
            if kind == wanted {
                let reason = reason.map(|reason| format!(" {reason} |")).unwrap_or_default();
                let _ = writeln!(out, "| `{}` | {} | {} |{reason}", key.name, default_cell(key), key.doc);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::accelerate::keys as accelerate_keys;
    use super::*;
    use oarlock_config::dialect::{deepspeed_keys, fsdp_keys};

    #[test]
    fn pages_of_blocks_end_with_their_tables() {
        const MARK: &str = "<!-- The rest is generated from the table of keys. -->\n";
        let accelerate = [accelerate_keys::FLAGS, accelerate_keys::FILE_ONLY].concat();
        for (page, keys) in
            [("deepspeed", deepspeed_keys::KEYS), ("fsdp", fsdp_keys::KEYS), ("accelerate", &accelerate)]
        {
            let path = format!("{}/../../docs/{page}.md", env!("CARGO_MANIFEST_DIR"));
            let written = std::fs::read_to_string(&path).unwrap();
            let (prose, _) = written.split_once(MARK).unwrap();
            let expected = format!("{prose}{MARK}{}", block_tables(keys));
            if std::env::var_os("OARLOCK_BLESS").is_some() {
                std::fs::write(&path, &expected).unwrap();
            } else {
                assert!(
                    written == expected,
                    "docs/{page}.md is not what the table says; use OARLOCK_BLESS=1"
                );
            }
        }
    }

    #[test]
    fn docs_page_equals_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
        if std::env::var_os("OARLOCK_BLESS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap();
        assert!(written == page(), "docs/keys.md is not what the table says; update it with OARLOCK_BLESS=1");
    }

    fn help_of(line: &str) -> Result<String, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        help("oarlock train", &Words::new(&words)).map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn help_begins_with_an_example_and_names_every_key() {
        let help = help_of("").unwrap();
        assert!(help.starts_with("Example: oarlock train recipes/pretrain.yaml learning_rate=1e-3\n"));
        for key in KEYS {
            assert!(help.contains(key.name), "{}", key.name);
        }
        assert!(help.contains("  learning_rate=X "));
        assert!(help.contains("Peak learning rate [5e-5]\n"));
    }

    #[test]
    fn a_word_narrows_the_help() {
        let lora = help_of("LoRA").unwrap();
        for name in ["lora_rank=", "loraplus_lr_ratio=", "use_rslora=", "finetuning_type="] {
            assert!(lora.contains(name), "{name}: {lora}");
        }
        assert!(!lora.contains("learning_rate=X") && lora.lines().count() < 50, "{lora}");
        let checkpoints = help_of("checkpoints").unwrap();
        assert!(checkpoints.contains("save_steps=") && !checkpoints.contains("lora_rank="), "{checkpoints}");
        // A key as it is written, two words, and a key that changes nothing, with the reason.
        assert!(help_of("save-steps=5").unwrap().contains("save_steps="));
        assert!(help_of("lora_rank evaluation").unwrap().contains("eval_steps="));
        assert!(help_of("full_determinism").unwrap().contains("accepted without effect: every run is"));
        let once = help_of("lora_rank lora_rank --dry-run").unwrap();
        assert_eq!(once.matches("\n  lora_rank=").count(), 1, "{once}");
        assert!(help_of("lora_rnak").unwrap_err().contains("did you mean `lora_rank`?"));
        assert!(help_of("wombat").unwrap_err().contains("no key contains `wombat`"));
    }
}
