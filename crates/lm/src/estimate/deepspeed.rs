//! DeepSpeed's own estimators of model states, as its users know them: for comparison, not for ours.

use std::fmt::Write;

/// What both print first.
fn head(text: &mut String, ranks: u64, model: &str) {
    let s = if ranks > 1 { "s" } else { "" };
    let _ = writeln!(text, "Estimated memory needed for params, optim states and gradients for a:");
    let _ = writeln!(text, "HW: Setup with 1 node, {ranks} GPU{s} per node.");
    let _ = writeln!(text, "SW: Model with {model}.");
    let _ = writeln!(text, "  per CPU  |  per GPU |   Options");
}

fn row(text: &mut String, cpu: f64, gpu: u64, options: &str) {
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let _ = writeln!(text, " {:7.2}GB | {:6.2}GB | {options}", gib(cpu.floor()), gib(gpu as f64));
}

/// The factor for additional buffers that both take by default.
const BUFFER_FACTOR: f64 = 1.5;

/// What `estimate_zero2_model_states_mem_needs_all_cold` prints for one node.
pub fn zero2(n_params: u64, ranks: u64) -> String {
    let (p, g) = (n_params, ranks.max(1));
    let mut text = String::new();
    head(&mut text, g, &format!("{}M total params", p / 1_000_000));
    row(&mut text, (p * 16.max(4 * g)) as f64 * BUFFER_FACTOR, 2 * p, "offload_optimizer=cpu ");
    row(&mut text, (p * 4 * g) as f64 * BUFFER_FACTOR, 2 * p + 18 * p / g, "offload_optimizer=none");
    text
}

/// What `estimate_zero3_model_states_mem_needs_all_cold` prints for one node.
pub fn zero3(n_params: u64, largest_layer: u64, ranks: u64) -> String {
    let (p, l, g) = (n_params, largest_layer, ranks.max(1));
    let mut text = String::new();
    let model = format!("{}M total params, {}M largest layer params", p / 1_000_000, l / 1_000_000);
    head(&mut text, g, &model);
    for (optimizer, param) in [("cpu ", "cpu "), ("cpu ", "none"), ("none", "none")] {
        let (state, gpu) = match (optimizer, param) {
            ("cpu ", "cpu ") => (18, 4 * l),
            ("cpu ", _) => (16, 4 * l + 2 * p / g),
            _ => (0, 4 * l + 18 * p / g),
        };
        for zero_init in [true, false] {
            let cpu = match (state, zero_init) {
                (0, true) => l * 4 * g,
                (0, false) => p * 4 * g,
                (state, true) => p * state,
                (state, false) => p * state.max(4 * g),
            };
            let options = format!(
                "offload_param={param}, offload_optimizer={optimizer}, zero_init={}",
                u8::from(zero_init)
            );
            row(&mut text, cpu as f64 * BUFFER_FACTOR, gpu, &options);
        }
    }
    text
}
