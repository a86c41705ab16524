//! The table of keys in words: the help text of `oarlock train` and the page `docs/keys.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use oarlock_config::settings::keys::{Group, Row, Status, ValueType};
use oarlock_config::settings::problem::Problem;

use super::language::Language;
use super::monitor::report_to;
use super::table::{self as keys, KEYS, nearest};
use super::words::Words;

/// Our own flags, which every front end has beside those of its original.
pub const OWN: [(&str, &str); 2] = [
    ("dry-run", "Stop before anything is started, and show what would be"),
    ("print-config", "Show every value of the run with its origin"),
];

/// The help text of a command that trains, which is called as `command`: how it is called, and its keys. `words` narrow
/// it to groups, or to the keys that contain a word; `--lang` among them chooses the language, else it is the reader's.
///
/// # Errors
/// A word that names no group and that no key contains; a language in which there is no help.
pub fn help(command: &str, words: &Words, of_reader: Language) -> Result<String, Problem> {
    let (asked, language) = asked(words, of_reader)?;
    let mut out = language.choose(
        format!(
            "Example: {command} recipes/pretrain.yaml learning_rate=1e-3\n\n\
             Usage: {command} FILE.yaml [key=value …]\n\n\
             \x20 --dry-run       Check the configuration, predict the memory, and stop\n\
             \x20 --print-config  Show every value of the run with its origin\n\
             \x20 --help [WORD]   List the keys: all of them, those of a group, or those that contain a word\n\
             \x20 --lang zh       Behind --help: explain them in Chinese\n\n\
             Groups: {}\n\n",
            group_names()
        ),
        format!(
            "示例：{command} recipes/pretrain.yaml learning_rate=1e-3\n\n\
             用法：{command} FILE.yaml [键=值 …]\n\n\
             \x20 --dry-run       检查配置，预测内存，然后停止\n\
             \x20 --print-config  显示每个值和它的来源\n\
             \x20 --help [WORD]   列出键：全部、一组，或含有某个词的\n\
             \x20 --lang en       写在 --help 后面：用英文说明\n\n\
             分组：{}\n\n",
            group_names()
        ),
    );
    match asked.as_slice() {
        [] => out.push_str(&all_keys(language)),
        asked => out.push_str(&matching_keys(command, words, asked, language)?),
    }
    Ok(out)
}

/// The words that narrow the help, and its language.
fn asked(words: &Words, of_reader: Language) -> Result<(Vec<usize>, Language), Problem> {
    let is_own = |word: &str| OWN.iter().any(|(flag, _)| word.strip_prefix("--") == Some(flag));
    let (mut asked, mut language, mut at) = (Vec::new(), of_reader, 0);
    while let Some(word) = words.get(at) {
        if let Some(name) = word.strip_prefix("--lang") {
            at += usize::from(name.is_empty());
            let name = name.strip_prefix('=').or(words.get(at)).unwrap_or_default();
            language = Language::named(name).ok_or_else(|| {
                Problem::new(format!("no help in `{name}`"))
                    .at(&words.location(at), "")
                    .help("write en or zh")
            })?;
        } else if !is_own(word) {
            asked.push(at);
        }
        at += 1;
    }
    Ok((asked, language))
}

/// The keys that have a meaning, in groups, then the names of the others.
fn all_keys(language: Language) -> String {
    let keys: Vec<&Row> = used().collect();
    let mut out = grouped(&keys, language);
    let names = |keep: &dyn Fn(Status) -> bool| {
        KEYS.iter().filter(|key| keep(key.status)).map(|key| key.name).collect::<Vec<_>>()
    };
    out.push_str(language.choose("Accepted without effect:\n", "接受但不起作用：\n"));
    wrap(&mut out, &names(&|status| matches!(status, Status::NoEffect(_))));
    out.push_str(language.choose(
        "\nNot supported yet (accepted while they change nothing):\n",
        "\n还不支持（不改变什么时可以写）：\n",
    ));
    wrap(&mut out, &names(&|status| matches!(status, Status::Later(_))));
    out
}

/// The keys of the groups that some of the words name, and those that contain one of them.
fn matching_keys(
    command: &str,
    words: &Words,
    asked: &[usize],
    language: Language,
) -> Result<String, Problem> {
    let mut keys: Vec<&Row> = Vec::new();
    for &at in asked {
        let word = words.get(at).unwrap_or_default().trim_start_matches('-');
        let word = word.split('=').next().unwrap_or_default().to_lowercase();
        let is_named = |group: &Group| group_name(*group) == word || Language::Chinese.title(*group) == word;
        let group = Group::ALL.into_iter().find(is_named);
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
    Ok(grouped(&keys, language))
}

/// Whether a word stands in the name of a key, its meaning in any language, or its values.
fn contains(key: &Row, word: &str) -> bool {
    let choices = match key.value_type {
        ValueType::Choice(names) => names,
        _ => &[],
    };
    key.name.contains(&word.replace('-', "_"))
        || key.doc.to_lowercase().contains(word)
        || (!word.is_ascii() && Language::Chinese.meaning(key).to_lowercase().contains(word))
        || choices.contains(&word)
}

/// Keys under the headings of their groups; behind one that changes nothing the reason.
fn grouped(keys: &[&Row], language: Language) -> String {
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
        let _ = writeln!(out, "{}{}", language.title(group), language.choose(":", "："));
        for key in of_group {
            let text = described_in(key, language) + &without_effect_in(key, language);
            let _ = writeln!(out, "  {:width$}  {text}", name(key));
        }
        out.push('\n');
    }
    out
}

/// The keys that have a meaning, under the headings of their groups.
pub fn grouped_keys() -> impl Iterator<Item = (&'static str, Vec<&'static Row>)> {
    let of = |group: Group| (group.title(), used().filter(|key| key.group == group).collect());
    Group::ALL.into_iter().map(of)
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
    without_effect_in(key, Language::English)
}

fn without_effect_in(key: &Row, language: Language) -> String {
    let [reason, begin, end] = match key.status {
        Status::NoEffect(reason) => [
            reason,
            language.choose(" (accepted without effect: ", "（接受但不起作用："),
            language.choose(")", "）"),
        ],
        Status::Later(reason) => {
            [reason, language.choose(" (not supported: ", "（不支持："), language.choose(")", "）")]
        }
        Status::Used | Status::Only(_) | Status::Among(..) => return String::new(),
    };
    format!("{begin}{}{end}", language.reason(reason))
}

/// What a key means, with the values it takes and its default, for help texts.
pub fn described(key: &Row) -> String {
    described_in(key, Language::English)
}

fn described_in(key: &Row, language: Language) -> String {
    let mut text = language.meaning(key).to_owned();
    if let ValueType::Choice(names) = key.value_type {
        let _ = match language {
            Language::English => write!(text, " ({})", names.join(", ")),
            Language::Chinese => write!(text, "（{}）", names.join(", ")),
        };
    }
    if !key.default.is_empty() {
        let _ = write!(text, " [{}]", key.default);
    }
    text
}

/// The values of which a key takes one, where they can be listed.
pub fn choices(key: &Row) -> Vec<&'static str> {
    let mut names = match (key.status, key.value_type) {
        (Status::Only(_), _) if !key.default.is_empty() => vec![key.default],
        (Status::Among(names, _), _) | (_, ValueType::Choice(names)) => names.to_vec(),
        (_, ValueType::Bool | ValueType::BoolOrPath) => vec!["true", "false"],
        _ if key.name == keys::REPORT_TO.row.name => report_to().collect(),
        _ => Vec::new(),
    };
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    names
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

/// The page `docs/keys.md`, or `docs/zh/keys.md`.
pub fn page(language: Language) -> String {
    let mut out = language
        .choose(
            "# Keys of the training configuration\n\n\
             Generated from the tables in `crates/config/src/config/`; a test keeps both equal \
             (`OARLOCK_BLESS=1 cargo test -p oarlock-cli --lib docs_page` updates it).\n\n\
             A configuration is a YAML or JSON file with the keys of LLaMA-Factory, and `key=value` arguments, which win over it.\n\
             Paths are relative to the working directory.\n\
             A key that is not on this page is an error.\n",
            "# 训练配置的键\n\n\
             本页由程序生成，说明写在 `crates/cli/src/config/chinese.txt`，由测试保证一致\
             （用 `OARLOCK_BLESS=1 cargo test -p oarlock-cli --lib docs_page` 更新）。\n\n\
             配置是 YAML 或 JSON 文件，键与 LLaMA-Factory 相同；命令行上的 `key=value` 优先于文件。\n\n\
             路径相对于当前目录。\n\n\
             写了本页没有的键，就会报错。\n\n\
             在终端里查：`oarlock train --help 学习率 --lang zh`。\n",
        )
        .to_owned();
    for group in Group::ALL {
        let head = language.choose("key | value | default | meaning", "键 | 值 | 默认 | 含义");
        let _ = write!(out, "\n## {}\n\n| {head} |\n|---|---|---|---|\n", language.title(group));
        for key in used().filter(|key| key.group == group) {
            let so_far = match key.status {
                Status::Only(reason) | Status::Among(_, reason) => {
                    format!("{}{}", language.choose("; so far ", "；"), language.reason(reason))
                }
                _ => String::new(),
            };
            let (kind, default) = (language.values(key.value_type), default_cell(key));
            let meaning = language.meaning(key);
            let _ = writeln!(out, "| `{}` | {kind} | {default} | {meaning}{so_far} |", key.name);
        }
    }
    out.push_str(language.choose(
        "\n## Accepted without effect\n\n| key | elsewhere | why it changes nothing here |\n|---|---|---|\n",
        "\n## 接受但不起作用\n\n| 键 | 在别处的含义 | 这里为什么不起作用 |\n|---|---|---|\n",
    ));
    for key in KEYS {
        if let Status::NoEffect(reason) = key.status {
            let (meaning, reason) = (language.meaning(key), language.reason(reason));
            let _ = writeln!(out, "| `{}` | {meaning} | {reason} |", key.name);
        }
    }
    out.push_str(language.choose(
        "\n## Not supported yet\n\n\
         Accepted while they are false, null or the default; any other value is an error.\n\n\
         | key | elsewhere | default | instead |\n|---|---|---|---|\n",
        "\n## 还不支持\n\n\
         值为 false、null 或默认值时可以写，其他值会报错。\n\n\
         | 键 | 在别处的含义 | 默认 | 怎么办 |\n|---|---|---|---|\n",
    ));
    for key in KEYS {
        if let Status::Later(reason) = key.status {
            let (meaning, reason) = (language.meaning(key), language.reason(reason));
            let _ = writeln!(out, "| `{}` | {meaning} | {} | {reason} |", key.name, default_cell(key));
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
        for (name, language) in [("keys", Language::English), ("zh/keys", Language::Chinese)] {
            let path = format!("{}/../../docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("OARLOCK_BLESS").is_some() {
                std::fs::write(&path, page(language)).unwrap();
            }
            let written = std::fs::read_to_string(&path).unwrap();
            assert!(
                written == page(language),
                "docs/{name}.md is not what the table says; update it with OARLOCK_BLESS=1"
            );
        }
    }

    fn help_of(line: &str) -> Result<String, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        help("oarlock train", &Words::new(&words), Language::English)
            .map_err(|problem| format!("{problem:?}"))
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
    fn the_help_speaks_chinese() {
        let rate = help_of("learning_rate --lang zh").unwrap();
        assert!(rate.contains("优化器和学习率：\n") && rate.contains("学习率的峰值 [5e-5]\n"), "{rate}");
        // The word may be Chinese, and so may the name of a group.
        assert!(help_of("--lang=zh_CN 梯度累积").unwrap().contains("gradient_accumulation_steps=N"));
        assert!(help_of("检查点").unwrap().contains("Steps between checkpoints"));
        assert!(
            help_of("full_determinism --lang zh").unwrap().contains("（接受但不起作用：每次运行都是确定的）")
        );
        let all = help_of("--lang zh").unwrap();
        for key in KEYS {
            assert!(all.contains(key.name), "{}", key.name);
        }
        assert!(help_of("lora --lang de").unwrap_err().contains("no help in `de`"));
        assert!(help_of("lora --lang").unwrap_err().contains("no help in ``"));
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
