//! A folder that somebody else prepared has a link under every name that a command writes. What the links lead to keeps its
//! bytes, whether the command replaces the link or refuses it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{CommandOutput, Site, run};

const PRECIOUS: &str = "export PATH=/usr/bin\n";

/// A command that writes into a folder, which its words name `OUT`.
struct Case {
    name: &'static str,
    words: &'static [&'static str],
}

const TRAIN: &[&str] = &[
    "train",
    "train.yaml",
    "output_dir=OUT",
    "max_steps=2",
    "num_processes=1",
    "save_strategy=steps",
    "save_steps=2",
    "val_size=0.2",
    "eval_strategy=steps",
    "eval_steps=1",
    "plot_loss=true",
    "report_to=tensorboard",
    "logging_dir=OUT/runs",
    "deepspeed=OUT.json",
];

const CASES: &[Case] = &[
    Case { name: "train", words: TRAIN },
    Case {
        name: "predict",
        words: &[
            "train",
            "train.yaml",
            "output_dir=OUT",
            "stage=sft",
            "template=alpaca",
            "dataset=",
            "eval_dataset=talks",
            "dataset_dir=.",
            "num_processes=1",
            "do_train=false",
            "do_predict=true",
            "predict_with_generate=true",
            "max_new_tokens=2",
            "max_samples=2",
        ],
    },
    Case { name: "merge-weights", words: &["merge-weights", "trained", "OUT"] },
    Case {
        name: "export",
        words: &["export", "model_name_or_path=model", "export_dir=OUT", "template=alpaca"],
    },
    Case {
        name: "tokenizer",
        words: &[
            "tokenizer",
            "train",
            "--dataset",
            "text.jsonl",
            "--vocab-size",
            "300",
            "--output-dir",
            "OUT",
        ],
    },
    Case {
        name: "plan",
        words: &[
            "plan",
            "train.yaml",
            "output_dir=unused",
            "num_processes=1",
            "max_steps=2",
            "--profile",
            "OUT/here.json",
        ],
    },
    Case {
        name: "accelerate config",
        words: &["accelerate", "config", "default", "--config_file", "OUT/default.yaml"],
    },
    Case { name: "import-checkpoint", words: &["import-checkpoint", "theirs", "OUT/checkpoint-3"] },
];

/// Names that a command has for a moment only, or had in earlier versions: they are prepared as well.
fn passing_names(written: &BTreeSet<String>) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = written.iter().map(|name| format!("{name}.new")).collect();
    names.extend(written.iter().map(|name| format!("{name}.part")));
    names.extend(["run.lock", "latest", "latest.part"].map(str::to_owned));
    names
}

fn files(folder: &Path, below: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        let name = format!("{below}{}", entry.file_name().into_string().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => files(&entry.path(), &format!("{name}/"), found),
            false => _ = found.insert(name),
        }
    }
}

fn site() -> Site {
    let site = Site::new();
    let deepspeed = r#"{"csv_monitor": {"enabled": true, "output_path": "OUT/tables"},
        "flops_profiler": {"enabled": true, "profile_step": 1, "output_file": "OUT/flops.txt"}}"#;
    site.write("ds.json", deepspeed);
    site.write("dataset_info.json", r#"{"talks": {"file_name": "talks.json"}}"#);
    site.write(
        "talks.json",
        r#"[{"instruction": "one", "output": "two"}, {"instruction": "three", "output": "four"}]"#,
    );
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deepspeed/stage1-bf16");
    symlink(theirs, site.path("theirs")).unwrap();
    site.train("trained", &["max_steps=1", "num_processes=1", "save_strategy=steps", "save_steps=1"]);
    site
}

fn command(site: &Site, case: &Case, folder: &str) -> CommandOutput {
    fs::create_dir_all(site.path(folder)).unwrap();
    let text = String::from_utf8(site.read("ds.json")).unwrap();
    site.write(&format!("{folder}.json"), &text.replace("OUT", folder));
    let words: Vec<String> = case.words.iter().map(|word| word.replace("OUT", folder)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run(site.oarlock(&words))
}

/// Puts a link to a file of its own under each name, and says which file.
fn prepare(site: &Site, folder: &str, names: &BTreeSet<String>) -> Vec<(String, PathBuf)> {
    fs::create_dir_all(site.path(folder)).unwrap();
    fs::create_dir_all(site.path("victims")).unwrap();
    let mut victims = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let victim = site.path(&format!("victims/{folder}-{number}"));
        fs::write(&victim, PRECIOUS).unwrap();
        let link = site.path(folder).join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&victim, &link).unwrap();
        victims.push((name.clone(), victim));
    }
    victims
}

#[test]
fn no_command_writes_through_a_link() {
    let site = site();
    let mut tried = BTreeSet::new();
    for (number, case) in CASES.iter().enumerate() {
        let clean = command(&site, case, &format!("clean{number}"));
        assert_eq!(clean.code, Some(0), "{}: {clean:?}", case.name);
        let mut names = BTreeSet::new();
        files(&site.path(&format!("clean{number}")), "", &mut names);
        assert!(!names.is_empty(), "{}", case.name);
        // A checkpoint is one name, that of its folder.
        let (of_checkpoints, mut names): (BTreeSet<_>, BTreeSet<_>) =
            names.into_iter().partition(|name| name.starts_with("checkpoint-"));
        names.extend(of_checkpoints.iter().map(|name| name.split('/').next().unwrap().to_owned()));
        // Events have the time in their name, and nobody can know it before.
        names.retain(|name| !name.contains("tfevents"));
        names.extend(passing_names(&names));
        // A link that is refused is taken away, so that the command comes to the next.
        let mut refused = BTreeSet::new();
        for round in 0.. {
            assert!(round < 30, "{}: {refused:?}", case.name);
            let folder = format!("out{number}-{round}");
            let kept: BTreeSet<String> = names.difference(&refused).cloned().collect();
            let victims = prepare(&site, &folder, &kept);
            let said = command(&site, case, &folder);
            for (name, victim) in &victims {
                assert_eq!(
                    fs::read_to_string(victim).unwrap(),
                    PRECIOUS,
                    "{}: written through the link {name}: {said:?}",
                    case.name
                );
            }
            tried.extend(kept.iter().map(|name| format!("{}: {name}", case.name)));
            if said.code == Some(0) {
                break;
            }
            let named =
                kept.iter().filter(|name| said.stderr.contains(name.as_str())).max_by_key(|name| name.len());
            let named = named.unwrap_or_else(|| panic!("{}: the message names no link: {said:?}", case.name));
            // A file that is in the way keeps the others from being looked at.
            let all_named = kept.iter().filter(|name| said.stderr.contains(name.as_str())).cloned();
            refused.extend(all_named.chain([named.clone()]));
        }
    }
    assert!(tried.len() >= 60, "only {}: {tried:?}", tried.len());
}

/// Logs that go on are opened where they lie.
#[test]
#[ignore = "heavy"]
fn a_resumed_run_goes_on_in_no_link() {
    let site = site();
    let words: Vec<String> =
        TRAIN.iter().map(|word| word.replace("OUT", "out").replace("max_steps=2", "max_steps=4")).collect();
    let text = String::from_utf8(site.read("ds.json")).unwrap();
    site.write("out.json", &text.replace("OUT", "out"));
    let mut first: Vec<&str> = words.iter().map(String::as_str).collect();
    let first_half = Case { name: "train", words: TRAIN };
    let said = command(&site, &first_half, "out");
    assert_eq!(said.code, Some(0), "{said:?}");
    first.push("resume_from_checkpoint=true");
    let mut names = BTreeSet::new();
    files(&site.path("out"), "", &mut names);
    names.retain(|name| !name.starts_with("checkpoint-") && !name.contains("tfevents"));
    for name in ["running_log.txt", "trainer_log.jsonl", "trainer_state.json", "all_results.json"] {
        assert!(names.contains(name), "{names:?}");
    }
    let mut refused = 0;
    for name in names {
        let (path, victim) = (site.path("out").join(&name), site.path("victim"));
        fs::rename(&path, &victim).unwrap();
        symlink(&victim, &path).unwrap();
        let before = fs::read(&victim).unwrap();
        let said = run(site.oarlock(&first));
        assert!(fs::read(&victim).unwrap() == before, "{name}: {said:?}");
        if said.code != Some(0) {
            // Of what a run may replace, a link is nothing that an earlier one wrote.
            let why = [": it is a link to ", "which no run wrote there", "which this run did not write"];
            let words = said.stderr.split_whitespace().filter(|word| *word != "│");
            let text = words.collect::<Vec<_>>().join(" ");
            // Without the record of the folder nothing in it is known to be the run's.
            let is_named = text.contains(&name) || name == "oarlock_files.json";
            assert!(is_named && why.iter().any(|why| text.contains(why)), "{name}: {said:?}");
            refused += 1;
        }
        let _ = fs::remove_file(&path);
        fs::rename(&victim, &path).unwrap();
    }
    assert!(refused > 0, "running_log.txt goes on where it lies");
}

/// Folders that a run makes below its own, and whatever is on the way to them.
#[test]
fn no_folder_of_a_run_is_one_that_a_link_leads_to() {
    let site = site();
    for name in ["cache", "runs", "tables", "tables/DeepSpeedJobName", "profiles"] {
        let (folder, victim) = (format!("out {name}").replace(['/', ' '], "-"), site.path("victim"));
        let _ = fs::remove_dir_all(&victim);
        fs::create_dir_all(&victim).unwrap();
        fs::create_dir_all(site.path(&folder).join(name).parent().unwrap()).unwrap();
        symlink(&victim, site.path(&folder).join(name)).unwrap();
        let text =
            String::from_utf8(site.read("ds.json")).unwrap().replace("OUT/flops", "OUT/profiles/flops");
        site.write("in.json", &text.replace("OUT", &folder));
        let words: Vec<String> =
            TRAIN.iter().map(|word| word.replace("OUT.json", "in.json").replace("OUT", &folder)).collect();
        let said = run(site.oarlock(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(said.code, Some(2), "{name}: {said:?}");
        assert!(
            said.message().contains("nothing is written through links below output_dir"),
            "{name}: {said:?}"
        );
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{name}: {said:?}");
    }
}
