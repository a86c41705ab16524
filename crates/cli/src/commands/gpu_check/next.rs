//! What a report says about what to do next: what each failure means, what is left, and where a step loses most time.

use serde_json::Value;

use super::section::Section;

/// What it means where something of a section failed and nothing of the sections before it did, and what to do.
fn meaning(section: Section) -> &'static str {
    match section {
        Section::Device => {
            "no kernel runs: the error names the library or the call. Compare driver, NVRTC and cuBLASLt with docs/gpu.md, and \
             look at no other section before this one holds"
        }
        Section::Words => {
            "the first word that failed means something else on this GPU than kernels/words.h says, and so does all that uses \
             it: mend that word before anything else"
        }
        Section::Ops => {
            "where the words hold, the kernel or the launch of this op is wrong. Only f32: the plain tile. Only 16 bits: the tile \
             of tensor cores. Other bits in a second run: an order that nothing keeps. `--only sanitizer` looks for the access"
        }
        Section::Training => {
            "each op holds by itself, so what is between them does not: memory that is used again too early, the order of \
             streams, the optimizer. If CUDA_LAUNCH_BLOCKING=1 mends it, an event is missing"
        }
        Section::Nccl => {
            "this NCCL takes or gives something else than its header says: several GPUs must do without it \
             (OARLOCK_TRANSPORT=shm) until that is mended"
        }
        Section::Tune => {
            "the measurement itself failed: training runs without its table are not touched by it"
        }
        Section::Throughput => {
            "what holds in small does not hold in the sizes of a real step: a limit of a launch, or memory beyond the prediction"
        }
        Section::Speed => {
            "an op fails at the sizes of a real step: a limit of a launch, or an index that is too short"
        }
        Section::Offload => {
            "copies beside the launches do not wait for each other as they must, or pinned memory is not what the driver says"
        }
        Section::Cudnn => {
            "OARLOCK_ATTENTION=cudnn must not be used with this version; the own kernels are the default"
        }
        Section::Large => "an index of 32 bits in the op that is named",
        Section::Ranks => {
            "what ranks exchange through memory of the host is not what the GPU has: copies of shared memory"
        }
        Section::Sanitizer => {
            "the access or the race that is named is a fault, also where all results are right"
        }
        Section::Peers => "PyTorch failed, not Oarlock: the comparison is missing",
    }
}

/// A line for each thing to do, what matters most first, by the JSON of a report.
pub(super) fn steps(found: &Value) -> Vec<String> {
    let checks: Vec<&Value> = found["checks"].as_array().into_iter().flatten().collect();
    let of = |section: Section, key: &str, value: &str| -> Vec<&&Value> {
        checks.iter().filter(|check| check["section"] == section.name() && check[key] == value).collect()
    };
    let mut steps = Vec::new();
    for section in Section::ALL {
        let failed = of(section, "result", "failed");
        if let Some(first) = failed.first() {
            let name = first["name"].as_str().unwrap_or_default();
            let n = failed.len();
            steps.push(format!("{}: {n} failed, the first is {name}: {}", section.name(), meaning(section)));
        }
    }
    let n_left = found["summary"]["left"].as_u64().unwrap_or(0);
    if n_left > 0 {
        steps.push(format!("{n_left} checks are left: the same command with --json FILE goes on with them"));
    }
    let staged: Vec<&str> =
        found["facts"]["staged"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !staged.is_empty() {
        steps.push(format!(
            "these ops go through the host, which costs most where a step has them: {}",
            staged.join(", ")
        ));
    }
    steps.extend(
        checks.iter().filter(|check| check["section"] == Section::Throughput.name()).filter_map(|c| lost(c)),
    );
    steps
}

/// The ops of a step that lose most time beside the ceiling that they are under.
fn lost(training: &Value) -> Option<String> {
    let ops = training["numbers"]["ops"].as_object()?;
    let mut lost: Vec<(f64, f64, &str)> = ops
        .iter()
        .filter_map(|(name, op)| {
            let (ms, share) = (op["milliseconds"].as_f64()?, op["share_of_ceiling"].as_f64()?);
            Some((ms * (1.0 - share.clamp(0.0, 1.0)), ms, name.as_str()))
        })
        .collect();
    lost.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst: Vec<String> =
        lost.iter().take(3).map(|(lost, ms, name)| format!("{name} ({lost:.1} of {ms:.1} ms)")).collect();
    (!worst.is_empty()).then(|| {
        format!(
            "{}: most time is lost in {}",
            training["name"].as_str().unwrap_or_default(),
            worst.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_come_first_in_the_order_of_the_sections_and_the_dearest_losses_last() {
        let op = |ms: f64, share: f64| json!({ "milliseconds": ms, "share_of_ceiling": share });
        let found = json!({
            "facts": { "staged": ["conv2d"] },
            "summary": { "left": 3 },
            "checks": [
                { "section": "ops", "name": "rope f32", "result": "failed" },
                { "section": "ops", "name": "rope bf16", "result": "failed" },
                { "section": "words", "name": "mma", "result": "failed" },
                { "section": "throughput", "name": "tiny", "result": "ok", "numbers": { "ops": {
                    "linear": op(10.0, 0.9), "head": op(8.0, 0.1), "rope": op(3.0, 0.2), "cast": op(1.0, 0.5) } } },
            ],
        });
        let steps = steps(&found);
        assert_eq!(steps.len(), 5, "{steps:?}");
        assert!(steps[0].starts_with("words: 1 failed, the first is mma: the first word"), "{}", steps[0]);
        assert!(steps[1].starts_with("ops: 2 failed, the first is rope f32: "), "{}", steps[1]);
        assert!(steps[2].starts_with("3 checks are left") && steps[3].contains("conv2d"), "{steps:?}");
        assert_eq!(
            steps[4],
            "tiny: most time is lost in head (7.2 of 8.0 ms), rope (2.4 of 3.0 ms), linear (1.0 of 10.0 ms)"
        );
        assert!(super::steps(&json!({ "checks": [] })).is_empty());
    }
}
