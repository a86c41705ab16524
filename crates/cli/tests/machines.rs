//! Several machines, as far as network namespaces are machines (`bench/netns/run`): every launcher's command on each of them,
//! word for word as guides have it. Where the system does not allow namespaces the tests say so and test nothing.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use crate::common::{CommandOutput, Site, run, start};

/// The script that makes machines.
fn netns() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/netns/run").to_owned()
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

fn ran(site: &Site, n: usize, options: &[&str], script: &str) -> CommandOutput {
    let said = run(on_machines(site, n, options, script));
    assert_eq!(said.code, Some(0), "{script}: {said:?}");
    said
}

/// What each launcher's command starts on two machines with two ranks each.
#[test]
fn every_launcher_starts_the_ranks_of_a_program_on_all_machines() {
    if !oarlock_must::have_machines() {
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

/// Passes connections to a port on to machine 0, as a Service does, for who starts this as a process; as a test it has nothing to do.
#[test]
fn forward() {
    let Some(port) = std::env::var(FORWARD).ok().and_then(|port| port.parse::<u16>().ok()) else { return };
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    for stream in listener.incoming() {
        let (one, other) = (stream.unwrap(), TcpStream::connect(("192.168.0.1", port)));
        // Who comes too early is closed.
        let Ok(other) = other else { continue };
        for (mut from, mut to) in [(one.try_clone().unwrap(), other.try_clone().unwrap()), (other, one)] {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    }
}

/// The port that a forwarder passes on.
const FORWARD: &str = "OARLOCK_TEST_FORWARD";

/// A program that cannot bring machines together says what is missing, before anything is started.
#[test]
fn a_training_on_several_machines_needs_gloo() {
    let site = site();
    let mut command = site.oarlock(&["train", "train.yaml", "output_dir=out"]);
    command.envs([
        ("NNODES", "2"),
        ("NODE_RANK", "0"),
        ("NPROC_PER_NODE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("OARLOCK_GLOO", "off"),
    ]);
    let said = run(command);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("an Oarlock run on 2 machines needs Gloo or MPI"), "{said:?}");
    assert!(said.stderr.contains("unset OARLOCK_GLOO"), "{said:?}");
    assert!(!site.path("out").exists());
}

/// Training runs over Gloo.
mod gloo {
    mod folders;

    use super::*;

    /// Files as guides have them, with the small model and text of these tests: no number of ranks, which the launchers say.
    fn site() -> Site {
        let site = super::site();
        let config = String::from_utf8(site.read("train.yaml")).unwrap().replace("num_processes: 2\n", "");
        site.write("train.yaml", &config);
        let llama = "examples/train_lora/llama3_lora_sft.yaml";
        std::fs::create_dir_all(site.path("examples/train_lora")).unwrap();
        site.write(llama, &format!("{config}output_dir: of-llamafactory\n"));
        site.write("llm_config.yaml", &format!("{config}output_dir: of-accelerate\n"));
        for stage in 0..4 {
            let zero = format!(
                r#"{{"zero_optimization": {{"stage": {stage}, "stage3_param_persistence_threshold": 0}}}}"#
            );
            site.write(&format!("ds_z{stage}_config.json"), &zero);
        }
        let accelerate = |machine: usize| {
            format!(
                "compute_environment: LOCAL_MACHINE\ndebug: true\ndistributed_type: MULTI_CPU\ndowncast_bf16: 'no'\n\
                 enable_cpu_affinity: false\nmachine_rank: {machine}\nmain_process_ip: '192.168.0.1'\n\
                 main_process_port: 29500\nmain_training_function: main\nmixed_precision: 'no'\nnum_machines: 2\n\
                 num_processes: 4\nrdzv_backend: static\nsame_network: false\nuse_cpu: true\n"
            )
        };
        for machine in 0..2 {
            site.write(&format!("machine_{machine}.yaml"), &accelerate(machine));
        }
        site
    }

    /// torchrun's command of each machine, with more flags, for an Oarlock run.
    fn torchrun(machines: usize, flags: &str, words: &str) -> String {
        format!(
            "torchrun --master_port 29500 --nproc_per_node=2 --nnodes={machines} --node_rank=$MACHINE \
             --master_addr=192.168.0.1 {flags} train.py train.yaml {words}"
        )
    }

    /// The commands of the guides, which end with the bytes that as many ranks on one machine end with.
    #[test]
    #[ignore = "heavy"]
    fn the_commands_of_the_guides_train_over_two_machines() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        site.train("one", &["num_processes=4"]);
        run(site.oarlock(&["token", "new", "run.token"]));
        let flags = "--stage pt --finetuning_type full --model_name_or_path model --dataset text.jsonl --cutoff_len 32 --per_device_train_batch_size 6 \
            --learning_rate 3e-3 --lr_scheduler_type cosine --warmup_steps 2 --weight_decay 0.1 --max_steps 10 \
            --logging_steps 1 --save_strategy no --num_threads_per_process 1 --output_dir";
        let deepspeed =
            "--num_gpus 2 --num_nodes 2 --hostfile hostfile --master_addr hostname1 --master_port=9901";
        let [all, first]: [&[&str]; 2] = [&[], &["--only", "0"]];
        for (options, command, output) in [
            (
                all,
                "export NPROC_PER_NODE=2
                 FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=$MACHINE MASTER_ADDR=192.168.0.1 MASTER_PORT=29500 \
                 llamafactory-cli train examples/train_lora/llama3_lora_sft.yaml"
                    .to_owned(),
                "of-llamafactory",
            ),
            (
                all,
                "export NPROC_PER_NODE=2
                 FORCE_TORCHRUN=1 RDZV_ID=7 MIN_NNODES=2 MAX_NNODES=2 MASTER_ADDR=192.168.0.1 MASTER_PORT=29500 \
                 llamafactory-cli train train.yaml output_dir=of-elastic-llamafactory"
                    .to_owned(),
                "of-elastic-llamafactory",
            ),
            (all, torchrun(2, "", "output_dir=of-torchrun"), "of-torchrun"),
            (all, torchrun(2, "--rdzv-conf token_file=run.token", "output_dir=of-token"), "of-token"),
            (
                all,
                "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 192.168.0.1:29400 --rdzv-id 7 \
                 train.py train.yaml output_dir=of-c10d"
                    .to_owned(),
                "of-c10d",
            ),
            (
                all,
                "accelerate launch --config_file machine_$MACHINE.yaml train.py llm_config.yaml".to_owned(),
                "of-accelerate",
            ),
            (
                first,
                format!("deepspeed {deepspeed} train.py {flags} of-pdsh --deepspeed ds_z3_config.json"),
                "of-pdsh",
            ),
            (
                first,
                format!(
                    "deepspeed --launcher ssh {deepspeed} train.py {flags} of-ssh --deepspeed ds_z2_config.json"
                ),
                "of-ssh",
            ),
        ] {
            ran(&site, 2, options, &command);
            assert!(site.model(output) == site.model("one"), "{command}");
            assert_eq!(site.losses(output), site.losses("one"), "{command}");
        }
    }

    /// Machine 0 by a name that means it only there, as Kubeflow has it, by an alias in its table of hosts, and by an address that
    /// is none of its own, as that of a Service.
    #[test]
    fn machine_0_is_found_by_another_name_than_it_has_itself() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        site.train("one", &["num_processes=2", "max_steps=2"]);
        let numbered = "--nnodes=2 --node_rank=$MACHINE --master_port 29500 --master_addr";
        let c10d = "--nnodes 2 --rdzv-backend c10d --rdzv-id 7 --rdzv-endpoint";
        for (name, flags) in [
            ("localhost", format!("{numbered} $(test $MACHINE = 0 && echo localhost || echo 192.168.0.1)")),
            ("alias", format!("{c10d} train-master-0:29500")),
            ("service", format!("{c10d} 192.168.0.3:29500 --rdzv-conf is_host=$((1 - MACHINE))")),
            ("numbered-service", format!("{numbered} 192.168.0.3")),
        ] {
            let script = format!(
                "if [ $MACHINE = 2 ]; then exit; fi
                 echo \"$(test $MACHINE = 0 && echo 127.0.1.1 || echo 192.168.0.1) train-master-0\" >> \
                   /etc/netns/$NETNS_PREFIX-$MACHINE/hosts
                 if [ $MACHINE = 1 ]; then
                   {FORWARD}=29500 on 2 {suite:?} --exact machines::forward --nocapture >/dev/null & trap \"kill $!\" EXIT
                 fi
                 export OARLOCK_JOIN_TIMEOUT=30
                 torchrun --nproc_per_node=1 {flags} train.py train.yaml max_steps=2 output_dir={name}",
                suite = std::env::current_exe().unwrap()
            );
            ran(&site, 3, &[], &script);
            assert!(site.model(name) == site.model("one"), "{name}");
        }
    }

    /// Every placement, on two and on three machines.
    #[test]
    #[ignore = "heavy"]
    fn every_stage_has_the_bytes_of_one_machine() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        for machines in [2, 3] {
            let one = format!("one-{machines}");
            site.train(&one, &[&format!("num_processes={}", 2 * machines)]);
            let mut placements: Vec<String> =
                (0..4).map(|stage| format!("deepspeed=ds_z{stage}_config.json")).collect();
            if machines == 2 {
                placements.extend(
                    ["fsdp=full_shard", "fsdp=shard_grad_op", "fsdp=hybrid_shard"].map(str::to_owned),
                );
            }
            for (number, placement) in placements.iter().enumerate() {
                let output = format!("out-{machines}-{number}");
                ran(
                    &site,
                    machines,
                    &[],
                    &torchrun(machines, "", &format!("{placement} output_dir={output}")),
                );
                assert!(site.model(&output) == site.model(&one), "{placement} on {machines} machines");
            }
        }
    }

    /// Waits, on a machine, until the log of a run has so many lines.
    const UNTIL: &str = "until_lines() { until [ \"$(cat $1/trainer_log.jsonl 2>/dev/null | wc -l)\" -ge $2 ]; do sleep 0.05; done; }\n";

    #[test]
    fn a_rank_that_dies_restarts_all_machines_from_the_newest_checkpoint() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        let words = "save_strategy=steps save_steps=2 max_steps=16 overwrite_output_dir=true";
        ran(&site, 2, &[], &torchrun(2, "", &format!("{words} output_dir=whole")));
        let command = torchrun(2, "--max-restarts 1", &format!("{words} output_dir=out"));
        let script = format!(
            "{UNTIL} {command} & launcher=$!
             if [ $MACHINE = 1 ]; then
               until_lines out 5
               for rank in $(pgrep -P $launcher); do
                 if grep -qz ^LOCAL_RANK=1 /proc/$rank/environ; then kill -9 $rank; fi
               done
             fi
             wait $launcher"
        );
        let said = ran(&site, 2, &[], &script);
        assert!(said.stderr.contains("rank 3"), "{said:?}");
        assert!(said.stderr.contains("SIGKILL"), "{said:?}");
        assert!(said.stdout.contains("Resuming training from out/checkpoint-"), "{said:?}");
        assert!(site.model("out") == site.model("whole"));
        assert_eq!(site.losses("out"), site.losses("whole"));
    }

    /// One rank on the first machine and three on the second, by every launcher, with settings that hold for four ranks and for no
    /// multiple of those of one machine.
    #[test]
    #[ignore = "heavy"]
    fn machines_with_other_numbers_of_ranks_train_together() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        let batch = r#"{"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 2}}"#;
        site.write("batch.json", batch);
        site.write("odd.json", &batch.replace("24", "20"));
        site.write("hostfile", "worker-0 slots=1\nworker-1 slots=3\n");
        let words = "deepspeed=batch.json per_device_train_batch_size=3 max_steps=4";
        let split: Vec<&str> = words.split(' ').chain(["num_processes=4"]).collect();
        site.train("one", &split);
        let here = "ranks=$((1 + 2 * MACHINE)); ";
        let [all, first]: [&[&str]; 2] = [&[], &["--only", "0"]];
        let torchrun =
            |words: &str| torchrun(2, "", words).replace("--nproc_per_node=2", "--nproc_per_node=$ranks");
        for (options, command, output) in [
            (all, torchrun(&format!("{words} num_processes=4")), "static"),
            (
                all,
                format!(
                    "torchrun --nnodes 2 --nproc-per-node $ranks --rdzv-backend c10d --rdzv-endpoint 192.168.0.1:29400 \
                     --rdzv-id 7 train.py train.yaml {words}"
                ),
                "c10d",
            ),
            (
                all,
                format!(
                    "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=$MACHINE NPROC_PER_NODE=$ranks MASTER_ADDR=192.168.0.1 \
                     llamafactory-cli train train.yaml {words}"
                ),
                "factory",
            ),
            (
                first,
                format!("deepspeed --hostfile hostfile --master_addr hostname1 train.py train.yaml {words}"),
                "hosts",
            ),
        ] {
            ran(&site, 2, options, &format!("{here}{command} output_dir={output}"));
            assert!(site.model(output) == site.model("one"), "{command}");
            assert_eq!(site.losses(output), site.losses("one"), "{command}");
        }
        // What does not fit is told by each machine before a rank starts.
        for (words, message) in [
            ("num_processes=5", "`num_processes` is 5, but 1 + 3 ranks on 2 machines says 4"),
            (
                "deepspeed=odd.json per_device_train_batch_size=3",
                "`train_batch_size` (20) is not a multiple of a batch of 3 x 4 ranks",
            ),
        ] {
            let command = format!("{here}{} output_dir=out", torchrun(words));
            let said = run(on_machines(&site, 2, &["--keep-going"], &command));
            assert!(said.code == Some(2) && said.stderr.contains(message), "{words}: {said:?}");
            assert!(!site.path("out").exists(), "{words}");
        }
    }

    /// The network is gone for a time that is longer than a launcher waits for an answer: the ranks keep what they have, the
    /// launchers find each other again.
    #[test]
    #[ignore = "heavy"]
    fn an_outage_of_the_network_is_survived() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        site.train("one", &["num_processes=4", "max_steps=100"]);
        let command = torchrun(2, "--rdzv-conf keep_alive_interval=1", "max_steps=100 output_dir=out");
        outage(&site, &command, 1.8);
        assert!(site.model("out") == site.model("one"));
        assert_eq!(site.losses("out"), site.losses("one"));
    }

    /// Runs a command on two machines, of which the second has no network for so many seconds while it trains.
    fn outage(site: &Site, command: &str, seconds: f64) -> CommandOutput {
        let script = format!(
            "{UNTIL} {command} & launcher=$!
             if [ $MACHINE = 1 ]; then until_lines out 3; link 1 down; sleep {seconds}; link 1 up; fi
             wait $launcher"
        );
        let running = start(on_machines(site, 2, &[], &script));
        // The outage is not part of the time that a command may take.
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let said = running.wait();
        assert_eq!(said.code, Some(0), "{script}: {said:?}");
        // A launcher waits for an answer for a third of the silence that loses it, and for 10 s at most.
        for message in ["has not answered for", "answers again after"] {
            assert_eq!(said.stderr.contains(message), seconds != 5.0, "{seconds} s: {message}: {said:?}");
        }
        said
    }

    /// With the limits that hold where nobody sets any: long, so it runs by hand.
    #[test]
    #[ignore = "two minutes (CONTRIBUTING.md): outages as long as the limits of users allow"]
    fn long_outages_are_survived_by_hand() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        site.train("one", &["num_processes=4", "max_steps=100"]);
        for seconds in [5.0, 20.0, 60.0] {
            outage(
                &site,
                &torchrun(2, "", "max_steps=100 output_dir=out overwrite_output_dir=true"),
                seconds,
            );
            assert!(site.model("out") == site.model("one"), "{seconds}");
            assert_eq!(site.losses("out"), site.losses("one"), "{seconds}");
            std::fs::remove_dir_all(site.path("out")).unwrap();
        }
        // Longer than the limits: the restart that is left is used.
        let limits = "export OARLOCK_LINK_TIMEOUT=3; ";
        let words = "max_steps=100 output_dir=out save_strategy=steps save_steps=2";
        let said = outage(&site, &(limits.to_owned() + &torchrun(2, "--max-restarts 1", words)), 12.0);
        assert!(said.stderr.contains("gave no sign of life for 3 s"), "{said:?}");
        assert!(said.stdout.contains("Resuming training from out/checkpoint-"), "{said:?}");
        assert!(site.model("out") == site.model("one"));
    }

    #[test]
    fn a_machine_that_is_lost_is_done_without_and_comes_back() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        let conf = "last_call_timeout=1,keep_alive_interval=1";
        let command = format!(
            "torchrun --nnodes 1:2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 192.168.0.1:29400 --rdzv-id 7 \
             --rdzv-conf {conf} train.py train.yaml output_dir=out save_strategy=steps save_steps=5 save_total_limit=2 \
             max_steps=1000000"
        );
        // What the log says of a step holds the number of ranks only in the number of samples, so notes tell the rounds.
        let script = format!(
            "{UNTIL}
             if [ $MACHINE = 0 ]; then
               {command} > said.out 2> said.err & launcher=$!
               until grep -q 'Resuming.*' said.out && [ $(grep -c 'Resuming' said.out) -ge 2 ]; do
                 kill -0 $launcher || exit 9; sleep 0.05
               done
               sleep 0.5
               kill -TERM $launcher; wait $launcher; [ $? = 143 ]
             else
               {command} > /dev/null 2>&1 & launcher=$!
               until_lines out 10
               kill -9 $launcher; wait $launcher
               until grep -q Resuming said.out; do sleep 0.05; done
               {command} > again.out 2> again.err
               [ $? != 0 ]
             fi"
        );
        let said = run(on_machines(&site, 2, &[], &script));
        let [out, err, again] = ["said.out", "said.err", "again.err"].map(|name| {
            String::from_utf8_lossy(&std::fs::read(site.path(name)).unwrap_or_default()).into_owned()
        });
        assert_eq!(said.code, Some(0), "{said:?} {out} {err} {again}");
        assert!(err.contains("worker-1 (process "), "{err}");
        assert!(err.contains("joins; all ranks start again"), "{err}");
    }

    /// Machines that do not fit together, and one that is lost where none can stand in for it, are named.
    #[test]
    fn what_is_wrong_with_a_machine_is_named_on_the_others() {
        if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
            return;
        }
        let site = site();
        let differs = torchrun(2, "", "output_dir=out learning_rate=1e-$((MACHINE + 3))");
        let said = run(on_machines(
            &site,
            2,
            &["--keep-going"],
            &format!("OARLOCK_JOIN_TIMEOUT=3; export OARLOCK_JOIN_TIMEOUT; {differs}"),
        ));
        assert!(said.code != Some(0), "{said:?}");
        assert!(said.stderr.contains("learning_rate is `1e-4` here and `0.001` there"), "{said:?}");
        assert!(said.stderr.contains("1 of at least 2 nodes are ready"), "{said:?}");
        assert!(
            said.stderr.contains("was refused: learning_rate is `1e-4` on it and `0.001` here"),
            "{said:?}"
        );

        let command = torchrun(2, "", "output_dir=lost max_steps=1000000");
        let script = format!(
            "{UNTIL} {command} & launcher=$!
             if [ $MACHINE = 1 ]; then until_lines lost 3; kill -9 $launcher; fi
             wait $launcher"
        );
        let said = run(on_machines(&site, 2, &["--keep-going"], &script));
        assert!(said.code != Some(0), "{said:?}");
        assert!(said.stderr.contains("error: worker-1 (process "), "{said:?}");
        assert!(said.stderr.contains("was lost: "), "{said:?}");
    }
}
