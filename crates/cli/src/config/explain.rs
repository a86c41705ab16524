//! The table of keys in words: the help text of `oarlock train` and the page `docs/keys.md`.

use std::fmt::Write as _;

use oarlock_config::settings::keys::{Group, Row, Status, ValueType};

use super::table::KEYS;

/// The help text of the keys: those that have a meaning, in groups, then the names of the others.
pub fn help() -> String {
    let mut out = String::new();
    let name = |key: &Row| format!("{}={}", key.name, key.value_type.placeholder());
    let width = used().map(|key| name(key).len()).max().unwrap_or(0);
    for group in Group::ALL {
        let _ = writeln!(out, "{}:", group.title());
        for key in used().filter(|key| key.group == group) {
            let _ = writeln!(out, "  {:width$}  {}", name(key), described(key));
        }
        out.push('\n');
    }
    let names = |keep: &dyn Fn(Status) -> bool| {
        KEYS.iter().filter(|key| keep(key.status)).map(|key| key.name).collect::<Vec<_>>()
    };
    out.push_str("Accepted without effect:\n");
    wrap(&mut out, &names(&|status| matches!(status, Status::NoEffect(_))));
    out.push_str("\nNot supported yet (accepted while they change nothing):\n");
    wrap(&mut out, &names(&|status| matches!(status, Status::Later(_))));
    out
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
         Generated from the table in `crates/cli/src/config/table.rs`; a test keeps both equal \
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
    use oarlock_config::settings::dialect::{deepspeed_keys, fsdp_keys};

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

    #[test]
    fn help_names_every_key_and_fits_a_wide_terminal() {
        let help = help();
        for key in KEYS {
            assert!(help.contains(key.name), "{}", key.name);
        }
        assert!(help.contains("  learning_rate=X "));
        assert!(help.contains("Peak learning rate [5e-5]\n"));
    }
}
