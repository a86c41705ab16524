//! Estimates side by side, as a table for people and as JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use oarlock::estimate::{DryRun, Estimate, ModelSize, OnGpu, Optim, Part, Stage};
use oarlock_tensor::DType;

/// Columns of numbers.
const WIDTH: usize = 11;

/// One column for each estimate: bytes of a rank by part, their sum, and the sum over the ranks of the machine.
pub fn table(size: &ModelSize, estimates: &[Estimate], step: Option<&DryRun>) -> String {
    let Some(first) = estimates.first() else { return String::new() };
    let settings = &first.settings;
    let largest = match size.is_known() {
        true => format!(" ({:.2} M)", size.largest_unit() as f64 / 1e6),
        false => String::new(),
    };
    let mut text = format!(
        "{:.2} M parameters in {}, {} rank(s) of one machine; P parameters, N ranks, U the largest unit{largest}\n\n",
        size.n_params() as f64 / 1e6,
        settings.sharding.dtype,
        settings.ranks,
    );
    let mut names: Vec<&str> = Vec::new();
    for part in estimates.iter().flat_map(|estimate| &estimate.parts) {
        if !names.contains(&part.name) {
            names.push(part.name);
        }
    }
    let first_width = names.iter().map(|name| name.len()).max().unwrap_or(0).max(24);
    let mut line = |name: &str, values: Vec<String>| {
        let _ = write!(text, "{name:first_width$}");
        for value in values {
            let _ = write!(text, " {value:>WIDTH$}");
        }
        text.push('\n');
    };
    let each = |of: &dyn Fn(&Estimate) -> String| estimates.iter().map(of).collect::<Vec<_>>();
    line("MB of a rank", each(&|e| e.settings.stage.name().to_owned()));
    for name in names {
        line(name, each(&|e| megabytes(e.part(name))));
    }
    line("a rank", each(&|e| megabytes(e.rank())));
    line("all ranks", each(&|e| megabytes(e.machine())));
    text.push('\n');
    for estimate in estimates {
        let _ =
            writeln!(text, "{:7} model states a rank: {}", estimate.settings.stage.name(), formula(estimate));
    }
    if let Some(step) = step {
        let peaks: Vec<String> =
            step.by_name.iter().map(|(name, bytes)| format!("{name} {}", megabytes(*bytes))).collect();
        let _ = writeln!(text, "\npeaks of buffers in a step (MB): {}", peaks.join(", "));
        let _ = writeln!(text, "work of a rank's micro-batch: {:.1} GFLOP", step.flops() as f64 / 1e9);
    } else {
        text.push_str(
            "\nmodel states only: activations depend on the shapes of the model; give its folder, or ",
        );
        text.push_str("--hidden and --layers\n");
    }
    if !size.is_known() && estimates.iter().any(|e| e.settings.stage >= Stage::Gradients) {
        text.push_str(
            "ZeRO-2 and ZeRO-3 also hold the gradients of one unit (4 U), which needs the shapes, too\n",
        );
    }
    text
}

/// What the model states of a rank come to, in bytes.
fn formula(estimate: &Estimate) -> String {
    let settings = &estimate.settings;
    let working = settings.sharding.dtype.size();
    let master = if settings.sharding.dtype == DType::F32 { 0 } else { 4 };
    let state = match &settings.optim {
        Optim::TwoMoments | Optim::Lamb => master + 8,
        Optim::OneState => master + 4,
        Optim::Stateless => master,
        Optim::Factored | Optim::Muon | Optim::LowRank(..) | Optim::Other(_) => {
            return "depends on the shapes (this optimizer)".to_owned();
        }
    };
    match settings.stage {
        Stage::Whole => format!("{working}P + 4P + {state}P"),
        Stage::Optimizer => format!("{working}P/N + 4P + {state}P/N"),
        Stage::Gradients | Stage::Parameters => format!("{working}P/N + 4P/N + 4U + {state}P/N"),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// The same as JSON, in bytes.
pub fn json(size: &ModelSize, estimates: &[Estimate], on_gpu: &[OnGpu], step: Option<&DryRun>) -> Value {
    let part = |part: &Part| json!({"name": part.name, "rank": part.rank, "machine": part.machine});
    let stages: Vec<Value> = estimates
        .iter()
        .enumerate()
        .map(|(index, e)| {
            let gpu = on_gpu.get(index);
            json!({
                "gpu_parts": gpu.map(|gpu| gpu.parts.iter().map(part).collect::<Vec<_>>()),
                "gpu_rank": gpu.map(OnGpu::rank),
                "gpu_in_use": gpu.map(OnGpu::all),
                "stage": e.settings.stage.number(),
                "name": e.settings.stage.name(),
                "parts": e.parts.iter().map(part).collect::<Vec<_>>(),
                "rank": e.rank(),
                "machine": e.machine(),
                "complete": e.complete,
            })
        })
        .collect();
    let step = step.map(|step| {
        json!({
            "pool": step.pool_bytes,
            "peaks": step.by_name.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect::<serde_json::Map<_, _>>(),
            "flops": step.flops(),
        })
    });
    json!({
        "parameters": size.n_params(),
        "largest_unit": size.is_known().then(|| size.largest_unit()),
        "dtype": estimates.first().map(|e| e.settings.sharding.dtype.to_string()),
        "ranks": estimates.first().map(|e| e.settings.ranks),
        "stages": stages,
        "step": step,
    })
}

#[cfg(test)]
mod tests {
    use oarlock::estimate::{Settings, estimate};

    use super::*;

    #[test]
    fn a_count_alone_gives_model_states_alone() {
        let size = ModelSize::of_count(7_000_000_000, None, DType::BF16).unwrap();
        let estimate = estimate(&size, &Settings::new(DType::BF16, Stage::Whole, 8), None, 0);
        assert!(table(&size, &[estimate], None).contains("model states only"));
    }
}
