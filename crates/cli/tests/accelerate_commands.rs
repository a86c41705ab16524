//! The commands of `accelerate` beside `launch`, as their user meets them: at a terminal, in a pipe, on ranks.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Site, run};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::Value;

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/accelerate_cli.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The command with a configuration folder and a folder for temporary files of its own.
fn accelerate(site: &Site, words: &[&str]) -> Command {
    let mut command = site.oarlock(&[&["accelerate"], words].concat());
    let scratch = site.path("scratch");
    fs::create_dir_all(&scratch).unwrap();
    command.env("HF_HOME", site.path("hf")).env("TMPDIR", scratch).env_remove("CUDA_VISIBLE_DEVICES");
    command
}

fn message(site: &Site, words: &[&str]) -> CommandOutput {
    run(accelerate(site, words))
}

fn answered(site: &Site, answers: &str) -> CommandOutput {
    site.write("answers", answers);
    let mut command = accelerate(site, &["config"]);
    command.stdin(File::open(site.path("answers")).unwrap());
    run(command)
}

const DEFAULT: &str = "hf/accelerate/default_config.yaml";

#[test]
fn answers_in_a_pipe_make_the_default_file() {
    let site = Site::new();
    let case = &golden()["config"]["eight GPUs"];
    let lines: Vec<&str> =
        case["answers"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    // An end in the middle leaves nothing, and what was there stays.
    for end in 0..lines.len() {
        let said = answered(&site, &format!("{}\n", lines[..end].join("\n")));
        assert_eq!(said.code, Some(1), "{end}: {said:?}");
        assert!(
            said.stderr.starts_with("error: the input ended at the question")
                && !said.stderr.contains("A number")
                && !site.path("hf").exists(),
            "{said:?}"
        );
    }
    let said = answered(&site, &format!("{}\n", lines.join("\n")));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(String::from_utf8(site.read(DEFAULT)).unwrap(), case["file"]);
    assert_eq!(fs::read_dir(site.path("hf/accelerate")).unwrap().count(), 1);
    let before = site.read(DEFAULT);
    assert_eq!(answered(&site, "0\n").code, Some(1));
    assert_eq!(site.read(DEFAULT), before);
    let shown = message(&site, &["env"]).stdout;
    assert!(
        shown.ends_with(&format!("- `Accelerate` default config:\n{}", case["shown"].as_str().unwrap())),
        "{shown}"
    );
}

/// A terminal at which somebody sits.
struct Sitting {
    keyboard: File,
    child: std::process::Child,
    shown: String,
}

impl Sitting {
    fn at(site: &Site, words: &[&str]) -> Sitting {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = accelerate(site, words);
        command.env("TERM", "xterm").stdin(slave.try_clone().unwrap()).stdout(slave).stderr(Stdio::null());
        Sitting { keyboard: File::from(master), child: command.spawn().unwrap(), shown: String::new() }
    }

    /// Presses keys once the screen has shown this.
    fn press(&mut self, shown: &str, keys: &str) {
        while !self.shown.contains(shown) {
            let mut some = [0; 4096];
            let n = self.keyboard.read(&mut some).unwrap_or(0);
            assert!(n > 0, "the end came before {shown:?}: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&some[..n]));
        }
        self.shown.clear();
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether keys come one by one, without echo.
    fn is_raw(&self) -> bool {
        let modes = tcgetattr(self.keyboard.as_fd()).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    fn code(mut self) -> Option<i32> {
        // What is still shown must go somewhere.
        let mut rest = Vec::new();
        let _ = self.keyboard.read_to_end(&mut rest);
        self.child.wait().unwrap().code()
    }
}

#[test]
fn at_a_terminal_arrows_and_digits_choose() {
    let site = Site::new();
    let mut person = Sitting::at(&site, &["config"]);
    person.press("AWS", "\x1b[B\x1b[A\r");
    person.press("TPU", "4\r");
    person.press("How many machines?", "\n");
    person.press("Check every", "\n");
    person.press("dynamo", "\n");
    person.press("DeepSpeed", "\n");
    person.press("FSDP", "\n");
    person.press("Megatron", "\n");
    person.press("How many GPUs", "8\n");
    person.press("Which GPUs", "\n");
    person.press("near its GPU", "\n");
    person.press("fp8", "\x1b[B\x1b[B\x1b[B\x1b[B\x1b[A\r");
    person.press("saved at", "");
    assert!(!person.is_raw());
    assert_eq!(person.code(), Some(0));
    assert_eq!(String::from_utf8(site.read(DEFAULT)).unwrap(), golden()["config"]["eight GPUs"]["file"]);
}

#[test]
fn after_ctrl_c_in_a_menu_the_terminal_is_as_before() {
    let site = Site::new();
    let mut person = Sitting::at(&site, &["config"]);
    person.press("AWS", "");
    assert!(person.is_raw());
    person.press("", "\x03");
    person.press("\x1b[?25h", "");
    let before = tcgetattr(person.keyboard.as_fd()).unwrap();
    assert_eq!(person.child.wait().unwrap().code(), Some(130));
    let after = tcgetattr(person.keyboard.as_fd()).unwrap();
    assert!(
        after.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG),
        "{before:?}"
    );
    assert!(!site.path("hf").exists());
}

#[test]
fn ranks_check_themselves_and_leave_nothing() {
    let site = Site::new();
    let said = message(&site, &["test", "--num_processes", "2"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.stdout.ends_with("Test is a success! You are ready for your distributed training!\n"),
        "{said:?}"
    );
    assert_eq!(said.stdout.matches(": ok").count(), 11, "{said:?}");
    assert_eq!(fs::read_dir(site.path("scratch")).unwrap().count(), 0);
}

#[test]
fn a_test_that_cannot_be_is_told() {
    let site = Site::new();
    site.write("eight.yaml", golden()["config"]["eight GPUs"]["file"].as_str().unwrap());
    let said = message(&site, &["test", "--config_file", "eight.yaml"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.stderr.contains("8 GPUs are asked for") && said.stderr.contains("accelerate test --cpu"),
        "{said:?}"
    );
    let said = message(&site, &["test", "--cpu", "--config_file", "eight.yaml", "--dry-run"]);
    assert_eq!((said.code, said.stdout.contains("8 rank(s) on the CPU")), (Some(0), true), "{said:?}");
    let said = message(&site, &["test", "--num_processes", "100000"]);
    assert!(said.code != Some(0) && said.stderr.contains("1 to 512 ranks"), "{said:?}");
    // Where the ranks cannot write, the check that needs it is named.
    let said = run({
        let mut command = accelerate(&site, &["test", "--num_processes", "1"]);
        command.env("TMPDIR", site.path("nowhere"));
        command
    });
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("cannot create"), "{said:?}");
}

#[test]
fn a_check_that_fails_is_named() {
    let site = Site::new();
    // So deep that a checkpoint in it has a longer name than a path may have.
    let mut deep = site.path("deep");
    while deep.as_os_str().len() < 4044 {
        deep.push("d".repeat(200.min(4044 - deep.as_os_str().len())));
    }
    fs::create_dir_all(&deep).unwrap();
    let mut command = accelerate(&site, &["test", "--num_processes", "2"]);
    command.env("TMPDIR", &deep);
    let said = run(command);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.stdout.contains("training: the losses of one rank: ok") && !said.stdout.contains("success"),
        "{said:?}"
    );
    assert!(said.stderr.contains("state: saved, loaded, and the same losses: "), "{said:?}");
    assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
}

#[test]
fn under_its_links_the_program_is_the_other_command() {
    let site = Site::new();
    let said = run(site.oarlock(&["link-tools", "tools"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let folder = site.path("tools").canonicalize().unwrap();
    assert!(said.stdout.contains(&format!("export PATH=\"{}:$PATH\"", folder.display())), "{said:?}");
    let mut command = Command::new(folder.join("accelerate"));
    command.args(["env"]).current_dir(site.path("")).env("HF_HOME", site.path("hf"));
    let said = run(command);
    assert!(said.stdout.contains("- `Accelerate` version: Oarlock "), "{said:?}");
    assert!(said.stdout.ends_with("default config:\n\tNot found\n"), "{said:?}");
    fs::remove_file(folder.join("accelerate")).unwrap();
    site.write("tools/accelerate", "somebody's");
    let said = run(site.oarlock(&["link-tools", "tools"]));
    assert!(
        said.code == Some(1) && said.stderr.contains("in tools there is something else under accelerate"),
        "{said:?}"
    );
}

#[test]
fn weights_are_merged_and_the_checkpoint_goes_only_when_asked() {
    let site = Site::new();
    site.train("out", &["max_steps=2", "save_steps=2", "save_strategy=steps"]);
    let merge = |words: &[&str]| message(&site, &[&["merge-weights"], words].concat());
    assert_eq!(merge(&["out/checkpoint-2", "merged"]).code, Some(0));
    assert!(site.path("merged/model.safetensors").is_file() && site.path("out/checkpoint-2").is_dir());
    let said = merge(&["out/checkpoint-2", "out/checkpoint-2/merged", "--remove_checkpoint_dir"]);
    assert!(said.code == Some(2) && said.stderr.contains("would remove the merged model"), "{said:?}");
    let of_model = "out/checkpoint-2/pytorch_model_fsdp_0";
    let said = merge(&[of_model, "out/checkpoint-2/merged", "--remove_checkpoint_dir"]);
    assert!(said.code == Some(2) && said.stderr.contains("would remove the merged model"), "{said:?}");
    let said = merge(&["--unsafe_serialization", "out/checkpoint-2", "other"]);
    assert!(said.code == Some(2) && said.stderr.contains("safetensors alone"), "{said:?}");
    // A path that goes on to a model of the checkpoint, as in accelerate's.
    assert_eq!(merge(&[of_model, "first"]).code, Some(0));
    assert_eq!(site.read("merged/model.safetensors"), site.read("first/model.safetensors"));
    let said = merge(&["out/checkpoint-2/pytorch_model_fsdp_1", "second"]);
    assert!(said.code == Some(1) && said.stderr.contains("it holds no model 1; it has 0 ("), "{said:?}");
    assert_eq!(merge(&["out/checkpoint-2", "again", "--remove_checkpoint_dir"]).code, Some(0));
    assert_eq!(site.read("merged/model.safetensors"), site.read("again/model.safetensors"));
    assert!(!site.path("out/checkpoint-2").exists());
}

#[test]
fn what_is_wrong_is_told_in_words() {
    let site = Site::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["confg"], &["has no command `confg`", "did you mean `accelerate config`?"]),
        (&["config", "defualt"], &["has no `defualt`", "`default` and `update`"]),
        (&["config", "default", "--mixed_precision", "fp8"], &["one of no, fp16, bf16"]),
        (&["config", "update"], &["cannot read the configuration"]),
        (&["env", "--config_files", "x"], &["did you mean `--config_file`?"]),
        (&["env", "--config", "nowhere.yaml"], &["nowhere.yaml"]),
        (&["to-fsdp2", "--o", "x"], &["ambiguous option: --o could match --"]),
        (&["env", "x"], &["takes no `x`"]),
        (&["estimate-memory"], &["missing argument: model"]),
        (
            &["estimate-memory", "bert-base-cased"],
            &["there is no folder `bert-base-cased`", "nothing is fetched"],
        ),
        (&["estimate-memory", "model", "--dtypes", "float32", "float8"], &["`float8` is not a dtype"]),
        (&["estimate-memory", "--library_name", "timm", "model"], &["not supported", "pictures"]),
        (&["merge-weights", "out"], &["takes a checkpoint and a folder"]),
        (&["to-fsdp2", "--overwrite"], &["missing argument: --config_file"]),
        (&["tpu-config", "--command", "ls"], &["there is no training on TPUs here"]),
    ];
    for (words, expected) in cases {
        let said = message(&site, words);
        assert!(matches!(said.code, Some(1 | 2)), "{words:?}: {said:?}");
        for part in *expected {
            assert!(said.stderr.contains(part), "{words:?} does not say {part:?}: {}", said.stderr);
        }
    }
    let said = message(&site, &["estimate_memory", "--dty", "float16", "int8", "--", "model"]);
    assert!(said.stdout.contains("│float16│") && !said.stdout.contains("│float32│"), "{said:?}");
    assert!(said.stdout.contains("`oarlock estimate-memory model`"), "{said:?}");
}
