//! Predictions side by side, as a table for people and as JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use oarlock::estimate::readable;
use oarlock_lm::planner::{Choice, Cluster, Facts, Prediction, Profile};

/// What is shown.
pub struct Shown<'a> {
    /// The run.
    pub facts: &'a Facts,
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// The predictions in their order.
    pub predictions: &'a [Prediction],
    /// The recommended one.
    pub best: Option<&'a Prediction>,
    /// The power of a machine.
    pub watts: Option<f64>,
    /// The keys to change.
    pub changes: Vec<String>,
}

/// A line for each prediction, and what is recommended.
pub fn table(shown: &Shown<'_>) -> String {
    let Shown { facts, cluster, predictions, best, watts, changes } = shown;
    let mut text = format!(
        "{:.2} M parameters in {}, {} machine(s) of {} rank(s) and {}; a step has {} sequences of {} tokens\n\n",
        facts.size.n_params() as f64 / 1e6,
        facts.settings.sharding.dtype,
        cluster.machines,
        cluster.ranks,
        readable(cluster.memory),
        facts.global_batch,
        facts.len,
    );
    let mut rows = vec![
        [
            "",
            "placement",
            "micro-batches",
            "recompute",
            "step",
            "tokens/s",
            "comm wait",
            "bubble",
            "memory/rank",
            "sent/step",
            "ETA",
            "energy",
        ]
        .map(str::to_owned),
    ];
    for one in *predictions {
        let mark = match (one.fits, best.is_some_and(|best| best == one), one.choice == facts.written) {
            (false, ..) => "!",
            (_, true, _) => "*",
            (.., true) => "=",
            _ => "",
        };
        let share = |seconds: f64| match seconds > 0.0 {
            true => format!("{:.0} %", 100.0 * seconds / one.seconds),
            false => "-".to_owned(),
        };
        let known = |known: Option<f64>, show: fn(f64) -> String| known.map_or("-".to_owned(), show);
        rows.push([
            mark.to_owned(),
            one.choice.to_string(),
            division(&one.choice),
            if one.choice.recompute { "yes" } else { "no" }.to_owned(),
            duration(one.seconds),
            format!("{:.0}", one.tokens_per_second),
            share(one.exposed),
            share(one.idle),
            readable(one.memory),
            if one.sent > 0.0 { readable(one.sent as u64) } else { "-".to_owned() },
            known(one.to_the_end, duration),
            known(one.energy, energy),
        ]);
    }
    // Columns in which nothing is known are left out.
    let used: Vec<usize> =
        (0..rows[0].len()).filter(|&c| c == 0 || rows[1..].iter().any(|row| row[c] != "-")).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = used.iter().map(|&column| width(column)).collect();
    for row in &rows {
        let cells = used.iter().zip(&widths).map(|(&column, &width)| match column {
            0..=1 => format!("{:width$}", row[column]),
            _ => format!("{:>width$}", row[column]),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text.push('\n');
    let marks = [("*", "recommended"), ("=", "as written"), ("!", "does not fit into memory")];
    let is_used = |mark: &str| rows[1..].iter().any(|row| row[0] == mark);
    let marks: Vec<String> =
        marks.iter().filter(|(mark, _)| is_used(mark)).map(|(mark, what)| format!("{mark} {what}")).collect();
    let _ = writeln!(text, "{}", marks.join(", "));
    if facts.steps.is_none() {
        text.push_str("the ETA needs the number of steps: max_steps in the file, or --steps\n");
    } else if watts.is_none() {
        text.push_str("the energy needs the power of a machine, which cannot be read here: --watts\n");
    }
    text.push('\n');
    match best {
        None => text
            .push_str("nothing fits: use more machines, smaller micro-batches (--batches) or offloading\n"),
        Some(best) => {
            let _ = writeln!(
                text,
                "recommended: {}, {}{}: {} a step, {:.0} tokens/s, {} a rank",
                best.choice,
                division(&best.choice),
                if best.choice.recompute { ", recomputation" } else { "" },
                duration(best.seconds),
                best.tokens_per_second,
                readable(best.memory),
            );
            if changes.is_empty() {
                text.push_str("the configuration says so already\n");
            }
            for change in changes {
                let _ = writeln!(text, "  {change}");
            }
        }
    }
    text
}

/// `4 sequences x 2`.
fn division(choice: &Choice) -> String {
    format!("{} x {}", choice.accumulation, choice.batch)
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.1} ms", 1e3 * s),
        s if s < 100.0 => format!("{s:.2} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

fn energy(joules: f64) -> String {
    match joules / 3.6e6 {
        kwh if kwh < 0.01 => format!("{joules:.0} J"),
        kwh => format!("{kwh:.2} kWh"),
    }
}

/// The same as JSON: seconds, bytes, joules.
pub fn json(shown: &Shown<'_>, profile: &Profile) -> Value {
    let Shown { facts, cluster, predictions, best, watts, changes } = shown;
    let one = |one: &Prediction| {
        let choice = &one.choice;
        json!({
            "placement": choice.to_string(),
            "stage": choice.stage.number(),
            "by_machine": choice.by_machine,
            "pipeline_stages": choice.stages,
            "recompute": choice.recompute,
            "batch": choice.batch,
            "accumulation": choice.accumulation,
            "step": one.seconds,
            "tokens_per_second": one.tokens_per_second,
            "communication": one.communication,
            "waits": one.exposed,
            "idle": one.idle,
            "sent": one.sent,
            "memory_rank": one.memory,
            "memory_machine": one.machine_memory,
            "fits": one.fits,
            "to_the_end": one.to_the_end,
            "energy": one.energy,
        })
    };
    let network = cluster.network.map(|link| json!({ "latency": link.latency, "bandwidth": link.bandwidth }));
    json!({
        "parameters": facts.size.n_params(),
        "dtype": facts.settings.sharding.dtype.to_string(),
        "machines": cluster.machines,
        "ranks": cluster.ranks,
        "memory": cluster.memory,
        "network": network,
        "watts": watts,
        "sequences": facts.global_batch,
        "tokens": facts.len,
        "steps": facts.steps,
        "predictions": predictions.iter().map(one).collect::<Vec<_>>(),
        "recommended": best.map(one),
        "changes": changes,
        "profile": profile,
    })
}
