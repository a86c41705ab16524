//! The recipes inside the program: the folder that `oarlock init` makes, and training by the name of a recipe.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::common::{Site, run, until};

/// A few steps of a recipe, without evaluations and pictures.
const SHORT: [&str; 5] =
    ["max_steps=3", "eval_strategy=no", "plot_loss=false", "logging_steps=1", "bf16=false"];

fn short<'w>(words: &[&'w str]) -> Vec<&'w str> {
    words.iter().copied().chain(SHORT).collect()
}

#[test]
#[ignore = "heavy"]
fn a_new_folder_trains_by_the_command_that_is_shown() {
    let site = Site::new();
    let said = run(site.oarlock(&["init"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.stdout.starts_with("9 files are in oarlock-pretrain: recipes/pretrain.yaml and what it reads.")
    );
    assert!(
        said.stdout.contains("    cd oarlock-pretrain\n    oarlock train recipes/pretrain.yaml\n"),
        "{said:?}"
    );
    let mut command = site.oarlock(&short(&["train", "recipes/pretrain.yaml"]));
    command.current_dir(site.path("oarlock-pretrain"));
    let said = run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(site.losses("oarlock-pretrain/out/pretrain").len(), 3);

    // The name of the recipe is the same run, in a folder that then has its files.
    let said = run(site.oarlock(&short(&["train", "pretrain"])));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.stderr.contains("note: `pretrain` is recipes/pretrain.yaml, which was written here"),
        "{said:?}"
    );
    assert_eq!(site.losses("out/pretrain"), site.losses("oarlock-pretrain/out/pretrain"));
    assert_eq!(site.model("out/pretrain"), site.model("oarlock-pretrain/out/pretrain"));

    // What somebody has changed there is what runs.
    let recipe = String::from_utf8(site.read("recipes/pretrain.yaml")).unwrap();
    site.write("recipes/pretrain.yaml", &recipe.replace("output_dir: out/pretrain", "output_dir: out/mine"));
    let said = run(site.oarlock(&short(&["train", "pretrain"])));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!said.stderr.contains("written here"), "{said:?}");
    assert_eq!(site.losses("out/mine"), site.losses("out/pretrain"));
}

#[test]
fn a_recipe_that_goes_on_from_another_says_which() {
    let site = Site::new();
    let said = run(site.oarlock(&["train", "sft"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.stderr.contains("`sft` goes on from out/pretrain, which `oarlock train pretrain` makes"),
        "{said:?}"
    );
    assert!(said.message().contains("no model folder `out/pretrain`"), "{said:?}");
    let said = run(site.oarlock(&["init", "dpo", "river"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    for name in ["pretrain", "sft", "dpo"] {
        assert!(said.stdout.contains(&format!("    oarlock train recipes/{name}.yaml\n")), "{said:?}");
        assert!(site.path(&format!("river/recipes/{name}.yaml")).is_file());
    }
    assert!(!site.path("river/recipes/lora.yaml").exists());
}

#[test]
fn a_file_of_that_name_is_the_run_and_a_folder_is_not() {
    let site = Site::new();
    site.write("pretrain", "learning_rat: 1\n");
    let said = run(site.oarlock(&["train", "pretrain"]));
    assert!(said.message().contains("pretrain:1:1"), "{said:?}");
    assert!(!site.path("recipes").exists());
    fs::create_dir(site.path("lora")).unwrap();
    let said = run(site.oarlock(&["train", "lora", "--print-config", "model_name_or_path=model"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("recipes/lora.yaml:"), "{said:?}");
    let said = run(site.oarlock(&["train", "nothing"]));
    assert!(said.message().contains("cannot read the configuration `nothing`"), "{said:?}");
}

#[test]
fn a_folder_with_something_in_it_is_left_as_it_is() {
    let site = Site::new();
    symlink(site.path("nowhere"), site.path("link")).unwrap();
    fs::create_dir(site.path("empty")).unwrap();
    for (folder, why) in [("model", "`model` is not empty"), ("text.jsonl", "`text.jsonl` is a file")] {
        let said = run(site.oarlock(&["init", "lora", folder]));
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(
            said.message().contains(why) && said.message().contains("oarlock init lora river"),
            "{said:?}"
        );
    }
    // Nothing is written to where a link leads, which has no folder.
    assert_ne!(run(site.oarlock(&["init", "lora", "link"])).code, Some(0));
    assert!(!site.path("nowhere").exists());
    assert_eq!(run(site.oarlock(&["init", "lora", "empty"])).code, Some(0));
    let said = run(site.oarlock(&["init", "ppo"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("pretrain, sft, lora, dpo"), "{said:?}");
}

#[test]
fn a_run_ends_with_the_program_that_holds_its_input() {
    for ranks in ["num_processes=1", "num_processes=2"] {
        let site = Site::new();
        let mut command = site.training("out", &[ranks, "max_steps=1000000", "logging_steps=1"]);
        let stderr = site.path("said");
        command.env("OARLOCK_STOP_WITH_STDIN", "1").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap();
        until("a step", || (!site.log("out").is_empty()).then_some(()));
        drop(child.stdin.take());
        let status = until("the end of the run", || child.try_wait().unwrap());
        let said = fs::read_to_string(stderr).unwrap();
        assert_eq!(status.code(), Some(143), "{said}");
        assert!(said.contains("stopped by signal 15; all ranks have ended"), "{said}");
    }
}
