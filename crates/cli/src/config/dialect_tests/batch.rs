//! The batch triple of DeepSpeed, case by case with DeepSpeed's own outcomes.

use super::super::tests::{MINIMUM, train};

/// What DeepSpeed makes of every case, written by bench/golden/make_batch_triple.py. The one difference: where
/// neither batch is given DeepSpeed refuses, and here the run's own batch size (8, as in transformers) holds.
#[test]
fn the_triple_is_completed_as_in_deepspeed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ds.json");
    let (mut n_cases, mut n_wrong) = (0, 0);
    let golden = include_str!("../../../tests/golden/batch_triple.txt");
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let json: Vec<String> = [
            ("train_batch_size", 0),
            ("train_micro_batch_size_per_gpu", 1),
            ("gradient_accumulation_steps", 2),
        ]
        .iter()
        .filter(|(_, i)| words[*i] != "-")
        .map(|(key, i)| format!("\"{key}\": {}", words[*i]))
        .collect();
        std::fs::write(&path, format!("{{{}}}", json.join(", "))).unwrap();
        let text = format!("{}num_processes: {}\ndeepspeed: {}\n", MINIMUM, words[3], path.display());
        let ours = train(&text, &[], &[]);
        n_cases += 1;
        match (ours, words[4]) {
            (Ok(config), "error") => {
                assert!(words[0] == "-" && words[1] == "-", "{line}: accepted");
                assert_eq!(config.train.batch_size, 8, "{line}");
            }
            (Err(problems), "error") => {
                n_wrong += 1;
                assert!(problems.to_string().contains("train_batch_size"), "{line}: {problems}");
            }
            (Ok(config), _) => {
                let three = [words[4], words[5], words[6]].map(|word| word.parse::<usize>().unwrap());
                let (micro, steps) = (config.train.batch_size, config.train.accumulation);
                assert_eq!([micro * steps * config.ranks.num_processes, micro, steps], three, "{line}");
            }
            (Err(problems), _) => panic!("{line}: {problems}"),
        }
    }
    assert!(n_cases == 240 && n_wrong > 50, "{n_cases} {n_wrong}");
}
