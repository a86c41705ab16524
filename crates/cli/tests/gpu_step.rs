//! The launches of a training step on a GPU, recorded over fake libraries for one layer and for two, and what they come to for
//! models that people train.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use oarlock_cuda::order::shifts;

use crate::common::Site;
use crate::gpu::{fakes, on_gpu_with};

/// How often each kernel runs in a step; `library` are matrix products, and `host_wait` counts how often the host waits.
type Launches = BTreeMap<String, i64>;

const WAIT: &str = "host_wait";
/// For the norm of the gradients and for the loss. A call that finds the work done is not a wait, so there may be fewer.
const MOST_WAITS: i64 = 2;
const VOCAB: usize = 320;

/// A model of Qwen2's shape, with this many layers.
fn config(layers: usize) -> String {
    format!(
        r#"{{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": {VOCAB}, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": {layers}, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"}}"#
    )
}

/// A step of a training run in bf16: what two more steps add to a run, halved.
fn step(site: &Site, layers: usize) -> Launches {
    site.write("model/config.json", &config(layers));
    let run = |steps: usize| {
        let runs = site.path(&format!("runs {layers} {steps}"));
        let words = [
            "train".to_string(),
            "train.yaml".to_string(),
            "device=cuda".to_string(),
            "bf16=true".to_string(),
            "num_processes=1".to_string(),
            "train_from_scratch=true".to_string(),
            "lr_scheduler_type=constant".to_string(),
            "logging_steps=100".to_string(),
            "overwrite_output_dir=true".to_string(),
            format!("max_steps={steps}"),
            format!("output_dir=out {layers} {steps}"),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // By the clock of the fake driver products are slow, so that the measurement of the peak always takes the same number.
        let variables = [("OARLOCK_FAKE_RUNS", runs.to_str().unwrap()), ("OARLOCK_FAKE_SLOW", "library=200")];
        let said = on_gpu_with(site, &words, &variables);
        assert!(!said.contains("without a form for the GPU"), "{said}");
        let text = std::fs::read_to_string(&runs).unwrap();
        let line = |line: &str| {
            let (name, n) = line.rsplit_once(' ').unwrap();
            (name.to_string(), n.parse().unwrap())
        };
        text.lines().map(line).collect::<Launches>()
    };
    let (few, many) = (run(2), run(4));
    let of = |(name, n): (&String, &i64)| (name.clone(), (n - few.get(name).copied().unwrap_or(0)) / 2);
    many.iter().map(of).filter(|(_, n)| *n > 0).collect()
}

struct Model {
    name: &'static str,
    vocab: usize,
    layers: i64,
    has_biases: bool,
    /// Passes over the logits of a step on a GPU with 80 GB.
    chunks: i64,
}

/// With 16,384 tokens in a step; the chunks of logits are those that `head_rows` cuts.
const MODELS: [Model; 4] = [
    Model { name: "MiniMind 26M", vocab: 6400, layers: 8, has_biases: false, chunks: 1 },
    Model { name: "MiniMind 104M", vocab: 6400, layers: 16, has_biases: false, chunks: 1 },
    Model { name: "Qwen2.5 0.5B", vocab: 151_936, layers: 24, has_biases: true, chunks: 4 },
    Model { name: "Qwen2.5 1.5B", vocab: 151_936, layers: 28, has_biases: true, chunks: 4 },
];

/// Parts of a step.
const PARTS: [&str; 4] = ["layers", "head and loss", "embedding", "norm and AdamW"];

/// The part that a kernel outside of the layers belongs to.
fn part_of(kernel: &str) -> usize {
    match kernel {
        _ if kernel.starts_with("token_loss") || kernel == "library" || kernel == "total_loss" => 1,
        _ if kernel.starts_with("adam") || kernel == "squared_norms" || kernel == "sum_f64" => 3,
        _ => 2,
    }
}

impl Model {
    /// The launches of a step by part, from those of one layer and of what is there once.
    fn launches(&self, once: &Launches, layer: &Launches) -> [i64; 4] {
        let passes = |vocab| shifts(vocab).count() as i64;
        let tables = |n: i64| (n + 63) / 64;
        let mut parts = [0; 4];
        for (kernel, n) in layer {
            // More than a thousand rows are summed in two launches.
            let times = match kernel.as_str() {
                "sum_rows_bf16_f32" if self.has_biases => 2,
                "sum_rows_bf16_f32" => 0,
                // Below, since one launch is for many parameters.
                _ if part_of(kernel) == 3 => 0,
                _ => 1,
            };
            parts[0] += self.layers * n * times;
        }
        for (kernel, &n) in once {
            let n = match kernel.as_str() {
                // The products and the loss of each chunk.
                "library" | "token_loss_grad_f32_bf16" => n * self.chunks,
                "order_count" | "order_place" => n - passes(VOCAB) + passes(self.vocab),
                "order_scan" => n - passes(VOCAB) + passes(self.vocab),
                // More than 4,096 sums of the norm are summed in two launches.
                "sum_f64" => 2 * n,
                _ if part_of(kernel) == 3 => 0,
                _ => n,
            };
            parts[part_of(kernel)] += n;
        }
        // Runs of neighbors with the same numbers: the matrices of a layer, its biases, its norms.
        let (runs, biases) = if self.has_biases { (self.layers, 3) } else { (0, 0) };
        parts[3] += tables(self.layers + 1) + tables(runs) + tables(self.layers + 1);
        parts[3] += tables((9 + biases) * self.layers + 2);
        parts
    }
}

#[test]
fn the_launches_of_a_step_are_those_of_the_page() {
    if fakes().is_none() {
        return;
    }
    let site = Site::new();
    let wait = WAIT.to_string();
    // On a busy machine the work of the fake GPU may be late where that of a GPU is done, so a further try counts as well.
    let [one, two] = [1, 2].map(|layers| {
        let mut tries = (0..3).map(|_| step(&site, layers));
        let found = tries.find(|launches| launches.get(&wait).is_none_or(|waits| *waits <= MOST_WAITS));
        found.unwrap_or_else(|| panic!("a step of {layers} layers waits more than {MOST_WAITS} times"))
    });
    let names = one.keys().chain(two.keys());
    let of = |launches: &Launches, name: &String| launches.get(name).copied().unwrap_or(0);
    let layer: Launches = names.map(|name| (name.clone(), of(&two, name) - of(&one, name))).collect();
    let once: Launches =
        one.iter().map(|(name, n)| (name.clone(), n - of(&layer, name))).filter(|(_, n)| *n != 0).collect();
    let without_wait = |launches: &Launches| -> Launches {
        launches
            .iter()
            .filter(|(name, n)| **name != wait && **n != 0)
            .map(|(name, n)| (name.clone(), *n))
            .collect()
    };
    let (layer, once) = (without_wait(&layer), without_wait(&once));

    let mut table = format!("| model | {} | all | host waits at most |\n|---|", PARTS.join(" | "));
    table.push_str("---|---|---|---|---|---|\n");
    for model in &MODELS {
        let parts = model.launches(&once, &layer);
        let cells: Vec<String> = parts.iter().map(i64::to_string).collect();
        let all: i64 = parts.iter().sum();
        writeln!(table, "| {} | {} | {all} | {MOST_WAITS} |", model.name, cells.join(" | ")).unwrap();
        assert!(all <= 1000, "{}: {all} launches", model.name);
        // What is not in the layers does not grow with the tokens or the parameters as it did: thousands.
        assert!(parts[1..].iter().sum::<i64>() <= 100, "{}: {parts:?}", model.name);
    }
    table.push_str("\n| kernel | in a layer | once |\n|---|---|---|\n");
    let names: std::collections::BTreeSet<&String> = layer.keys().chain(once.keys()).collect();
    for name in names {
        let what = if name == "library" { "matrix products" } else { name };
        writeln!(table, "| {what} | {} | {} |", of(&layer, name), of(&once, name)).unwrap();
    }

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/runs/2026-11-26-gpu-roofline.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (begin, end) = ("<!-- recorded -->\n", "<!-- end of what was recorded -->\n");
    let (before, rest) = text.split_once(begin).unwrap();
    let (held, after) = rest.split_once(end).unwrap();
    if std::env::var_os("OARLOCK_BLESS").is_some() {
        return std::fs::write(&page, format!("{before}{begin}{table}{end}{after}")).unwrap();
    }
    assert_eq!(held, table, "OARLOCK_BLESS=1 writes the page anew");
}
