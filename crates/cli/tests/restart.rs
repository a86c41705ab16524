//! A run that is interrupted, anywhere and by anything, and goes on is the run that was not interrupted, bitwise
//! identical.

use std::time::Duration;

use oarlock::checkpoint::newest;

use crate::common::{Site, run, start, until};
use rustix::process::{Pid, Signal, kill_process};

/// All state of a checkpoint: the files that its ranks wrote.
fn state(site: &Site, checkpoint: &str) -> Vec<Vec<u8>> {
    [0, 1].map(|rank| site.read(&format!("{checkpoint}/state/rank-{rank:05}-of-00002.safetensors"))).into()
}

#[test]
fn data_that_is_read_otherwise_is_other_data() {
    let site = Site::new();
    site.write(
        "talk.json",
        r#"[{"one": "the river", "other": "a boat"}, {"one": "the lock", "other": "a gate"}]"#,
    );
    let columns = |prompt: &str, response: &str| {
        let columns = serde_json::json!({"prompt": prompt, "response": response});
        let info = serde_json::json!({"talk": {"file_name": "talk.json", "columns": columns}});
        site.write("dataset_info.json", &info.to_string());
    };
    let words = |steps| {
        let talk = ["stage=sft", "template=default", "dataset=talk", "dataset_dir=.", "cutoff_len=64"];
        [&talk[..], &["num_processes=1", "save_strategy=steps", steps]].concat()
    };
    columns("one", "other");
    site.train("out", &words("max_steps=1"));
    // The file is the same, and so are the numbers of rows and of tokens.
    columns("other", "one");
    let said = run(site.training("out", &words("max_steps=2")));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("dataset: its files become other tokens"), "{said:?}");
    columns("one", "other");
    site.train("out", &words("max_steps=2"));
}

#[test]
fn from_any_step_it_goes_on_to_the_bit() {
    for (precision, steps) in [("bf16=false", &[1, 4, 5, 9][..]), ("bf16=true", &[3, 7])] {
        let site = Site::new();
        let words = [precision, "gradient_accumulation_steps=2", "save_strategy=steps", "save_steps=1"];
        site.train("whole", &words);
        let losses = site.losses("whole");
        assert_eq!(losses.len(), 10);
        for step in steps {
            let from = format!("resume_from_checkpoint=whole/checkpoint-{step}");
            let said = site.train("resumed", &[&words[..], &[&from, "overwrite_output_dir=true"]].concat());
            assert!(
                said.stdout.contains(&format!("Resuming training from whole/checkpoint-{step}.")),
                "{said:?}"
            );
            assert_eq!(site.losses("resumed"), losses[*step as usize..], "{precision}, step {step}");
            assert!(site.model("resumed") == site.model("whole"), "{precision}, step {step}");
            assert!(
                state(&site, "resumed/checkpoint-10") == state(&site, "whole/checkpoint-10"),
                "{precision}, step {step}"
            );
            std::fs::remove_dir_all(site.path("resumed")).unwrap();
        }
    }
}

#[test]
fn killed_anywhere_it_goes_on_to_the_bit() {
    let site = Site::new();
    let words = ["max_steps=30", "save_strategy=steps", "save_steps=5", "save_total_limit=2"];
    site.train("whole", &words);
    for (victim, signal, step) in [
        ("launcher", Signal::KILL, 7),
        ("rank 0", Signal::KILL, 10),
        ("rank 1", Signal::KILL, 14),
        ("launcher", Signal::TERM, 3),
    ] {
        let output = format!("{victim} {step}");
        let running = start(site.training(&output, &words));
        let ranks = running.ranks(2);
        until("the step", || (site.log(&output).len() >= step).then_some(()));
        let pid = match victim {
            "launcher" => running.pid(),
            "rank 0" => ranks[0],
            _ => ranks[1],
        };
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
        let said = running.wait();
        assert!(said.code != Some(0) && !said.stdout.contains("done:"), "not interrupted: {said:?}");
        until("the end of the ranks", || {
            ranks.iter().all(|&pid| !crate::common::is_alive(pid)).then_some(())
        });

        // The checkpoint that was being written may or may not be there.
        let whole = newest(&site.path(&output)).unwrap().path;
        let again = site.train(&output, &words);
        assert_eq!(again.stdout.contains("Resuming training"), whole.is_some(), "{again:?}");
        assert!(whole.is_none() || step >= 5);
        assert_eq!(site.losses(&output), site.losses("whole"), "{output}");
        assert!(site.model(&output) == site.model("whole"), "{output}");
        assert!(
            state(&site, &format!("{output}/checkpoint-30")) == state(&site, "whole/checkpoint-30"),
            "{output}"
        );
    }
}

#[test]
fn killed_inside_a_save_it_goes_on_to_the_bit() {
    let site = Site::new();
    let words = ["max_steps=8", "save_strategy=steps", "save_steps=1", "save_total_limit=2"];
    site.train("whole", &words);
    for (index, (victim, micros)) in
        [(None, 0), (Some(0), 1500), (Some(1), 0), (Some(0), 4000)].into_iter().enumerate()
    {
        let output = format!("out{index}");
        let running = start(site.training(&output, &words));
        let ranks = running.ranks(2);
        let unfinished = || {
            let names = std::fs::read_dir(site.path(&output)).into_iter().flatten();
            names
                .map(|entry| entry.unwrap().file_name())
                .find(|name| name.to_string_lossy().contains(".tmp-"))
        };
        until("a save", unfinished);
        std::thread::sleep(Duration::from_micros(micros));
        let pid = victim.map_or(running.pid(), |rank: usize| ranks[rank]);
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let said = running.wait();
        assert!(said.code != Some(0), "not interrupted: {said:?}");
        until("the end of the ranks", || {
            ranks.iter().all(|&pid| !crate::common::is_alive(pid)).then_some(())
        });

        site.train(&output, &words);
        assert_eq!(site.losses(&output), site.losses("whole"), "{output}");
        assert!(site.model(&output) == site.model("whole"), "{output}");
        assert_eq!(unfinished(), None);
    }
}

#[test]
fn on_another_number_of_ranks_it_goes_on() {
    let site = Site::new();
    site.train("whole", &["save_strategy=steps", "save_steps=4"]);
    let losses = site.losses("whole");
    let from = "resume_from_checkpoint=whole/checkpoint-4";
    for (ranks, rows) in [(1, 12), (3, 4), (4, 3)] {
        let ranks = format!("num_processes={ranks}");
        let rows = format!("per_device_train_batch_size={rows}");
        let words = [from, &ranks, &rows, "overwrite_output_dir=true"];
        // A run that has nothing left to do writes what it loaded.
        site.train("loaded", &[&words[..], &["max_steps=4"]].concat());
        assert!(site.model("loaded") == site.read("whole/checkpoint-4/model.safetensors"), "{ranks}");

        site.train("resumed", &words);
        let resumed = site.losses("resumed");
        assert_eq!(resumed.len(), 6);
        for ((step, loss, _), (expected_step, expected, _)) in resumed.into_iter().zip(&losses[4..]) {
            assert_eq!(step, *expected_step);
            let apart = (f64::from_bits(loss) - f64::from_bits(*expected)).abs();
            assert!(apart < 1e-5, "{ranks}, step {step}: {apart}");
        }
    }
}

#[test]
fn two_runs_are_the_same_run_with_any_number_of_threads() {
    let site = Site::new();
    for precision in ["bf16=false", "bf16=true"] {
        let runs = ["num_threads_per_process=1", "num_threads_per_process=1", "num_threads_per_process=2"];
        let outputs = runs.iter().enumerate().map(|(i, threads)| {
            let output = format!("{precision} {i}");
            site.train(&output, &[precision, threads]);
            (site.losses(&output), site.model(&output))
        });
        let outputs: Vec<_> = outputs.collect();
        assert_eq!(outputs[0].0.len(), 10);
        assert!(outputs[0] == outputs[1], "{precision}: two runs differ");
        assert!(outputs[0] == outputs[2], "{precision}: one thread and two differ");
    }
}

#[test]
fn a_finished_run_does_nothing_twice() {
    let site = Site::new();
    let words = ["save_strategy=steps", "save_steps=5", "eval_dataset=text.jsonl", "eval_strategy=steps"];
    let words = [&words[..], &["eval_steps=5"]].concat();
    site.train("out", &words);
    let (losses, model, n_records) = (site.losses("out"), site.model("out"), site.log("out").len());
    assert_eq!(n_records, 12);
    let said = site.train("out", &words);
    let message =
        "nothing was trained: this run was finished already, and out/checkpoint-10 is its last step";
    assert!(said.stdout.contains(message), "{said:?}");
    assert_eq!(site.losses("out"), losses);
    assert_eq!(site.log("out").len(), n_records);
    assert!(site.model("out") == model);
    // Told to begin anew, it does.
    let anew = site.train("out", &["overwrite_output_dir=true", "max_steps=2"]);
    assert!(!anew.stdout.contains("Resuming"), "{anew:?}");
    assert_eq!(site.losses("out").len(), 2);
    let missing = run(site.training("empty", &["resume_from_checkpoint=true"]));
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("empty holds no whole checkpoint"), "{missing:?}");
}

/// What the run before had and this one does not have is named as a file would write it.
#[test]
fn a_setting_that_is_gone_is_named_in_the_words_of_its_keys() {
    let site = Site::new();
    let saved = ["save_strategy=steps", "save_steps=2", "finetuning_type=lora"];
    site.train("out", &[&saved[..], &["max_steps=2", "quantization_bit=4", "val_size=4"]].concat());
    let said = run(site.training("out", &[&saved[..], &["max_steps=4"]].concat()));
    assert_eq!(said.code, Some(2), "{said:?}");
    for line in [
        "quantization_bit was 4, with quantization_type: nf4 and double_quantization: true, is not set",
        "val_size was 4, is not set",
    ] {
        assert!(said.stderr.contains(line), "{line}: {said:?}");
    }
}

/// A word for false or true may also be the name of a folder.
#[test]
fn a_folder_with_the_name_of_a_word_is_not_passed_over() {
    let site = Site::new();
    std::fs::create_dir(site.path("f")).unwrap();
    let said = run(site.training("out", &["resume_from_checkpoint=f"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("`f` stands for false"), "{said:?}");
    assert!(said.stderr.contains("`./f` for the folder"), "{said:?}");
    assert!(!site.path("out").exists(), "{said:?}");
    let said = run(site.training("out", &["resume_from_checkpoint=./f"]));
    assert!(said.code != Some(0) && !said.stderr.contains("stands for"), "{said:?}");
    site.train("out", &["resume_from_checkpoint=n", "max_steps=1"]);
}

/// Settings, data and weights that change what is computed are named with what they were, and nothing is trained or written;
/// whoever says so goes on all the same.
#[test]
fn a_run_that_computes_something_else_does_not_go_on() {
    let site = Site::new();
    let saved = ["save_strategy=steps", "save_steps=2"];
    site.train("out", &[&saved[..], &["max_steps=4"]].concat());
    let losses = site.losses("out");
    let refused = |words: &[&str], expected: &[&str]| {
        let said = run(site.training("out", &[&saved[..], &["max_steps=6"], words].concat()));
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
        let head = "out/checkpoint-4 was saved by a run that computes something else; to go on all the same";
        for line in [&[head, "write `resume_anyway: true`"], expected].concat() {
            assert!(said.stderr.contains(line), "{words:?}: {line}: {said:?}");
        }
        assert!(!said.stdout.contains("Resuming"), "{said:?}");
        assert_eq!(site.losses("out"), losses, "{words:?}");
    };
    for (word, line) in [
        ("learning_rate=1e-4", "learning_rate was 0.003, is 0.0001"),
        ("lr_scheduler_type=linear", "lr_scheduler_type was cosine {num_cycles: 0.5}, is linear"),
        ("warmup_steps=1", "warmup_steps was 2, is 1"),
        ("weight_decay=0.2", "weight_decay was 0.1, is 0.2"),
        ("adam_beta2=0.9", "optim was adamw {beta1: 0.9"),
        ("max_grad_norm=0.5", "max_grad_norm was 1.0, is 0.5"),
        ("bf16=true", "dtype was "),
        ("seed=7", "seed was 42, is 7"),
        ("data_seed=7", "data_seed was 42, is 7"),
        ("cutoff_len=16", "cutoff_len was 32, is 16"),
        ("packing=false", "packing was true, is false"),
        ("disable_shuffling=true", "disable_shuffling was false, is true"),
        ("max_samples=20", "max_samples was not set, is 20"),
        ("per_device_train_batch_size=3", "rows of a step was 12, is 6"),
        ("gradient_accumulation_steps=2", "rows of a step was 12, is 24"),
        ("num_processes=1", "rows of a step was 12, is 6"),
        ("neftune_noise_alpha=5", "neftune_noise_alpha was not set, is 5"),
        ("finetuning_type=lora", "finetuning_type was full, is lora"),
    ] {
        refused(&[word], &[line]);
    }
    refused(
        &["seed=7", "learning_rate=1e-4"],
        &["  seed was 42, is 7\n", "  learning_rate was 0.003, is 0.0001\n"],
    );
    // What the files hold.
    let changed = |name: &str, bytes: &[u8], line: &str| {
        let before = site.read(name);
        std::fs::write(site.path(name), bytes).unwrap();
        refused(&[], &[line]);
        std::fs::write(site.path(name), before).unwrap();
    };
    let text = site.read("text.jsonl");
    let half = &text[..=text.iter().rposition(|byte| *byte == b'\n').unwrap() / 2];
    let half = &half[..=half.iter().rposition(|byte| *byte == b'\n').unwrap()];
    changed("text.jsonl", half, "dataset: text.jsonl has changed");
    let mut weights = site.read("model/model.safetensors");
    *weights.last_mut().unwrap() ^= 1;
    changed("model/model.safetensors", &weights, "model_name_or_path: model.safetensors has changed");
    // With fewer steps than are done nothing can be done.
    let said = run(site.training("out", &["max_steps=3"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.stderr.contains("out/checkpoint-4 is 4 steps into its training, and this run is to end after 3"),
        "{said:?}"
    );
    // What changes nothing else is remarked on: a longer training, other steps between saves, another folder of the same data.
    std::fs::rename(site.path("text.jsonl"), site.path("moved.jsonl")).unwrap();
    let words = ["max_steps=6", "save_strategy=steps", "save_steps=3", "dataset=moved.jsonl"];
    let said = site.train("out", &words);
    let message = "what is other than in the run that saved it: ";
    for part in
        [message, "max_steps was 4, is 6", "save_steps was ", "Resuming training from out/checkpoint-4."]
    {
        assert!(said.stdout.contains(part), "{part}: {said:?}");
    }
    let said = site
        .train("out", &[&words[1..], &["max_steps=8", "learning_rate=1e-4", "resume_anyway=true"]].concat());
    let message = "warning: what is computed is other than in the run that saved it, as resume_anyway allows: learning_rate was";
    assert!(said.stdout.contains(message), "{said:?}");
    assert_eq!(site.losses("out").len(), 8);
}
