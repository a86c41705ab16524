//! The recipes are runs that work as they stand, and what their README says of the corpus is true.

use std::collections::HashMap;
use std::path::Path;

use oarlock::data::{Source, Tokenizer, TrainSettings, train_bpe};
use oarlock_cli::config::render::render;
use oarlock_cli::config::{Placement, paths, train_config, written};

/// The root of the repository, where paths in recipes begin. Each test goes there; it is the same place for all.
fn at_the_root() {
    std::env::set_current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
}

const CORPUS: &str = "recipes/corpus/pretrain.jsonl";
const MODEL: &str = "recipes/minimind-small";

#[test]
fn every_recipe_is_a_run() {
    at_the_root();
    let mut n_recipes = 0;
    for entry in std::fs::read_dir("recipes").unwrap() {
        let path = entry.unwrap().path();
        // Accelerate's configuration is one of a launch; its script is in tests/minimind.rs.
        let of_launch = path.ends_with("accelerate_config.yaml");
        if !of_launch && path.extension().is_some_and(|extension| extension == "yaml") {
            let mut words = vec![path.to_str().unwrap().to_owned()];
            // One that goes on from the result of another, which has the shape of this model.
            if std::fs::read_to_string(&path).unwrap().contains("model_name_or_path: out/") {
                words.push(format!("model_name_or_path={MODEL}"));
            }
            let arguments = written::arguments(&oarlock_cli::config::Words::new(&words))
                .unwrap_or_else(|e| panic!("{}", render(&e, false, 100)));
            let config =
                train_config(&arguments, &|_| None).unwrap_or_else(|e| panic!("{}", render(&e, false, 100)));
            paths::check(&config).unwrap_or_else(|e| panic!("{}", render(&e, false, 100)));
            assert_eq!(config.without_effect().count(), 0, "{}: a recipe has no idle keys", path.display());
            n_recipes += 1;
        }
    }
    assert!(n_recipes > 0);
}

#[test]
fn every_deepspeed_file_goes_with_a_run() {
    at_the_root();
    let mut n_files = 0;
    for entry in std::fs::read_dir("recipes").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let words = ["recipes/pretrain.yaml".to_owned(), format!("deepspeed={}", path.display())];
            let arguments = written::arguments(&oarlock_cli::config::Words::new(&words))
                .unwrap_or_else(|e| panic!("{}", render(&e, false, 100)));
            let config =
                train_config(&arguments, &|_| None).unwrap_or_else(|e| panic!("{}", render(&e, false, 100)));
            assert_eq!(config.without_effect().count(), 0, "{}: a recipe has no idle keys", path.display());
            assert_eq!(config.shard.placements.gradients, Placement::Sharded, "{}", path.display());
            n_files += 1;
        }
    }
    assert!(n_files > 0);
}

#[test]
fn the_tokenizer_is_what_the_corpus_gives() {
    at_the_root();
    let folder = tempfile::tempdir().unwrap();
    let source = Source::resolve(CORPUS, Path::new("data"), None).unwrap();
    train_bpe(&source, folder.path(), &TrainSettings::minimind(1024)).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let read = |dir: &Path| std::fs::read_to_string(dir.join(file)).unwrap();
        // assert! instead of assert_eq!: a difference would print both files.
        assert!(
            read(folder.path()) == read(Path::new(MODEL)),
            "{file}: train it again, as recipes/README.md says"
        );
    }
}

/// H(next | prev) in nats per token over the records, one end-of-text token after each.
fn bigram_entropy(tokenizer: &Tokenizer, source: &Source) -> f64 {
    let texts: Vec<String> = source.texts().map(Result::unwrap).collect();
    let end = tokenizer.special().eos.unwrap();
    let records = tokenizer.encode_batch(&texts).unwrap();
    let stream: Vec<u32> = records.into_iter().flat_map(|ids| ids.into_iter().chain([end])).collect();
    let (mut pairs, mut firsts) = (HashMap::new(), HashMap::new());
    for pair in stream.windows(2) {
        *pairs.entry((pair[0], pair[1])).or_insert(0.0) += 1.0;
        *firsts.entry(pair[0]).or_insert(0.0) += 1.0;
    }
    let n_pairs = (stream.len() - 1) as f64;
    pairs.iter().map(|((first, _), n): (_, &f64)| -n / n_pairs * (n / firsts[first]).ln()).sum()
}

#[test]
fn the_bigram_entropy_is_the_one_that_is_quoted() {
    at_the_root();
    let tokenizer = Tokenizer::open(MODEL).unwrap();
    let source = Source::resolve(CORPUS, Path::new("data"), None).unwrap();
    let quoted = format!("{:.3}", bigram_entropy(&tokenizer, &source));
    for page in ["README.md", "recipes/README.md"] {
        assert!(std::fs::read_to_string(page).unwrap().contains(&quoted), "{page} should say {quoted}");
    }
}
