//! Who may join a run of several machines, as the commands say it: tokens in files, public and private addresses, and what
//! the machine that keeps the list is told of those who are refused.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Site, run, start};

fn mode(site: &Site, name: &str) -> u32 {
    std::fs::metadata(site.path(name)).unwrap().permissions().mode() & 0o777
}

fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// What was said, without the lines and marks of a report.
fn flat(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

/// `torchrun` of one rank on one of two machines that meet at `endpoint`.
fn torchrun(site: &Site, endpoint: &str, flags: &str) -> Command {
    let line =
        format!("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {endpoint} --rdzv-id r {flags}");
    let words: Vec<&str> = line.split_whitespace().chain(["--no-python", "true"]).collect();
    site.oarlock(&words)
}

#[test]
fn a_token_is_made_for_its_owner_alone() {
    let site = Site::new();
    assert_eq!(run(site.oarlock(&["token", "new", "a.token"])).code, Some(0));
    assert_eq!(run(site.shell("umask 022; $0 token new > b.token")).code, Some(0));
    let [one, other] = ["a.token", "b.token"].map(|name| String::from_utf8(site.read(name)).unwrap());
    assert!(
        one != other && one.trim().len() == 64 && one.trim().chars().all(|c| c.is_ascii_hexdigit()),
        "{one}"
    );
    for name in ["a.token", "b.token"] {
        assert_eq!(mode(&site, name), 0o600, "{name}");
        let said = run(site.oarlock(&["token", "check", name]));
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    }
    // What is there stays.
    let said = run(site.oarlock(&["token", "new", "a.token"]));
    assert!(said.code == Some(1) && said.stderr.contains("File exists"), "{said:?}");
    assert_eq!(site.read("a.token"), one.as_bytes());
    site.write("weak.token", "hunter2\n");
    let said = run(site.oarlock(&["token", "check", "weak.token"]));
    assert!(
        said.code == Some(2) && flat(&said.stderr).contains("is weak") && !said.stderr.contains("hunter2"),
        "{said:?}"
    );
}

#[test]
fn at_public_addresses_a_token_is_needed_or_a_word_that_none_is() {
    let site = Site::new();
    let said = run(torchrun(&site, "192.0.2.1:29400", ""));
    assert_eq!(said.code, Some(2), "{said:?}");
    let stderr = flat(&said.stderr);
    for holds in ["is a public address", "oarlock token new > run.token", "--insecure-rendezvous"] {
        assert!(stderr.contains(holds), "{holds}: {said:?}");
    }
    let weak = run(torchrun(&site, "192.0.2.1:29400", "--rdzv-conf token=none"));
    assert!(weak.code == Some(2) && flat(&weak.stderr).contains("the token is weak"), "{weak:?}");
    run(site.oarlock(&["token", "new", "run.token"]));
    for flags in [
        "--insecure-rendezvous --rdzv-conf join_timeout=1",
        "--rdzv-conf join_timeout=1,token_file=run.token",
    ] {
        let said = run(torchrun(&site, "192.0.2.1:29400", flags));
        assert!(said.code == Some(1) && said.stderr.contains("no agent answered at 192.0.2.1"), "{said:?}");
    }
    let mut command = torchrun(&site, "192.0.2.1:29400", "--rdzv-conf join_timeout=1");
    command.env("OARLOCK_RDZV_INSECURE", "1");
    assert!(run(command).stderr.contains("no agent answered"));
}

#[test]
fn machines_meet_with_a_token_and_without_one_after_one_warning() {
    let sites = [Site::new(), Site::new()];
    let both = |flags: &str| {
        let at = format!("127.0.0.1:{}", port());
        sites.each_ref().map(|site| start(torchrun(site, &at, flags))).map(|running| running.wait())
    };
    for said in both("--rdzv-conf join_timeout=30") {
        assert_eq!(said.code, Some(0), "{said:?}");
        let warnings: Vec<&str> = said.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("anybody who reaches 127.0.0.1:"), "{said:?}");
        assert!(warnings[0].contains("oarlock token new > run.token"), "{said:?}");
    }
    run(sites[0].oarlock(&["token", "new", "run.token"]));
    sites[1].write("run.token", &String::from_utf8(sites[0].read("run.token")).unwrap());
    std::fs::set_permissions(sites[1].path("run.token"), PermissionsExt::from_mode(0o600)).unwrap();
    for said in both("--rdzv-conf join_timeout=30,token_file=run.token") {
        assert!(said.code == Some(0) && !said.stderr.contains("warning"), "{said:?}");
    }
}

#[test]
fn who_is_refused_is_told_on_both_machines() {
    let sites = [Site::new(), Site::new()];
    sites.iter().for_each(|site| drop(run(site.oarlock(&["token", "new", "run.token"]))));
    let at = format!("127.0.0.1:{}", port());
    let keeper = start(torchrun(&sites[0], &at, "--rdzv-conf join_timeout=6,token_file=run.token"));
    crate::common::until("the first machine", || keeper.stderr().contains("2 nodes meet").then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(500));
    for _ in 0..2 {
        let said = run(torchrun(&sites[1], &at, "--rdzv-conf join_timeout=6,token_file=run.token"));
        assert!(said.code == Some(1) && said.stderr.contains("another run id or token"), "{said:?}");
    }
    let said = keeper.wait();
    let refused = "127.0.0.1 was refused: it has another token or run id";
    assert_eq!(said.stderr.matches(&format!("note: {refused}")).count(), 1, "{said:?}");
    assert!(said.code == Some(1) && said.stderr.contains("1 of at least 2 nodes are ready"), "{said:?}");
    assert!(said.stderr.lines().last().is_some_and(|line| line.contains(refused)), "{said:?}");
}

/// What a program of the user's finds in its environment: the token of its round where machines meet, and that of the user where
/// they are known. `oarlock train` is such a program too.
#[test]
fn the_token_of_a_run_reaches_its_ranks_whatever_program_they_run() {
    let sites = [Site::new(), Site::new()];
    run(sites[0].oarlock(&["token", "new", "run.token"]));
    let token = String::from_utf8(sites[0].read("run.token")).unwrap();
    sites[1].write("run.token", &token);
    std::fs::set_permissions(sites[1].path("run.token"), PermissionsExt::from_mode(0o600)).unwrap();
    let says = [
        "sh",
        "-c",
        "echo ${OARLOCK_RDZV_TOKEN-none} ${OARLOCK_RDZV_TOKEN_FILE-none} ${OARLOCK_LINK_ENCRYPTION-1}",
    ];
    let both = |line: &dyn Fn(usize) -> String| {
        [0, 1].map(|machine| {
            let line = line(machine);
            let words: Vec<&str> = line.split_whitespace().chain(["--no-python"]).chain(says).collect();
            start(sites[machine].oarlock(&words))
        })
    };
    let said = |running: [crate::common::Running; 2]| {
        let [one, other] = running.map(|running| running.wait());
        assert!(one.code == Some(0) && one.stdout == other.stdout, "{one:?} {other:?}");
        let words: Vec<String> = one.stdout.split_whitespace().map(str::to_owned).collect();
        (words[0].clone(), words[1..].join(" "))
    };
    let torchrun = |conf: &str| {
        let at = format!("127.0.0.1:{}", port());
        both(&|_| {
            format!(
                "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {at} --rdzv-conf join_timeout=30{conf}"
            )
        })
    };
    let (one, rest) = said(torchrun(",token_file=run.token"));
    assert!(one.len() == 64 && one != token.trim() && rest == "none 1", "{one} {rest}");
    let (other, rest) = said(torchrun(",token_file=run.token,encryption=0"));
    assert!(other.len() == 64 && other != one && rest == "none 0", "{other} {rest}");
    // Without a token of the user's they have one all the same, which only those know who have met.
    let (other, rest) = said(torchrun(""));
    assert!(other.len() == 64 && rest == "none 0", "{other} {rest}");
    let accelerate = |conf: &str| {
        both(&|machine| {
            format!(
                "accelerate launch --cpu --num_machines 2 --num_processes 2 --machine_rank {machine} \
                 --main_process_ip 127.0.0.1 --main_process_port 29500 --same_network {conf}"
            )
        })
    };
    assert_eq!(
        said(accelerate("--rdzv_conf token_file=run.token")),
        (token.trim().to_owned(), "none 1".to_owned())
    );
    assert_eq!(said(accelerate("")), ("none".to_owned(), "none 1".to_owned()));
    let weak = both(&|machine| {
        format!(
            "accelerate launch --cpu --num_machines 2 --num_processes 2 --machine_rank {machine} --main_process_ip 127.0.0.1 \
             --rdzv_conf token=hunter2"
        )
    });
    for said in weak.map(|running| running.wait()) {
        assert!(
            said.code.is_some_and(|code| code != 0) && flat(&said.stderr).contains("the token is weak"),
            "{said:?}"
        );
    }
}
