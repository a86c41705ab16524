//! Which files of a data set belong to which split, where no README.md says so: the rules of `datasets`, in its order.

use std::collections::BTreeMap;

use crate::glob;

/// Files that never hold rows.
const IGNORED: [&str; 6] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
];

/// The splits, with the words that stand for them.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// What may stand beside such a word.
const BESIDE: &str = "[-._ 0-9]";

/// Splits with the paths of their files.
pub(crate) type Splits = Vec<(String, Vec<String>)>;

/// The splits of a list of paths. `folder` is the one that all files lie below, or nothing.
pub(crate) fn of_names(paths: &[&str], folder: &str) -> Splits {
    let numbered = numbered(paths, folder);
    if !numbered.is_empty() {
        return numbered;
    }
    let in_folders = |word: &str| {
        vec![
            format!("**/{word}/**"),
            format!("**/{word}{BESIDE}*/**"),
            format!("**/*{BESIDE}{word}/**"),
            format!("**/*{BESIDE}{word}{BESIDE}*/**"),
        ]
    };
    let in_names = |word: &str| vec![format!("**/{word}{BESIDE}*"), format!("**/*{BESIDE}{word}{BESIDE}*")];
    for is_of_folders in [true, false] {
        let way = |word: &&str| if is_of_folders { in_folders(word) } else { in_names(word) };
        let splits: Splits = KEYWORDS
            .iter()
            .map(|(split, words)| {
                let patterns: Vec<String> = words.iter().flat_map(way).collect();
                ((*split).to_owned(), of_patterns(paths, folder, &patterns))
            })
            .filter(|(_, files)| !files.is_empty())
            .collect();
        if !splits.is_empty() {
            return splits;
        }
    }
    let all = of_patterns(paths, folder, &["**".to_owned()]);
    if all.is_empty() { Vec::new() } else { vec![("train".to_owned(), all)] }
}

/// The paths that patterns below a folder name, each once, in the order of the patterns.
pub(crate) fn of_patterns(paths: &[&str], folder: &str, patterns: &[String]) -> Vec<String> {
    let folder = folder.trim_matches('/');
    let mut found: Vec<String> = Vec::new();
    let mut is_found = std::collections::HashSet::new();
    for pattern in patterns {
        let whole = if folder.is_empty() { pattern.clone() } else { format!("{folder}/{pattern}") };
        let whole = whole.trim_start_matches("./");
        let asks_for = last(whole);
        let takes = |path: &&&str| {
            glob::matches(whole, path)
                && !glob::is_unrequested(whole, path)
                && !(IGNORED.contains(&last(path)) && last(path) != asks_for)
        };
        for path in paths.iter().filter(takes) {
            if is_found.insert(*path) {
                found.push((*path).to_owned());
            }
        }
    }
    found
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Files such as `data/train-00000-of-00002-x.parquet`, by the names before their numbers.
fn numbered(paths: &[&str], folder: &str) -> Splits {
    let folder = folder.trim_matches('/');
    let prefix = if folder.is_empty() { "data/".to_owned() } else { format!("{folder}/data/") };
    let mut splits: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for path in paths {
        if let Some(split) = path.strip_prefix(&prefix).and_then(split_of_number) {
            splits.entry(split).or_default().push((*path).to_owned());
        }
    }
    // The three usual ones first, in the order in which people name them.
    let place = |name: &str| KEYWORDS.iter().position(|(split, _)| *split == name).unwrap_or(KEYWORDS.len());
    let mut splits: Splits = splits.into_iter().map(|(name, files)| (name.to_owned(), files)).collect();
    splits.sort_by_key(|(name, _)| place(name));
    splits
}

/// The split in `{split}-NNNNN-of-NNNNN*.*`.
fn split_of_number(name: &str) -> Option<&str> {
    let (before, behind) = name.rsplit_once("-of-")?;
    let (split, number) = before.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let total = behind.get(..5)?;
    let is_word = !split.is_empty() && split.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    (is_number(number) && is_number(total) && behind[5..].contains('.') && is_word).then_some(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(paths: &[&str]) -> String {
        let one = |(split, files): (String, Vec<String>)| format!("{split}: {}", files.join(" "));
        of_names(paths, "").into_iter().map(one).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn splits_follow_the_rules_of_datasets() {
        for (paths, splits) in [
            (
                &[
                    "README.md",
                    "data/test-00000-of-00001.parquet",
                    "data/train-00000-of-00001-ab.parquet",
                    "train.csv",
                ][..],
                "train: data/train-00000-of-00001-ab.parquet; test: data/test-00000-of-00001.parquet",
            ),
            (&["train/a.json", "dev/b.json", "c.json"], "train: train/a.json; validation: dev/b.json"),
            (&["x/my-train-1/a.json", "eval.json"], "train: x/my-train-1/a.json"),
            (
                &["train.json", "my_test_1.json", "validation-x.json"],
                "train: train.json; validation: validation-x.json; test: my_test_1.json",
            ),
            (&["trains.json", "b.json", ".gitattributes", "dataset_info.json"], "train: trains.json b.json"),
            (&["training.jsonl", "train.jsonl"], "train: train.jsonl training.jsonl"),
            (&["README.md"], ""),
            (&[], ""),
        ] {
            assert_eq!(shown(paths), splits);
        }
        let folder = of_names(&["a/train.json", "b/train.json"], "a");
        assert_eq!(folder, [("train".to_owned(), vec!["a/train.json".to_owned()])]);
    }

    #[test]
    fn patterns_name_files_once_and_what_is_ignored_when_they_say_so() {
        let paths = ["a/x.json", "a/config.json", "b/x.json"];
        let of = |folder: &str, patterns: &[&str]| {
            of_patterns(&paths, folder, &patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of("", &["a/*", "**/x.json"]), ["a/x.json", "b/x.json"]);
        assert_eq!(of("", &["a/config.json"]), ["a/config.json"]);
        assert_eq!(of("b", &["*.json"]), ["b/x.json"]);
    }
}
