//! Several machines, as far as network namespaces are machines (`bench/netns/run`): every launcher's command on each of them,
//! word for word as guides have it. Where the system does not allow namespaces the tests say so and test nothing.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::{Said, Site, run};

/// The script that makes machines.
fn netns() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/netns/run").to_owned()
}

/// Whether there can be namespaces here.
fn has_machines() -> bool {
    let made = Command::new(netns()).args(["1", "--", "true"]).output();
    let made = made.is_ok_and(|output| output.status.success());
    if !made {
        eprintln!("left out: network namespaces need root and ip");
    }
    made
}

/// A folder in which the commands have the names of the originals.
fn site() -> Site {
    let site = Site::new();
    std::fs::create_dir(site.path("bin")).unwrap();
    for name in ["torchrun", "accelerate", "deepspeed", "llamafactory-cli"] {
        symlink(env!("CARGO_BIN_EXE_oarlock"), site.path("bin").join(name)).unwrap();
    }
    site.write("hostfile", "worker-0 slots=2\nworker-1 slots=2\n");
    site
}

/// A command that runs on each of `n` machines, or with `--only` on one, where `$0` is the program and the commands have
/// the names of the originals.
fn on_machines(site: &Site, n: usize, options: &[&str], script: &str) -> Command {
    let mut command = site
        .shell("script=$1 n=$2 netns=$3; shift 3; exec \"$netns\" \"$@\" \"$n\" -- sh -c \"$script\" \"$0\"");
    command.args([script, &n.to_string(), &netns()]).args(options);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", site.path("bin").display()));
    command
}

fn ran(site: &Site, n: usize, options: &[&str], script: &str) -> Said {
    let said = run(on_machines(site, n, options, script));
    assert_eq!(said.code, Some(0), "{script}: {said:?}");
    said
}

/// What each launcher's command starts on two machines with two ranks each.
#[test]
fn every_launcher_starts_the_ranks_of_a_program_on_all_machines() {
    if !has_machines() {
        return;
    }
    let site = site();
    let says = r#"echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK of ${LOCAL_WORLD_SIZE:-$LOCAL_SIZE} on $(hostname), at $MASTER_ADDR""#;
    site.write("say.sh", says);
    let static_flags =
        "--master_port 29500 --nproc_per_node=2 --nnodes=2 --node_rank=$MACHINE --master_addr=192.168.0.1";
    let elastic =
        "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 192.168.0.1:29400 --rdzv-id 7";
    let accelerate = "--cpu --num_machines 2 --num_processes 4 --machine_rank $MACHINE --main_process_ip 192.168.0.1 \
        --main_process_port 29500 --same_network --no_python";
    let deepspeed = "--num_gpus 2 --num_nodes 2 --hostfile hostfile --master_addr hostname1 --master_port=9901 \
        --no_python --no_local_rank";
    let [all, first]: [&[&str]; 2] = [&[], &["--only", "0"]];
    for (options, command, master) in [
        (all, format!("torchrun {static_flags} --no-python sh say.sh"), "192.168.0.1"),
        (all, format!("torchrun {elastic} --no-python sh say.sh"), "192.168.0.1"),
        (all, format!("accelerate launch {accelerate} sh say.sh"), "192.168.0.1"),
        (first, format!("deepspeed --launcher ssh {deepspeed} sh say.sh"), "hostname1"),
        (first, format!("deepspeed {deepspeed} sh say.sh"), "hostname1"),
        (
            first,
            format!("deepspeed {deepspeed} --launcher ssh --include worker-1@worker-0 sh say.sh"),
            "hostname1",
        ),
    ] {
        let command = match command.contains("--include") {
            true => command.replace("--num_gpus 2 --num_nodes 2 ", ""),
            false => command,
        };
        let said = ran(&site, 2, options, &command);
        for rank in 0..4 {
            let (local, machine) = (rank % 2, rank / 2);
            let line = format!("rank {rank} of 4, {local} of 2 on worker-{machine}, at {master}");
            assert!(said.stdout.contains(&line), "{command}: {line}: {said:?}");
        }
    }
}

/// A build that cannot bring machines together says which one can, before anything is started.
#[cfg(not(feature = "gloo"))]
#[test]
fn a_training_on_several_machines_needs_a_build_with_gloo() {
    let site = site();
    let mut command = site.oarlock(&["train", "train.yaml", "output_dir=out"]);
    command.envs([
        ("NNODES", "2"),
        ("NODE_RANK", "0"),
        ("NPROC_PER_NODE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ]);
    let said = run(command);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("an Oarlock run on 2 machines needs Gloo or MPI"), "{said:?}");
    assert!(said.stderr.contains("cargo build --release --features gloo"), "{said:?}");
    assert!(!Path::new(&site.path("out")).exists());
}
