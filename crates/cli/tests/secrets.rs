//! Secrets that are given in every way there is stand in no output, in no file that a command writes, and in no command line of
//! a process that it starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{CommandOutput, Site, run};

/// What no output may hold. The letters are not those of any other process of the machine.
fn marker() -> String {
    format!(
        "marker{:x}{:x}",
        std::process::id(),
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()
    )
}

/// Looks for the secret in what a command said and in all files below a folder but for those that the test wrote.
fn assert_hidden(site: &Site, marker: &str, own: &[&str], said: &CommandOutput) {
    for text in [&said.stdout, &said.stderr] {
        assert!(!text.contains(marker), "shown: {text}");
    }
    search(&site.path(""), marker, own);
}

fn search(folder: &Path, marker: &str, own: &[&str]) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            search(&path, marker, own);
        } else if !own.iter().any(|name| path.ends_with(name)) {
            let bytes = fs::read(&path).unwrap();
            let found = bytes.windows(marker.len()).any(|window| window == marker.as_bytes());
            assert!(!found, "{} holds the secret", path.display());
        }
    }
}

const KEYS: [&str; 6] =
    ["hub_token", "hf_hub_token", "ms_hub_token", "om_hub_token", "swanlab_api_key", "swanlab_lark_secret"];

#[test]
fn keys_of_secrets_are_hidden_wherever_configurations_are_shown() {
    let (site, marker) = (Site::new(), marker());
    let keys: String = KEYS.iter().map(|key| format!("{key}: {marker}\n")).collect();
    let base = String::from_utf8(site.read("train.yaml")).unwrap();
    site.write("secret.yaml", &format!("{base}{keys}"));
    // Each with a mistake beside a secret, so that its lines are shown.
    site.write(
        "wrong.yaml",
        &format!("{base}max_stepz: 1\nhub_token: {marker}\nhf_hub_token: \"{marker}\"\n"),
    );
    site.write("list.yaml", &format!("{base}hub_token: [{marker}]\n"));
    let own = ["secret.yaml", "wrong.yaml", "list.yaml"];
    let from_file =
        ["train", "secret.yaml", "output_dir=out", "max_steps=1", "num_processes=2", "report_to=all"];
    let argument = format!("hub_token={marker}");
    let flag = format!("--hf_hub_token={marker}");
    let from_arguments =
        ["train", "train.yaml", "output_dir=out2", "max_steps=1", "num_processes=1", &argument, &flag];
    for (words, code) in [
        (&from_file[..], 0),
        (&from_arguments[..], 0),
        (&["train", "secret.yaml", "output_dir=x", "--print-config"], 0),
        (&["train", "secret.yaml", "output_dir=x", "--dry-run"], 0),
        (&["train", "train.yaml", "output_dir=x", "--print-config", "--hub_token", &marker], 0),
        (&["train", "wrong.yaml", "output_dir=x"], 2),
        (&["train", "list.yaml", "output_dir=x", "max_stepz=1"], 2),
        (&["train", "train.yaml", "output_dir=x", "max_stepz=1", &argument], 2),
        (&["train", "train.yaml", "output_dir=x", "max_stepz=1", "--hub_token", &marker], 2),
        (&["llamafactory-cli", "train", "secret.yaml", "output_dir=x", "--print-config"], 0),
        (&["plan", "secret.yaml", "output_dir=x", "max_stepz=1"], 2),
    ] {
        let mut command = site.oarlock(words);
        command.envs(["WANDB_API_KEY", "HF_TOKEN", "OARLOCK_RDZV_TOKEN"].map(|name| (name, &marker)));
        let said = run(command);
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
        assert_hidden(&site, &marker, &own, &said);
    }
    // They were read, and are shown as what they are.
    let said = run(site.oarlock(&["train", "secret.yaml", "output_dir=x", "--print-config"]));
    assert!(said.stdout.contains("***"), "{said:?}");
    assert!(String::from_utf8(site.read("out/training_args.yaml")).unwrap().contains("hub_token: \"***\""));
}

#[test]
fn commands_that_are_shown_hide_secrets() {
    let (site, marker) = (Site::new(), marker());
    let ways = [
        vec![format!("hub_token={marker}")],
        vec![format!("--hf_hub_token={marker}")],
        vec!["--hub_token".to_owned(), marker.clone()],
        vec![format!("swanlab_api_key={marker}")],
        vec![format!("hub_token=horse battery, {marker}")],
        vec!["--hub_token".to_owned(), format!("horse {marker}")],
    ];
    let launchers = [
        &["train"][..],
        &["torchrun", "--nproc_per_node", "2", "--dry-run", "train.py"],
        &["accelerate", "launch", "--cpu", "--num_processes", "2", "--dry-run", "train.py"],
        &["deepspeed", "--cpu", "--num_gpus", "2", "--dry-run", "train.py"],
    ];
    for way in &ways {
        let way: Vec<&str> = way.iter().map(String::as_str).collect();
        for launcher in launchers {
            let dry = if launcher.len() == 1 { &["--dry-run"][..] } else { &[] };
            let words = [launcher, &["train.yaml", "output_dir=x"], &way, dry].concat();
            let said = run(site.oarlock(&words));
            assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
            assert!(said.stdout.contains("would start"), "{words:?}: {said:?}");
            assert_hidden(&site, &marker, &[], &said);
        }
    }
}

#[test]
fn secrets_with_blanks_are_hidden_whole() {
    let (site, marker) = (Site::new(), marker());
    let phrase = format!("correct horse {marker}");
    let base = String::from_utf8(site.read("train.yaml")).unwrap();
    site.write("wrong.yaml", &format!("{base}max_stepz: 1\nhub_token: {phrase}\n"));
    site.write("folded.yaml", &format!("{base}max_stepz: 1\nhub_token: >\n  correct\n  horse {marker}\n"));
    let conf = format!("token={phrase},foo=1");
    let (setting, flag) = (format!("hub_token={phrase}"), format!("--hub_token={phrase}"));
    let meet = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29411"];
    for words in [
        &["train", "wrong.yaml", "output_dir=x"][..],
        &["train", "folded.yaml", "output_dir=x"],
        &["train", "train.yaml", "output_dir=x", "max_stepz=1", &setting],
        &["train", "train.yaml", "output_dir=x", "max_stepz=1", "--hub_token", &phrase],
        &["deepspeed", "--hostfilez", "x", &flag, "train.py"],
        &[&meet[..], &["--rdzv-conf", &conf, "--no-python", "true"]].concat(),
        &[&meet[..], &[&format!("--rdzv-conf={conf}"), "--no-python", "true"]].concat(),
    ] {
        let said = run(site.oarlock(words));
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
        assert_hidden(&site, &marker, &["wrong.yaml", "folded.yaml"], &said);
    }
}

/// What it prints is meant to be pasted into a public report.
#[test]
fn reports_of_the_environment_hide_secrets() {
    let (site, marker) = (Site::new(), marker());
    site.write("cluster.yaml", &format!("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: \"no\"\nuse_cpu: true\ntpu_env: [HF_TOKEN={marker}]\n"));
    for words in
        [&["accelerate", "env", "--config_file", "cluster.yaml"][..], &["env"], &["llamafactory-cli", "env"]]
    {
        let mut command = site.oarlock(words);
        command.envs(["WANDB_API_KEY", "HF_TOKEN", "OARLOCK_RDZV_TOKEN"].map(|name| (name, &marker)));
        let said = run(command);
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        assert_hidden(&site, &marker, &["cluster.yaml"], &said);
    }
}

#[test]
fn the_token_of_a_rendezvous_is_hidden() {
    let (site, marker) = (Site::new(), marker());
    site.write("x.sh", "exit 0\n");
    let conf = format!("token={marker}");
    let wrong = format!("token={marker},foo=3");
    let meet = [
        "torchrun",
        "--nnodes",
        "1:2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:29411",
        "--no-python",
    ];
    for (words, code) in [
        (&[&meet[..], &["--rdzv-conf", &conf, "--dry-run", "sh", "x.sh"]].concat()[..], 0),
        (&[&meet[..], &["--rdzv-conf", &wrong, "sh", "x.sh"]].concat()[..], 2),
        (&[&meet[..], &[&format!("--rdzv-conf={wrong}"), "sh", "x.sh"]].concat()[..], 2),
    ] {
        let said = run(site.oarlock(words));
        assert_eq!(said.code, Some(code), "{words:?}: {said:?}");
        assert_hidden(&site, &marker, &[], &said);
    }
}

/// What stands for ssh runs the command here; what stands for pdsh runs it for each machine, without input, as pdsh does.
fn site_with_machines() -> Site {
    let site = Site::new();
    let stand_ins = [
        ("ssh", "#!/bin/sh\necho \"$@\" >> commands\nfor word; do :; done\nexec sh -c \"$word\"\n"),
        (
            "pdsh",
            "#!/bin/sh\necho \"$@\" >> commands\nshift 5\nfor n in 0 1; do\n\
             sh -c \"$(echo \"$*\" | sed \"s/%n/$n/g\")\" </dev/null &\ndone\nwait\n",
        ),
    ];
    fs::create_dir_all(site.path("bin")).unwrap();
    for (name, text) in stand_ins {
        site.write(&format!("bin/{name}"), text);
        fs::set_permissions(site.path(&format!("bin/{name}")), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::create_dir_all(site.path("home")).unwrap();
    site.write("hostfile", "a slots=1\nb slots=1\n");
    site.write(
        "show.sh",
        "echo \"$HF_TOKEN $NCCL_SAID\" > got.$RANK\ncat /proc/[0-9]*/cmdline > lines.$RANK 2>/dev/null; true\n",
    );
    site
}

#[test]
fn variables_reach_other_machines_as_they_are_and_secrets_by_no_command_line() {
    for launcher in ["ssh", "pdsh"] {
        let (site, marker) = (site_with_machines(), marker());
        let hostile = "$(touch pwned)`touch pwned`\"; touch pwned; \"$HOME";
        site.write("home/.deepspeed_env", &format!("HF_TOKEN={marker}\n"));
        site.write(".deepspeed_env", &format!("NCCL_SAID={hostile}\n"));
        let words = [
            "deepspeed",
            "--launcher",
            launcher,
            "--hostfile",
            "hostfile",
            "--master_addr",
            "127.0.0.1",
            "--no_ssh_check",
            "--no_python",
            "--no_local_rank",
            "--cpu",
            "sh",
            "show.sh",
        ];
        let mut command = site.oarlock(&words);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", site.path("bin").display())).env("HOME", site.path("home"));
        let said = run(command);
        assert_eq!(said.code, Some(0), "{launcher}: {said:?}");
        for rank in 0..2 {
            let got = String::from_utf8(site.read(&format!("got.{rank}"))).unwrap();
            assert_eq!(got, format!("{marker} {hostile}\n"), "{launcher}: {said:?}");
        }
        assert!(!site.path("pwned").exists(), "{launcher}: {said:?}");
        assert!(said.stderr.contains("/.deepspeed_env sets NCCL_SAID on all machines"), "{said:?}");
        let own = ["home/.deepspeed_env", "got.0", "got.1"];
        assert_hidden(&site, &marker, &own, &said);
        let left: Vec<_> =
            fs::read_dir(site.path("home")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".deepspeed_env"], "{launcher}");
    }
}
