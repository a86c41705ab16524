//! The environment of LLaMA-Factory's launcher, and files for what is not there yet.

use super::*;
use crate::front::job::Program;

const MINIMUM: &str = "model_name_or_path=m dataset=d.jsonl output_dir=out";
const CPU: Devices = Devices { gpus: 0, cores: 6 };

fn made(words: &str, environment: &[(&str, &str)], devices: &Devices) -> Result<Job, Problems> {
    let words: Vec<String> = format!("{MINIMUM} {words}").split_whitespace().map(str::to_owned).collect();
    let arguments = written::arguments(&Words::new(&words)).unwrap();
    let read =
        |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    job(script::training(&arguments)?, vec!["train".to_owned()], devices, &read)
}

fn config(job: &Job) -> &ResolvedConfig {
    match &job.program {
        Program::Training(config) => config,
        Program::Command(argv) => panic!("{argv:?} is not a training run"),
    }
}

/// Ranks of each machine, this machine, and where the number of ranks comes from.
fn ranks(words: &str, environment: &[(&str, &str)], devices: &Devices) -> (Vec<usize>, usize, String) {
    let job = made(words, environment, devices).unwrap();
    let Nodes::Static { ranks, this } = &job.launch.nodes else { panic!("{:?}", job.launch.nodes) };
    assert_eq!(ranks.iter().sum::<usize>(), config(&job).ranks.num_processes);
    (ranks.clone(), *this, config(&job).origin("num_processes").unwrap().to_string())
}

#[test]
fn the_environment_says_how_many_ranks_and_where() {
    let eight = Devices { gpus: 8, cores: 6 };
    let force = ("FORCE_TORCHRUN", "1");
    for (words, environment, devices, expected) in [
        ("", &[][..], &CPU, (vec![1], 0, "default")),
        ("num_processes=2", &[], &CPU, (vec![2], 0, "argument")),
        ("", &[force], &CPU, (vec![6], 0, "FORCE_TORCHRUN")),
        ("", &[("FORCE_TORCHRUN", "0")], &CPU, (vec![1], 0, "default")),
        ("num_processes=2", &[force], &CPU, (vec![2], 0, "argument")),
        ("", &[force], &eight, (vec![8], 0, "FORCE_TORCHRUN")),
        ("", &[], &eight, (vec![8], 0, "the GPUs")),
        ("", &[], &Devices { gpus: 1, cores: 6 }, (vec![1], 0, "default")),
        ("", &[("NPROC_PER_NODE", "3")], &CPU, (vec![3], 0, "NPROC_PER_NODE")),
        ("", &[force, ("NPROC_PER_NODE", "3")], &eight, (vec![3], 0, "NPROC_PER_NODE")),
        ("num_processes=2", &[("NPROC_PER_NODE", "")], &CPU, (vec![2], 0, "argument")),
        ("", &[("NNODES", "1")], &CPU, (vec![1], 0, "default")),
        // GPUs that are named and not there are stood for by CPU ranks.
        ("", &[("CUDA_VISIBLE_DEVICES", "0,1")], &CPU, (vec![2], 0, "CUDA_VISIBLE_DEVICES")),
        ("", &[("CUDA_VISIBLE_DEVICES", "0")], &CPU, (vec![1], 0, "default")),
        ("", &[("CUDA_VISIBLE_DEVICES", "3"), force], &CPU, (vec![1], 0, "CUDA_VISIBLE_DEVICES")),
        ("", &[("CUDA_VISIBLE_DEVICES", "-1"), force], &CPU, (vec![6], 0, "FORCE_TORCHRUN")),
        ("num_processes=3", &[("CUDA_VISIBLE_DEVICES", "0,1")], &CPU, (vec![3], 0, "argument")),
        (
            "",
            &[("CUDA_VISIBLE_DEVICES", "0,1"), ("NPROC_PER_NODE", "3")],
            &CPU,
            (vec![3], 0, "NPROC_PER_NODE"),
        ),
        // Of GPUs that are there the devices say how many may be used.
        ("", &[("CUDA_VISIBLE_DEVICES", "0,1")], &Devices { gpus: 2, cores: 6 }, (vec![2], 0, "the GPUs")),
        // A launcher has said it all.
        ("", &[("WORLD_SIZE", "4"), ("NPROC_PER_NODE", "2"), force], &CPU, (vec![4], 0, "WORLD_SIZE")),
        (
            "",
            &[force, ("NNODES", "2"), ("NODE_RANK", "1"), ("NPROC_PER_NODE", "4")],
            &CPU,
            (vec![4, 4], 1, "assumed until it is known"),
        ),
        // As older guides name it.
        (
            "",
            &[force, ("NNODES", "2"), ("RANK", "1"), ("NPROC_PER_NODE", "4")],
            &CPU,
            (vec![4, 4], 1, "assumed until it is known"),
        ),
        ("", &[force, ("NNODES", "2")], &CPU, (vec![6, 6], 0, "assumed until it is known")),
        ("num_processes=4", &[("NNODES", "2")], &CPU, (vec![2, 2], 0, "argument")),
    ] {
        let (ranks, this, origin) = ranks(words, environment, devices);
        assert_eq!((ranks, this, origin.as_str()), expected, "{words} {environment:?}");
    }
}

#[test]
fn ranks_of_all_machines_count_in_the_batch() {
    let both = [("NNODES", "2"), ("NPROC_PER_NODE", "4")];
    let batch = "deepspeed={\"train_batch_size\":64,\"train_micro_batch_size_per_gpu\":2}";
    let job = made(&format!("num_processes=8 {batch}"), &both, &CPU).unwrap();
    assert_eq!(config(&job).train.accumulation, 4);
    // How many ranks the other machine has is known once they have met.
    let job = made(batch, &both, &CPU).unwrap();
    assert_eq!(job.on(&[4, 4]).unwrap().train.accumulation, 4);
    assert_eq!(job.on(&[4, 12]).unwrap().train.accumulation, 2);
    let wrong = job.on(&[4, 1]).unwrap_err().to_string();
    assert!(wrong.contains("`train_batch_size` (64) is not a multiple of a batch of 2 x 5 ranks"), "{wrong}");
}

#[test]
fn the_master_and_the_elastic_form() {
    let job = made(
        "",
        &[
            ("FORCE_TORCHRUN", "1"),
            ("NPROC_PER_NODE", "2"),
            ("MASTER_ADDR", "192.168.0.1"),
            ("MASTER_PORT", "29501"),
        ],
        &CPU,
    )
    .unwrap();
    assert_eq!(job.launch.master, Master::at("192.168.0.1", 29501));
    assert_eq!(Master::at("[fd00::1]", 29501).addr, "fd00::1");
    assert_eq!(job.notes, ["Initializing 2 distributed tasks at: 192.168.0.1:29501"]);

    let elastic = [
        ("RDZV_ID", "run7"),
        ("MIN_NNODES", "1"),
        ("MAX_NNODES", "3"),
        ("MAX_RESTARTS", "5"),
        ("NPROC_PER_NODE", "2"),
    ];
    let job = made("", &elastic, &CPU).unwrap();
    let endpoint = ("127.0.0.1".to_owned(), 29500);
    assert_eq!(job.launch.nodes, Nodes::Elastic { ranks: 2, count: 1..=3, endpoint });
    assert_eq!((job.launch.run_id.as_str(), job.launch.restarts.max), ("run7", 5));
    assert_eq!(job.notes[1], "Elastic training enabled: 1 to 3 nodes meet as run7, up to 5 restarts");
    // Without both bounds, and without a name, they count for nothing, as in the original.
    let job = made("", &elastic[1..], &CPU).unwrap();
    assert_eq!(job.launch.nodes, Nodes::Static { ranks: vec![2], this: 0 });
    let job = made("", &[elastic[0], ("NNODES", "2"), ("MIN_NNODES", "1")], &CPU).unwrap();
    assert_eq!(job.launch.machines(), 2);
}

#[test]
fn variables_that_ask_for_another_engine_are_told() {
    for (name, value, is_told) in [("USE_RAY", "1", true), ("USE_RAY", "0", false), ("USE_MCA", "true", true)]
    {
        let notes = made("", &[(name, value)], &CPU).unwrap().notes;
        assert_eq!(notes.iter().any(|note| note.starts_with(name)), is_told, "{name}={value}: {notes:?}");
    }
}

#[test]
fn wrong_variables_are_told_all_at_once() {
    let wrong = [("NPROC_PER_NODE", "gpu"), ("NNODES", "0"), ("MASTER_PORT", "70000"), ("NODE_RANK", "-1")];
    let problems = made("", &wrong, &CPU).unwrap_err();
    assert_eq!(problems.len(), 4, "{problems}");
    for (name, _) in wrong {
        assert!(
            problems.to_string().contains(&format!("{name}: `{name}` takes a whole number, ")),
            "{problems}"
        );
    }
    for (words, environment, expected) in [
        (
            "num_processes=2",
            &[("NPROC_PER_NODE", "3")][..],
            "`num_processes` is 2, but NPROC_PER_NODE says 3",
        ),
        (
            "num_processes=2",
            &[("NPROC_PER_NODE", "2"), ("NNODES", "2")],
            "`num_processes` is 2, but this machine has 2 of the ranks of 2 machines",
        ),
        ("num_processes=3", &[("NNODES", "2")], "3 ranks cannot be divided among 2 machines"),
        ("", &[("NNODES", "2"), ("NODE_RANK", "2")], "`NODE_RANK` is 2, and there are 2 machine(s)"),
        (
            "",
            &[("RDZV_ID", "x"), ("MIN_NNODES", "3"), ("MAX_NNODES", "2")],
            "`MIN_NNODES` is 3, more than `MAX_NNODES`",
        ),
    ] {
        let problems = made(words, environment, &CPU).unwrap_err().to_string();
        assert!(problems.contains(expected), "{problems}");
    }
}

#[test]
fn several_machines_resolve_and_are_missing_when_started() {
    let both = [("NNODES", "2"), ("NPROC_PER_NODE", "4")];
    let job = made("", &both, &CPU).unwrap();
    let missing = job.missing(config(&job));
    match oarlock_comm::gloo_obstacle().is_none() {
        true => assert!(missing.is_empty(), "{missing}"),
        false => assert!(
            missing.to_string().contains("an Oarlock run on 2 machines needs Gloo or MPI"),
            "{missing}"
        ),
    }
    assert!(made("", &both[1..], &CPU).is_ok_and(|job| job.missing(config(&job)).is_empty()));
}

/// The commands and files of a guide to LLaMA-Factory, in words of our own: fine-tuning is resolved, shown, and
/// missing.
#[test]
fn fine_tuning_resolves_and_is_missing_when_started() {
    for (words, missing) in [
        (
            "--stage sft --do_train --template llama3 --finetuning_type lora --overwrite_cache \
             --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --lr_scheduler_type cosine \
             --logging_steps 100 --save_steps 500 --learning_rate 1e-4 --num_train_epochs 2.0 --plot_loss --bf16",
            &[][..],
        ),
        (
            "--stage sft --do_train --template llama3 --finetuning_type full --overwrite_cache --plot_loss --bf16",
            &[],
        ),
        ("stage=sft finetuning_type=lora quantization_bit=4 lora_target=all lora_rank=8", &[]),
        ("stage=sft finetuning_type=lora quantization_bit=8", &[]),
        (
            "stage=sft finetuning_type=lora quantization_bit=8 quantization_method=hqq",
            &["`quantization_method: hqq`"],
        ),
        ("stage=dpo pref_beta=0.1 pref_loss=sigmoid", &[]),
        ("stage=dpo pref_loss=kto_pair", &["`pref_loss: kto_pair`"]),
        ("stage=ppo reward_model=m", &["`stage: ppo`"]),
        ("stage=pt finetuning_type=full bf16=true overwrite_output_dir=true", &[]),
    ] {
        let job = made(words, &[], &CPU).unwrap_or_else(|problems| panic!("{words}: {problems}"));
        let config = config(&job);
        let found = job.missing(config);
        assert_eq!(found.len(), missing.len(), "{words}: {found}");
        for message in missing {
            assert!(found.to_string().contains(message), "{words}: {found}");
        }
        assert_eq!(config.clone().complete().is_ok(), missing.is_empty());
    }
}
