//! `oarlock plan`: how long a training run takes with each placement, on this machine or on machines that are not there.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use oarlock::checkpoint::shard_size;
use oarlock::estimate::Limits;
use oarlock_comm::{ProcessMemory, available_cores, bandwidth_of, latency_of};
use oarlock_engine::distributed::rank;
use oarlock_lm::planner::{
    self, Choice, Cluster, Facts, Network, Prediction, Profile, choices, measure, predict, recommended,
};
use oarlock_tensor::DeviceKind;

use super::plan_table::{self, Shown};
use crate::config::{Origin, Problem, Problems, ResolvedConfig, Words, train_config, written};
use crate::console::{Failure, Outcome, eprint, print};
use crate::error::Error;
use crate::front::env_var;

#[derive(Args)]
pub(super) struct PlanArgs {
    /// The run, as `oarlock train` takes it
    #[arg(value_name = "FILE.yaml [key=value …]", required_unless_present = "link")]
    arguments: Vec<String>,
    /// Machines, all like this one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    machines: u16,
    /// Ranks of each machine; by default as many as the run starts, divided by the machines
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// What a machine sends to the others, such as 10Gbit/s or 1.2GB/s
    #[arg(long, value_parser = bandwidth)]
    bandwidth: Option<f64>,
    /// The time of a small message between machines, such as 50us or 0.5ms
    #[arg(long, value_parser = duration)]
    latency: Option<f64>,
    /// The computation that a rank loses for each MB that it sends meanwhile, such as 0.7ms; by default none, as where each rank
    /// has a core to spare
    #[arg(long, value_parser = duration)]
    overhead: Option<f64>,
    /// Memory of a machine, such as 64GB; by default what this one has
    #[arg(long, value_parser = shard_size)]
    memory: Option<u64>,
    /// Sequences of a micro-batch to look at; by default as written, half of it and twice as many
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    batches: Vec<usize>,
    /// Optimizer steps of the whole training; by default max_steps
    #[arg(long)]
    steps: Option<u64>,
    /// The power of a machine in watts, for the energy; by default as its processors report it
    #[arg(long, value_parser = watts)]
    watts: Option<f64>,
    /// Takes the measurements from this file; where there is none, measures and writes it
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Measures the link between machines instead, on ranks that a launcher has started on each
    #[arg(long)]
    link: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

fn bandwidth(text: &str) -> Result<f64, String> {
    bandwidth_of(text).ok_or_else(|| "write a number with its unit: 10Gbit/s, 1.2GB/s".to_owned())
}

fn duration(text: &str) -> Result<f64, String> {
    let found = latency_of(text).map(|latency| latency.as_secs_f64()).filter(|seconds| *seconds > 0.0);
    found.ok_or_else(|| "write a number with its unit: 50us, 0.5ms".to_owned())
}

fn watts(text: &str) -> Result<f64, String> {
    let found = text.trim_end_matches(['W', 'w']).parse::<f64>().ok();
    found.filter(|x| x.is_finite() && *x > 0.0).ok_or_else(|| "write a number of watts: 180".to_owned())
}

/// What to say where a flag is needed or of no use.
fn refuse(message: String, help: &str) -> Failure {
    Failure::from(oarlock::Error::from(Problems::from(Problem::new(message).help(help))))
}

pub(super) fn run(args: &PlanArgs) -> Outcome {
    if args.link {
        return link(args);
    }
    let measured = ProcessMemory::current().map_or(0, |own| own.pss);
    let config = train_config(&written::arguments(&Words::new(&args.arguments))?, &env_var)?;
    if config.ranks.device == DeviceKind::Auto && config.ranks.device.is_gpu() {
        eprint(
            "note: this training run would take the GPU of this machine; the plan is that of ranks on the CPU (device=cpu)\n",
        );
    }
    let (cluster, threads) = cluster(args, &config)?;
    let batches = batches(args, &config)?;
    let mut facts = Facts::of(&config, &batches, measured)?;
    facts.steps = args.steps.or(facts.steps);
    let all = choices(&facts, &cluster, &batches);
    if all.is_empty() {
        return Err(refuse(
            format!(
                "a step of {} sequences cannot be divided over {} ranks in micro-batches of {} sequences",
                facts.global_batch,
                cluster.n_ranks(),
                batches.iter().map(usize::to_string).collect::<Vec<_>>().join(" or "),
            ),
            "change per_device_train_batch_size or gradient_accumulation_steps (key=value), --ranks, --machines or --batches",
        ));
    }
    let profile = profile(args, &config, (cluster.ranks, threads), &batches)?;
    let watts = args.watts.or(profile.watts);
    let of = |choice: &Choice| predict(&facts, &profile, &cluster, *choice, watts);
    let mut predictions: Vec<Prediction> = all.iter().map(of).collect::<oarlock::Result<_>>()?;
    predictions.sort_by(|a, b| b.fits.cmp(&a.fits).then(a.seconds.total_cmp(&b.seconds)));
    let best = recommended(&facts, &predictions);
    let shown = Shown {
        facts: &facts,
        cluster: &cluster,
        predictions: &predictions,
        best,
        watts,
        changes: best.map_or_else(Vec::new, |best| changes(&facts, &cluster, &config, &best.choice)),
    };
    print(&if args.json {
        format!("{:#}\n", plan_table::json(&shown, &profile))
    } else {
        plan_table::table(&shown)
    })
}

/// The machines, and the threads of a rank.
fn cluster(args: &PlanArgs, config: &ResolvedConfig) -> Result<(Cluster, usize), Failure> {
    let machines = usize::from(args.machines);
    let ranks = args.ranks.map_or((config.ranks.num_processes / machines).max(1), usize::from);
    let overhead = args.overhead.unwrap_or(0.0) / 1e6;
    let network = match (machines, args.bandwidth, args.latency) {
        (1, None, None) if args.overhead.is_none() => None,
        (1, ..) => {
            let help = "say how many machines there are (--machines), or leave --bandwidth, --latency and --overhead out";
            return Err(refuse("one machine has no link to others".to_owned(), help));
        }
        (_, Some(bandwidth), Some(latency)) => Some(Network { latency, bandwidth, overhead }),
        _ => {
            let help = "write --bandwidth 10Gbit/s --latency 0.1ms; `oarlock plan --link` measures both, on ranks that a \
                        launcher has started on two machines";
            return Err(refuse(format!("{machines} machines need --bandwidth and --latency"), help));
        }
    };
    let here = || -> Result<u64, Failure> {
        let limits = Limits::current()?;
        Ok(limits.group.map_or(limits.available, |group| group.min(limits.available)))
    };
    let memory = args.memory.map_or_else(here, Ok)?;
    let threads = config.ranks.threads.unwrap_or((available_cores().len() / ranks).max(1));
    Ok((Cluster { machines, ranks, network, memory }, threads))
}

/// The micro-batches to look at.
fn batches(args: &PlanArgs, config: &ResolvedConfig) -> Result<Vec<usize>, Failure> {
    let written = config.train.batch_size;
    let mut batches = match args.batches.is_empty() {
        true => vec![written / 2, written, written * 2],
        false => args.batches.clone(),
    };
    if args.batches.contains(&0) {
        return Err(refuse(
            "--batches: a micro-batch has at least one sequence".to_owned(),
            "write --batches 1,2,4",
        ));
    }
    let all = config.train.batch_size * config.train.accumulation * config.ranks.num_processes;
    batches.retain(|&batch| batch > 0 && batch <= all);
    batches.sort_unstable();
    batches.dedup();
    Ok(batches)
}

/// The measurements, from the file if it is there.
fn profile(
    args: &PlanArgs,
    config: &ResolvedConfig,
    (ranks, threads): (usize, usize),
    batches: &[usize],
) -> Result<Profile, Failure> {
    if let Some(path) = args.profile.as_ref().filter(|path| path.exists()) {
        let profile = Profile::load(path, &planner::subject(config, ranks, threads)?)?;
        if let Some(batch) = batches.iter().find(|&&batch| profile.passes(batch, false).is_none()) {
            return Err(refuse(
                format!("{} has no micro-batches of {batch} sequences", path.display()),
                "name with --batches what it has, or remove it, and all is measured again",
            ));
        }
        return Ok(profile);
    }
    let begin = Instant::now();
    if !args.json {
        eprint(&format!("measuring {ranks} rank(s) of {threads} thread(s) …\n"));
    }
    let profile = measure(config, ranks, threads, batches)?;
    if !args.json {
        eprint(&format!("measured in {:.1} s\n", begin.elapsed().as_secs_f64()));
    }
    if let Some(path) = &args.profile {
        profile.save(path)?;
    }
    Ok(profile)
}

/// Which keys to change to what, each with where its value is from.
fn changes(facts: &Facts, cluster: &Cluster, config: &ResolvedConfig, best: &Choice) -> Vec<String> {
    let now = &facts.written;
    let mut changes = Vec::new();
    let mut change = |key: &str, value: String, now: String| {
        let origin = config.origin(key).map_or(String::new(), |origin| format!(", {origin}"));
        changes.push(format!("{key}: {value}   (now {now}{origin})"));
    };
    if cluster.n_ranks() != facts.ranks {
        change("num_processes", cluster.n_ranks().to_string(), facts.ranks.to_string());
    }
    if best.batch != now.batch {
        change("per_device_train_batch_size", best.batch.to_string(), now.batch.to_string());
    }
    if best.accumulation != now.accumulation {
        change("gradient_accumulation_steps", best.accumulation.to_string(), now.accumulation.to_string());
    }
    if best.recompute != now.recompute {
        change("gradient_checkpointing", best.recompute.to_string(), now.recompute.to_string());
    }
    if best.stages != now.stages {
        change("pipeline_model_parallel_size", best.stages.to_string(), now.stages.to_string());
    }
    if (best.stage, best.by_machine) != (now.stage, now.by_machine) {
        let is_written = |key: &str| matches!(config.origin(key), Some(Origin::Written(_)));
        let (stage, fsdp) = match (best.stage.number(), best.by_machine) {
            (stage, true) => (stage, Some("hybrid_shard auto_wrap")),
            (3, false) => (3, Some("full_shard auto_wrap")),
            (0, false) => (0, Some("no_shard")),
            (stage, false) => (stage, None),
        };
        match fsdp {
            Some(word) if best.by_machine || is_written("fsdp") && !is_written("deepspeed") => {
                change("fsdp", word.to_owned(), now.to_string());
            }
            _ => change("deepspeed", format!("{{zero_optimization: {{stage: {stage}}}}}"), now.to_string()),
        }
    }
    changes
}

/// Measures the link between machines, on ranks that a launcher has started.
fn link(args: &PlanArgs) -> Outcome {
    let comm = rank::join()?;
    let tells = comm.rank() == 0;
    let measured = planner::measure_network(&comm, &|what| {
        if tells {
            eprint(&format!("note: the link is measured, {what}\n"));
        }
    });
    let network = match measured {
        Ok(network) => network,
        Err(error) => {
            comm.abort(&error.to_string());
            return Err(Error::from(error).into());
        }
    };
    comm.finish();
    if comm.rank() != 0 {
        return Ok(());
    }
    let Network { latency, bandwidth, overhead } = network;
    let json = serde_json::json!({ "latency": latency, "bandwidth": bandwidth, "overhead": overhead });
    match args.json {
        true => print(&format!("{json}\n")),
        // Nothing is lost where no overhead is given.
        false => print(&format!(
            "--latency {:.3}ms --bandwidth {:.1}MB/s --overhead {:.4}ms\n",
            1e3 * latency,
            bandwidth / 1e6,
            (1e9 * overhead).max(1e-4)
        )),
    }
}
