//! The rules of a launch: what weighs more, what was meant, and what is refused.

use oarlock_tensor::DType;
use proptest::prelude::*;

use super::Site;
use crate::config::accelerate::keys::FLAGS;
use crate::front::script::Script;
use crate::launch::spec::{Binding, Nodes, Streams};

const PLAIN: &str = "distributed_type: MULTI_GPU\nnum_processes: 2\n";

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_to_do() {
    for (file, line, expected) in [
        (
            "",
            "--multi_gpu --use_deepspeed env.py",
            "the command line: `--multi_gpu` and `--use_deepspeed` are mutually exclusive (keep one of them; `--cpu` goes \
             with each)",
        ),
        (
            "",
            "--multi_gpu --num_processes 1 env.py",
            "the command line: `--multi_gpu` is for 2 processes or more (leave `--multi_gpu` out, or ask for more \
             processes)",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_processes: -1\n",
            "env.py",
            "c.yaml:2:16: `num_processes` is -1, so the number of ranks must be set (add `--num_processes N`)",
        ),
        (
            "distributed_type: MULTI_GPU\n",
            "env.py",
            "`c.yaml` does not say `num_processes` (write it there, or add `--num_processes N`)",
        ),
        (
            "num_processes: 2\n",
            "--multi_gpu env.py",
            "`distributed_type` is missing in `c.yaml` (write `distributed_type: NO`, MULTI_CPU, MULTI_GPU, DEEPSPEED \
             or FSDP)",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_process: 2\nnum_processes: 2\nzero_stage: 2\nmax_restarts: 1\n",
            "env.py",
            "c.yaml:2:1: unknown key `num_process` in the configuration of Accelerate (did you mean `num_processes`?)\n\
             c.yaml:4:1: unknown key `zero_stage` in the configuration of Accelerate (`zero_stage` belongs in \
             `deepspeed_config`)\n\
             c.yaml:5:1: unknown key `max_restarts` in the configuration of Accelerate (`max_restarts` is a flag only: \
             `accelerate launch --max_restarts …`)",
        ),
        (
            "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_shardin_strategy: FULL_SHARD\n",
            "env.py",
            "c.yaml:4:3: unknown key `fsdp_shardin_strategy` in `fsdp_config` (did you mean `fsdp_sharding_strategy`?)",
        ),
        (
            "distributed_type: MULTY_GPU\nnum_processes: 2\n",
            "env.py",
            "c.yaml:1:19: `distributed_type` takes one of NO, MULTI_CPU, MULTI_GPU, MULTI_NPU, MULTI_MLU, MULTI_SDAA, \
             MULTI_MUSA, MULTI_XPU, MULTI_HPU, MULTI_NEURON, DEEPSPEED, FSDP, XLA, MEGATRON_LM, not `MULTY_GPU` (did \
             you mean `MULTI_GPU`?)",
        ),
        (
            "distributed_type: XLA\nnum_processes: 2\n",
            "env.py",
            "c.yaml:1:19: `distributed_type: XLA` asks for devices that ranks do not run on (write MULTI_GPU, or \
             MULTI_CPU for ranks on cores)",
        ),
        (
            "compute_environment: AMAZON_SAGEMAKER\nec2_instance_type: x\n",
            "env.py",
            "c.yaml:1:22: SageMaker starts these processes, not this machine (write `compute_environment: \
             LOCAL_MACHINE`, and what is to run here)",
        ),
        (
            "",
            "--multi_gpu --num_processes 3 --num_machines 2 --machine_rank 0 --main_process_ip h env.py",
            "the command line: `num_processes` (3) is not a multiple of `num_machines` (2) (`num_processes` counts the \
             ranks of all machines, as many on each: write 2 or 4)",
        ),
        (
            "",
            "--cpu --num_processes 2 --num_machines 999999 --machine_rank 0 --main_process_ip h env.py",
            "the command line: `num_processes` (2) is not a multiple of `num_machines` (999999) (`num_processes` \
             counts the ranks of all machines, as many on each: write 999999)",
        ),
        (
            "",
            "--cpu --num_processes 9999999999 env.py",
            "the command line: `num_processes` takes a whole number, at least -1 and at most 1048576, not `9999999999`",
        ),
        (
            "",
            "--multi_gpu --num_processes 4 --num_machines 2 env.py",
            "the command line: this is one of 2 machines, and nobody says which (add `--machine_rank N`, from 0 on \
             machine 0)\nthe command line: 2 machines are asked for, and nobody says where they meet (add \
             `--main_process_ip ADDRESS`, the address of machine 0)",
        ),
        (
            "",
            "--multi_gpu --num_processes 4 --num_machines 2 --machine_rank 2 --main_process_ip h env.py",
            "the command line: there is no machine 2 among 2 (machines count from 0 to 1)",
        ),
        (
            "",
            "--multi_gpu --num_processes 16 env.py",
            "16 GPUs are asked for, and this machine has 8 (to run the same on 16 CPU ranks: add `--cpu`)",
        ),
        (
            "",
            "--multi_gpu --num_processes 2 --gpu_ids 3 env.py",
            "the command line: 2 GPUs are asked for, and this machine has 1 (to run the same on 2 CPU ranks: add \
             `--cpu`)",
        ),
        (
            "",
            "--cpu --mpirun_hostfile h env.py",
            "the command line: `mpirun_hostfile: h` is not supported yet (start it with `mpirun -n RANKS \
             --hostfile FILE`; an Oarlock run then needs a build with `--features mpi`)",
        ),
        (
            "",
            "--tpu env.py",
            "the command line: `tpu: true` is not supported yet (ranks run on cores or GPUs, not on TPUs)",
        ),
        (
            "",
            "--mixed_precision fp61 env.py",
            "the command line: `mixed_precision` takes one of no, fp16, bf16, fp8, not `fp61` (did you mean `fp16`?)",
        ),
        (
            "",
            "--tee 7 env.py",
            "the command line: `7` says no streams (write 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or by local \
             rank as in 0:3,1:1)",
        ),
        (
            "",
            "--num_proceses=2 env.py",
            "the command line: `accelerate launch` has no flag `--num_proceses` (did you mean `--num_processes`?)",
        ),
        (
            "",
            "--module --no_python env.py",
            "the command line: `--module` and `--no_python` are mutually exclusive (a module is run by Python; keep one of them)",
        ),
        (
            "",
            "--main_process_port 70000 --multi_gpu --num_processes 2 env.py",
            "the command line: there is no port 70000 (ports end at 65535)",
        ),
        (
            "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_sync_module_states: false}\n",
            "env.py",
            "c.yaml:3:40: `fsdp_cpu_ram_efficient_loading` needs `fsdp_sync_module_states`: only rank 0 has weights \
             (write `fsdp_sync_module_states: true`)",
        ),
        (
            "",
            "--mixed_precision fp8 src/train.py train.yaml",
            "the command line: an Oarlock run does not compute in fp8 (write bf16)",
        ),
        (
            "distributed_type: MEGATRON_LM\nnum_processes: 2\n",
            "src/train.py train.yaml",
            "c.yaml:1:19: Megatron-LM divides layers and matrices, and the ranks of an Oarlock run hold complete ones \
             (choose DEEPSPEED or FSDP to divide states, gradients and parameters)",
        ),
        (
            "distributed_type: FSDP\nnum_processes: 2\nparallelism_config: {parallelism_config_tp_size: 2}\n",
            "src/train.py train.yaml",
            "c.yaml:3:50: `parallelism_config_tp_size` divides matrices, and the ranks of an Oarlock run are data \
             parallel (write 1, and ask for more data parallel ranks)",
        ),
        (
            "distributed_type: DEEPSPEED\nnum_processes: 2\n",
            "--fsdp_offload_params true env.py",
            "the command line: `--fsdp_offload_params` is of FSDP, and another engine is chosen (c.yaml:1:19: chosen \
             here; keep one of them)",
        ),
        (
            "",
            "--config_file nowhere.yaml env.py",
            "cannot read the configuration of Accelerate `nowhere.yaml`",
        ),
        ("", "", "missing argument: script"),
        ("", "nowhere.py", "the command line: there is no file `nowhere.py`"),
    ] {
        let site = Site::new(8);
        let named = if file.is_empty() { "" } else { "--config_file c.yaml" };
        site.write("c.yaml", file);
        let said = site.wrong(&format!("{named} {line}"));
        // The last ones go on with what the system says, or lists.
        let goes_on = line.is_empty() || line.contains("nowhere");
        assert!(
            said == expected || (goes_on && said.starts_with(expected)),
            "{line}\n{file}:\n{said}\nexpected:\n{expected}"
        );
    }
}

#[test]
fn a_command_for_gpus_names_the_one_for_cores() {
    let site = Site::new(0);
    site.write("c.yaml", "distributed_type: FSDP\nnum_processes: 4\n");
    for line in ["--multi_gpu --num_processes 4", "--use_deepspeed --num_processes 4", "--config_file c.yaml"]
    {
        let said = site.wrong(&format!("{line} src/train.py train.yaml"));
        assert_eq!(
            said,
            "4 GPUs are asked for, and this machine has none (to run the same on 4 CPU ranks: add `--cpu`)"
        );
        assert_eq!(site.plan(&format!("--cpu {line} src/train.py train.yaml")).ranks.num_processes, 4);
        // A dry run starts nothing, so it only tells.
        let resolved = site.resolve(&format!("--dry-run {line} src/train.py train.yaml"));
        assert!(
            resolved.notes.iter().any(|note| note.contains("4 GPUs are asked for")),
            "{:?}",
            resolved.notes
        );
    }
}

#[test]
fn on_the_cpu_what_divides_the_states_stays() {
    let site = Site::new(0);
    site.write(
        "c.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 3\n",
    );
    let line = "--cpu --config_file c.yaml src/train.py train.yaml";
    let resolved = site.resolve(line);
    let note = resolved.notes.iter().find(|note| note.starts_with("--cpu chooses")).unwrap();
    assert!(note.contains("c.yaml:1:19") && note.contains("Accelerate would start one process"), "{note}");
    let config = site.plan(line);
    assert_eq!(config.shard.placements.parameters, crate::config::Placement::Sharded);
    assert_eq!(config.ranks.num_processes, 2);
}

#[test]
fn flags_weigh_more_than_the_file() {
    let site = Site::new(8);
    site.write(
        "c.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: fp16\ndeepspeed_config:\n  zero_stage: 3\n  \
         gradient_clipping: 0.5\n",
    );
    let config = site.plan(
        "--config_file c.yaml --zero_stage 1 --num_processes 4 --mixed_precision bf16 --num_cpu_threads_per_process 3 \
         src/train.py train.yaml",
    );
    assert_eq!(config.shard.placements.gradients, crate::config::Placement::Whole);
    assert_eq!((config.ranks.num_processes, config.ranks.threads), (4, Some(3)));
    assert_eq!((config.train.dtype, config.train.max_grad_norm), (DType::BF16, Some(0.5)));
}

#[test]
fn sequence_parallel_ranks_are_those_of_the_training() {
    let site = Site::new(4);
    let config = site.plan(
        "--use_deepspeed --num_processes 4 --use_parallelism_config --parallelism_config_sp_size 2 src/train.py train.yaml",
    );
    assert_eq!((config.ranks.num_processes, config.ranks.sequence_parallel), (4, 2));
}

#[test]
fn what_files_say_of_deepspeed_is_joined() {
    let site = Site::new(2);
    site.write(
        "ds.json",
        "{\"zero_optimization\": {\"stage\": 2}, \"gradient_accumulation_steps\": \"auto\"}",
    );
    let file = |more: &str| {
        let ds = site.path("ds.json");
        site.write(
            "c.yaml",
            &format!(
                "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\ndeepspeed_config:\n  \
                 deepspeed_config_file: {ds}\n{more}"
            ),
        );
    };
    const LINE: &str = "--config_file c.yaml src/train.py train.yaml";
    file("  zero_stage: \"2\"\n  gradient_accumulation_steps: 8\n  offload_param_device: none\n");
    let config = site.plan(LINE);
    assert_eq!((config.train.accumulation, config.train.dtype), (8, DType::BF16));
    file("  offload_optimizer_device: cpu\n");
    let config = site.plan(LINE);
    assert!(
        config.notes().iter().any(|note| note.contains("offload_optimizer to cpu"))
            && config.shard.placements.gradients == crate::config::Placement::Sharded
    );
    file("  zero_stage: 3\n");
    assert_eq!(
        site.wrong(LINE),
        "c.yaml:6:15: `zero_stage` is 3, but `zero_optimization.stage` is 2 (ds.json:1:33: 2 here; remove one of them, \
         or write the same value in both; \"auto\" in the DeepSpeed file takes the other)"
    );
    site.write("ds.json", "{\"zero_optimization\": true}");
    file("  offload_optimizer_device: cpu\n");
    let config = site.plan(LINE);
    assert!(
        config.notes().iter().any(|note| note.contains("offload_optimizer to cpu"))
            && config.shard.placements.gradients == crate::config::Placement::Whole
    );
    // Precision beside the file, and another one in it.
    site.write("ds.json", "{\"zero_optimization\": {\"stage\": 2}, \"fp16\": {\"enabled\": true}}");
    file("");
    let said = site.wrong(LINE);
    assert!(said.contains("c.yaml:3:18: `fp16` is false, but ds.json:1:57 says true"), "{said}");
}

#[test]
fn precision_and_accumulation_are_those_of_the_training() {
    let site = Site::new(2);
    const TRAIN: &str = "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: out\n";
    site.write("train.yaml", &format!("{TRAIN}fp16: true\ngradient_accumulation_steps: 4\n"));
    let line = "--mixed_precision bf16 --num_processes 1 src/train.py train.yaml";
    let resolved = site.resolve(line);
    let note = "`fp16: true` (train.yaml:4:1) decides, as in LLaMA-Factory, over the launcher's bf16 (the command line)";
    assert!(
        resolved.notes.iter().any(|said| said.replace(&site.path(""), "") == note),
        "{:?}",
        resolved.notes
    );
    assert_eq!(site.plan(line).train.dtype, DType::F16);
    assert_eq!(site.plan("--mixed_precision no src/train.py train.yaml").train.dtype, DType::F16);
    // Where the run says nothing, or takes it back, the launcher decides.
    let plain = "--mixed_precision bf16 src/train.py train.yaml fp16=false gradient_accumulation_steps=1";
    assert_eq!(site.plan(plain).train.dtype, DType::BF16);
    // MiniMind's script follows Accelerate.
    site.write("tokenizer.json", "{}");
    let words = format!("train_pretrain.py --dtype float16 --tokenizer_path {}", site.path(""));
    let resolved = site.resolve(&format!("--mixed_precision bf16 {words}"));
    let decides = "bf16 (the command line) decides, as with Accelerate, over `fp16: true`";
    assert!(resolved.notes.iter().any(|said| said.starts_with(decides)), "{:?}", resolved.notes);
    // A file that says no says that nothing was chosen.
    site.write("c.yaml", "distributed_type: NO\nnum_processes: 1\nmixed_precision: 'no'\n");
    assert_eq!(site.plan("--config_file c.yaml src/train.py train.yaml").train.dtype, DType::F16);
    let said = site.wrong("--gradient_accumulation_steps 2 src/train.py train.yaml");
    assert!(said.contains("`gradient_accumulation_steps` is 4, but the command line says 2"), "{said}");
    // Accelerate hands these flags on for DeepSpeed only.
    let note = |line: &str| {
        site.resolve(line).notes.into_iter().find(|note| note.contains("only DeepSpeed")).unwrap_or_default()
    };
    let flags = "--gradient_accumulation_steps 4 --gradient_clipping 0.5 src/train.py train.yaml";
    assert_eq!(
        note(flags),
        "with Accelerate only DeepSpeed reads --gradient_accumulation_steps 4, --gradient_clipping 0.5; here it counts"
    );
    assert_eq!(note(&format!("--use_deepspeed {flags}")), "");
}

#[test]
fn a_number_that_is_to_be_said_is_one_mistake() {
    let site = Site::new(0);
    const TRAIN: &str = "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: out\nnum_processes: 2\n";
    site.write("train.yaml", TRAIN);
    let said = site.wrong("--cpu --num_processes -1 src/train.py train.yaml");
    assert!(said.contains("must be set") && !said.contains("`num_processes` is 2"), "{said}");
}

#[test]
fn older_and_shorter_files_are_read() {
    let site = Site::new(2);
    for text in [
        "distributed_type: FSDP\nnum_processes: 2\nfp16: true\nfsdp_config: {sharding_strategy: 2}\n",
        "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: FP16\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n",
        "{\"distributed_type\": \"FSDP\", \"num_processes\": 2, \"mixed_precision\": \"fp16\", \"fsdp_config\": \
         {\"fsdp_reshard_after_forward\": false, \"version\": 2}, \"deepspeed_config\": null}",
    ] {
        site.write("c.yaml", text);
        let config = site.plan("--config_file c.yaml src/train.py train.yaml");
        assert_eq!(config.train.dtype, DType::F16, "{text}");
        assert_eq!(config.shard.lifetime, crate::config::Lifetime::ForwardToBackward, "{text}");
    }
}

#[test]
fn the_default_file_is_found_and_flags_stand_alone_without_it() {
    let site = Site::new(2);
    let folder = site.path("nowhere/accelerate");
    std::fs::create_dir_all(&folder).unwrap();
    site.write("nowhere/accelerate/default_config.yaml", PLAIN);
    assert_eq!(site.resolve("env.py").launch.local_ranks(), 2);
    assert!(site.resolve("env.py").notes.is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
    let resolved = site.resolve("env.py");
    assert_eq!(resolved.launch.local_ranks(), 2);
    let note = &resolved.notes[0];
    assert!(
        note.starts_with("The following values were not passed to `accelerate launch` and had defaults"),
        "{note}"
    );
    for line in [
        "\n\t`--num_processes` was set to a value of `2`",
        "\n\t`--num_machines` was set to a value of `1`",
        "\n\t`--mixed_precision` was set to a value of `'no'`",
        "\n\t`--dynamo_backend` was set to a value of `'no'`",
    ] {
        assert!(note.contains(line), "{note}");
    }
    // A training run that says how many ranks it has keeps them.
    assert!(Site::new(0).resolve("src/train.py train.yaml").ranks_are_default);
    assert_eq!(Site::new(0).resolve("env.py").launch.local_ranks(), 1);
}

#[test]
fn a_launch_is_described_whole() {
    let site = Site::new(8);
    let resolved = site.resolve(
        "--multi_gpu --num_processes 2 --max_restarts 3 --monitor_interval 0.5 --tee 0:3,1:1 --log_dir logs --role r \
         --enable_cpu_affinity --quiet -m package.module --flag",
    );
    let launch = &resolved.launch;
    assert_eq!((launch.restarts.max, launch.restarts.monitor_interval.as_millis()), (3, 500));
    assert_eq!(launch.output.tee.of(0), Streams { out: true, err: true });
    assert_eq!(launch.output.tee.of(1), Streams { out: true, err: false });
    assert_eq!(launch.output.tee.of(2), Streams::default());
    assert_eq!((launch.role.as_str(), launch.quiet), ("r", true));
    assert_eq!(launch.binding, Binding::Share);
    match &resolved.script {
        Script::Command(argv) => assert_eq!(argv[1..], ["-u", "-m", "package.module", "--flag"]),
        Script::Training(_) => panic!("no training run"),
    }
}

#[test]
fn machines_meet_as_they_are_told() {
    let site = Site::new(8);
    let line = "--multi_gpu --num_processes 4 --num_machines 2 --machine_rank 1 --main_process_ip h";
    let resolved =
        site.resolve(&format!("{line} --rdzv_backend c10d --rdzv_conf timeout=9,join_timeout=5 env.py"));
    assert_eq!(
        resolved.launch.nodes,
        Nodes::Elastic { ranks: 2, count: 2..=2, endpoint: ("h".to_owned(), 29500) }
    );
    assert_eq!(resolved.launch.rdzv_conf, "timeout=9,join_timeout=5");
    let said = site.wrong(&format!("{line} --rdzv_backend etcd env.py"));
    assert!(said.contains("machines do not meet by `etcd` here"), "{said}");
    let zero = line.replace("--multi_gpu", "--use_deepspeed");
    let said = site
        .wrong(&format!("{zero} --deepspeed_multinode_launcher pdsh --deepspeed_hostfile hosts env.py a"));
    assert!(said.contains("`pdsh` starts the machines of a hostfile"), "{said}");
    assert!(
        said.contains(
            "run `deepspeed --hostfile hosts --no_local_rank --launcher pdsh --num_gpus 2 --master_addr h \
             --master_port 29500 env.py a`"
        ),
        "{said}"
    );
    let said = site.wrong(&format!(
        "{zero} --deepspeed_multinode_launcher pdsh --deepspeed_hostfile hosts --deepspeed_exclusion_filter b:1 env.py"
    ));
    assert!(said.contains("--launcher pdsh --exclude b:1 "), "{said}");
    let one = "--use_deepspeed --num_processes 2 --deepspeed_hostfile hosts --deepspeed_inclusion_filter a:0";
    let notes = site.resolve(&format!("{one} env.py")).notes;
    let note = "nobody reads deepspeed_hostfile, deepspeed_inclusion_filter here, nor with Accelerate";
    assert!(notes.iter().any(|said| said.starts_with(note)), "{notes:?}");
    let notes = site.resolve(&format!("{zero} env.py")).notes;
    let note = "this command starts this machine only (deepspeed_multinode_launcher: standard); Accelerate would run \
                `deepspeed --hostfile HOSTFILE --no_local_rank --launcher pdsh";
    assert!(notes.iter().any(|said| said.starts_with(note)), "{notes:?}");
}

#[test]
fn flags_of_a_strategy_mean_the_strategy() {
    let site = Site::new(2);
    site.write("ds.json", "{\"zero_optimization\": {\"stage\": 2}}");
    for (flags, flag, strategy, switch) in [
        ("--fsdp_sharding_strategy FULL_SHARD", "fsdp_sharding_strategy", "FSDP", "use_fsdp"),
        ("--multi_gpu --fsdp_min_num_params 100", "fsdp_min_num_params", "FSDP", "use_fsdp"),
        ("--multi_gpu --zero_stage 2", "zero_stage", "DeepSpeed", "use_deepspeed"),
    ] {
        let notes = site.resolve(&format!("--num_processes 2 {flags} env.py")).notes;
        let note = format!(
            "--{flag} means {strategy}, so {strategy} it is; Accelerate divides nothing and never reads the flag without \
             --{switch}"
        );
        assert!(notes.contains(&note), "{flags}: {notes:?}");
    }
}

#[test]
fn port_0_is_for_programs_to_meet_at() {
    let site = Site::new(8);
    let port = |script: &str| {
        site.resolve(&format!("--multi_gpu --num_processes 2 --main_process_port 0 {script}"))
            .launch
            .master
            .port
    };
    assert_eq!((port("env.py"), port("src/train.py train.yaml")), (0, 29500));
}

#[test]
fn several_processes_on_the_cpu_are_ranks() {
    let site = Site::new(0);
    let resolved = site.resolve("--cpu --num_processes 2 env.py");
    assert_eq!(resolved.launch.local_ranks(), 2);
    assert!(!resolved.launch.alone);
    assert!(resolved.notes.iter().any(|note| note.contains("Accelerate would start one process here")));
    let found = super::variables(&resolved, 1);
    for (name, value) in [("RANK", "1"), ("WORLD_SIZE", "2"), ("ACCELERATE_USE_CPU", "True")] {
        assert!(found.contains(&(name.to_owned(), value.to_owned())), "{name} in {found:?}");
    }
    let alone = site.resolve("--cpu --num_processes 1 env.py");
    assert!(super::variables(&alone, 0).iter().all(|(name, _)| name != "RANK" && name != "WORLD_SIZE"));
}

#[test]
fn cpu_beside_a_strategy_is_explained_to_trainings_alone() {
    let site = Site::new(0);
    site.write("c.yaml", "distributed_type: FSDP\nnum_processes: 2\n");
    let said = |script: &str| site.resolve(&format!("--cpu --config_file c.yaml {script}")).notes.join("\n");
    assert!(said("src/train.py train.yaml").contains("what shards their states stays"));
    assert!(!said("env.py").contains("--cpu chooses"), "{}", said("env.py"));
}

#[test]
fn gpus_and_what_is_not_supported_are_told_together() {
    let site = Site::new(0);
    site.write("c.yaml", "distributed_type: FSDP\nnum_processes: 2\n");
    site.write(
        "train.yaml",
        "model_name_or_path: m\ndataset: d\noutput_dir: out\nstage: ppo\nfinetuning_type: lora\nuse_adam_mini: true\n",
    );
    let said = site.wrong("--config_file c.yaml src/train.py train.yaml");
    for part in ["2 GPUs are asked for", "`stage: ppo`", "`use_adam_mini: true`"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_program_with_its_own_accelerate_is_told_what_that_refuses() {
    let site = Site::new(4);
    site.write(
        "c.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\ndeepspeed_config:\n  \
         deepspeed_config_file: ds.json\n  zero_stage: 2\n",
    );
    let notes = |line: &str| site.resolve(line).notes.join("\n");
    let said = notes("--config_file c.yaml env.py");
    assert!(said.contains("refuses zero_stage, mixed_precision in"), "{said}");
    let said = notes("--config_file c.yaml --mixed_precision bf16 env.py");
    assert!(said.contains("refuses zero_stage in"), "{said}");
}

proptest! {
    #[test]
    fn no_words_panic(
        flags in prop::collection::vec(
            (prop::sample::select(FLAGS.iter().map(|key| key.name).collect::<Vec<_>>()), "(\\PC{0,6}|-?[0-9]{1,20}|true|auto)"),
            0..6,
        ),
        script in prop::sample::select(vec!["env.py", "src/train.py train.yaml", "src/train.py", "", "--"]),
    ) {
        let site = Site::new(2);
        let flags: String = flags.iter().map(|(name, value)| format!("--{name}={value} ")).collect();
        let said = site.wrong(&format!("{flags}{script}"));
        prop_assert!(!said.is_empty());
    }
}
