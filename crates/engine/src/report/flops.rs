//! The profile of a model: parameters, multiply-accumulates and times of its modules, as DeepSpeed's profiler prints them.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::file_error::{Result, io_error};
use super::files;
use super::python::general;

/// A module with what is inside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleCost {
    /// The name under which its parent has it; empty for the model.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Parameters in it, each once.
    pub params: u64,
    /// Multiply-accumulates of a forward pass.
    pub macs: u64,
    /// The time of a forward pass; `None` for what only holds others, which takes their time.
    pub latency: Option<Duration>,
    /// What is inside it.
    pub children: Vec<ModuleCost>,
}

impl ModuleCost {
    /// The time of a forward pass in seconds.
    fn seconds(&self) -> f64 {
        match self.latency {
            Some(latency) => latency.as_secs_f64(),
            None => self.children.iter().map(ModuleCost::seconds).sum(),
        }
    }
}

/// The step that is profiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfiledStep {
    /// Its number, from 1.
    pub step: u64,
    /// Ranks.
    pub ranks: usize,
    /// Sequences of a rank in a forward pass.
    pub micro_batch: usize,
    /// Forward passes of a rank.
    pub accumulation: usize,
    /// Time of them.
    pub forward: Duration,
    /// Time of the backward passes, with the reduction of gradients.
    pub backward: Duration,
    /// Time of the update.
    pub update: Duration,
    /// Share of a forward pass that a backward pass repeats.
    pub recompute_factor: f64,
}

/// What of a profile is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Levels of the aggregated part; `None`: all.
    pub depth: Option<usize>,
    /// Kinds of modules at each of them.
    pub top: usize,
    /// Show every module.
    pub detailed: bool,
}

/// The report.
pub fn report(model: &ModuleCost, step: &ProfiledStep, shown: Shown) -> String {
    let mut out = String::from("-------------------------- Flops Profiler --------------------------\n");
    let _ = writeln!(out, "Profile Summary at step {}:", step.step);
    out.push_str(
        "Times are those of rank 0. MACs are multiply-accumulates of a forward pass over one micro-batch;\n\
         attention counts all pairs of positions. Flops are two for each; what is not a product counts nothing.\n\n",
    );
    summary(&mut out, model, step);
    out.push_str(
        "\n----------------------------- Aggregated Profile per GPU -----------------------------\n",
    );
    aggregated(&mut out, model, shown);
    if shown.detailed {
        out.push_str(
            "\n------------------------------ Detailed Profile per GPU ------------------------------\n\
             Each module: params, their share; MACs, their share; latency, its share; FLOPS. The latency is that of one\n\
             forward pass without gradients, after the step. That of lm_head holds the loss.\n",
        );
        module(&mut out, model, model, 0);
    }
    out.push_str("------------------------------------------------------------------------------");
    out
}

/// Writes a report to a file of its own.
///
/// # Errors
/// If it cannot be written.
pub fn save(path: &Path, report: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    }
    files::set_aside(path)?;
    files::replace(path, format!("{report}\n").as_bytes())
}

fn summary(out: &mut String, model: &ModuleCost, step: &ProfiledStep) {
    let passes = step.accumulation.max(1) as f64;
    let flops = 2.0 * model.macs as f64;
    let (forward, backward) = (step.forward.as_secs_f64() / passes, step.backward.as_secs_f64() / passes);
    let update = step.update.as_secs_f64();
    let iteration = passes * (forward + backward) + update;
    let factor = 2.0 + step.recompute_factor;
    let rate = |work: f64, time: f64| format!("{}FLOPS", number(ratio(work, time)));
    let time = |seconds: f64| format!("{}s", number(seconds));
    let (back, all) = (general(factor), general(factor + 1.0));
    let batch = step.micro_batch * step.accumulation * step.ranks;
    for (name, value) in [
        ("world size".to_owned(), step.ranks.to_string()),
        ("data parallel size".to_owned(), step.ranks.to_string()),
        ("model parallel size".to_owned(), "1".to_owned()),
        ("batch size per GPU".to_owned(), step.micro_batch.to_string()),
        ("params per GPU".to_owned(), count(model.params)),
        ("params of model = params per GPU * mp_size".to_owned(), count(model.params)),
        ("fwd MACs per GPU".to_owned(), macs(model.macs)),
        ("fwd flops per GPU".to_owned(), number(flops)),
        ("fwd flops of model = fwd flops per GPU * mp_size".to_owned(), number(flops)),
        ("fwd latency".to_owned(), time(forward)),
        ("fwd FLOPS per GPU = fwd flops per GPU / fwd latency".to_owned(), rate(flops, forward)),
        ("bwd latency".to_owned(), time(backward)),
        (
            format!("bwd FLOPS per GPU = {back} * fwd flops per GPU / bwd latency"),
            rate(factor * flops, backward),
        ),
        (
            format!("fwd+bwd FLOPS per GPU = {all} * fwd flops per GPU / (fwd+bwd latency)"),
            rate((factor + 1.0) * flops, forward + backward),
        ),
        ("step latency".to_owned(), time(update)),
        (format!("iter latency = {} * (fwd+bwd latency) + step latency", step.accumulation), time(iteration)),
        (
            format!("FLOPS per GPU = {} * {all} * fwd flops per GPU / iter latency", step.accumulation),
            rate(passes * (factor + 1.0) * flops, iteration),
        ),
        ("samples/second".to_owned(), general(round(ratio(batch as f64, iteration)))),
    ] {
        let name = format!("{name}:");
        let line = format!("{name:<70}  {value}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// A cost of a kind of modules: its title, its size and its text.
type Column = (&'static str, fn(&TypeCost) -> f64, fn(&TypeCost) -> String);

const COLUMNS: [Column; 3] = [
    ("params     ", |kind| kind.params as f64, |kind| count(kind.params)),
    ("MACs       ", |kind| kind.macs as f64, |kind| macs(kind.macs)),
    ("fwd latency", |kind| kind.seconds, |kind| format!("{}s", number(kind.seconds))),
];

/// What the modules of a kind cost at a depth.
#[derive(Default)]
struct TypeCost<'m> {
    name: &'m str,
    params: u64,
    macs: u64,
    seconds: f64,
}

fn aggregated(out: &mut String, model: &ModuleCost, shown: Shown) {
    let _ = writeln!(out, "Top {} modules in params, MACs and fwd latency at each depth:", shown.top);
    let (mut level, mut depth) = (vec![model], 0);
    while !level.is_empty() && shown.depth.is_none_or(|most| depth < most) {
        let mut kinds: Vec<TypeCost> = Vec::new();
        for module in &level {
            let at = kinds.iter().position(|kind| kind.name == module.kind).unwrap_or_else(|| {
                kinds.push(TypeCost { name: &module.kind, ..TypeCost::default() });
                kinds.len() - 1
            });
            kinds[at].params += module.params;
            kinds[at].macs += module.macs;
            kinds[at].seconds += module.seconds();
        }
        let _ = writeln!(out, "depth {depth}:");
        for (title, cost, text) in COLUMNS {
            kinds.sort_by(|a, b| cost(b).total_cmp(&cost(a)));
            let top = kinds.iter().take(shown.top);
            let top: Vec<String> = top.map(|kind| format!("'{}': '{}'", kind.name, text(kind))).collect();
            let _ = writeln!(out, "    {title} - {{{}}}", top.join(", "));
        }
        level = level.iter().flat_map(|module| &module.children).collect();
        depth += 1;
    }
}

fn module(out: &mut String, model: &ModuleCost, module: &ModuleCost, depth: usize) {
    let indent = "  ".repeat(depth);
    let share = |part: f64, all: f64| general(round(100.0 * ratio(part, all)));
    let seconds = module.seconds();
    let costs = format!(
        "{} = {}% Params, {} = {}% MACs, {}s = {}% latency, {}FLOPS",
        count(module.params),
        share(module.params as f64, model.params as f64),
        macs(module.macs),
        share(module.macs as f64, model.macs as f64),
        number(seconds),
        share(seconds, model.seconds()),
        number(ratio(2.0 * module.macs as f64, seconds)),
    );
    let name = match module.name.as_str() {
        "" => module.kind.clone(),
        name => format!("({name}): {}", module.kind),
    };
    if module.children.is_empty() {
        let _ = writeln!(out, "{indent}{name}({costs})");
        return;
    }
    let _ = writeln!(out, "{indent}{name}(\n{indent}  {costs}");
    for child in &module.children {
        self::module(out, model, child, depth + 1);
    }
    let _ = writeln!(out, "{indent})");
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn round(x: f64) -> f64 {
    (100.0 * x).round() / 100.0
}

/// Two decimals and a unit: `6.76 M`.
fn number(x: f64) -> String {
    const UNITS: [(f64, &str); 6] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""), (1e-3, "m")];
    let unit = UNITS.iter().find(|(least, _)| x >= *least);
    let (magnitude, unit) = if x == 0.0 { (1.0, "") } else { *unit.unwrap_or(&(1e-6, "u")) };
    format!("{} {unit}", general(round(x / magnitude)))
}

fn macs(x: u64) -> String {
    format!("{}MACs", number(x as f64))
}

/// A count of parameters, where G is B for billions.
fn count(x: u64) -> String {
    number(x as f64).replace('G', "B").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(name: &str, kind: &str, params: u64, macs: u64, micros: u64) -> ModuleCost {
        let latency = Some(Duration::from_micros(micros));
        ModuleCost {
            name: name.to_owned(),
            kind: kind.to_owned(),
            params,
            macs,
            latency,
            children: Vec::new(),
        }
    }

    #[test]
    fn numbers_have_units() {
        for (x, expected) in [
            (0.0, "0 "),
            (6_758_400.0, "6.76 M"),
            (1.2345e-5, "12.35 u"),
            (0.07406, "74.06 m"),
            (999.0, "999 "),
            (2.5e12, "2.5 T"),
        ] {
            assert_eq!(number(x), expected);
        }
        assert_eq!((macs(98304), count(1_500_000_000), count(32)), words("98.3 KMACs", "1.5 B", "32"));
        fn words(a: &str, b: &str, c: &str) -> (String, String, String) {
            (a.to_owned(), b.to_owned(), c.to_owned())
        }
    }

    #[test]
    fn a_report_has_a_summary_the_levels_and_the_modules() {
        let layers = ModuleCost {
            children: vec![leaf("0", "Block", 300, 4000, 10), leaf("1", "Block", 300, 4000, 20)],
            latency: None,
            ..leaf("layers", "Vec", 600, 8000, 0)
        };
        let children =
            vec![leaf("embed", "Embedding", 400, 0, 5), layers, leaf("head", "Linear", 0, 2000, 15)];
        let model = ModuleCost { children, ..leaf("", "Decoder", 1000, 10_000, 60) };
        let ms = Duration::from_millis;
        let step = ProfiledStep {
            step: 2,
            ranks: 2,
            micro_batch: 4,
            accumulation: 2,
            forward: ms(20),
            backward: ms(40),
            update: ms(20),
            recompute_factor: 0.0,
        };
        let text = report(&model, &step, Shown { depth: None, top: 1, detailed: true });
        let line = |name: &str| {
            let found =
                text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
            found.rsplit("  ").next().unwrap().trim().to_owned()
        };
        for (name, value) in [
            ("Profile Summary at step", "Profile Summary at step 2:"),
            ("world size:", "2"),
            ("batch size per GPU:", "4"),
            ("params per GPU:", "1 K"),
            ("fwd MACs per GPU:", "10 KMACs"),
            ("fwd flops per GPU:", "20 K"),
            ("fwd latency:", "10 ms"),
            ("fwd FLOPS per GPU", "2 MFLOPS"),
            ("bwd latency:", "20 ms"),
            ("bwd FLOPS per GPU = 2 *", "2 MFLOPS"),
            ("fwd+bwd FLOPS per GPU = 3 *", "2 MFLOPS"),
            ("step latency:", "20 ms"),
            // Two passes of 30 ms and the update.
            ("iter latency", "80 ms"),
            ("FLOPS per GPU = 2 * 3 *", "1.5 MFLOPS"),
            ("samples/second:", "200"),
        ] {
            assert_eq!(line(name), value, "{name}");
        }
        let levels = "depth 1:\n    params      - {'Vec': '600'}\n    MACs        - {'Vec': '8 KMACs'}\n    \
                      fwd latency - {'Vec': '30 us'}\ndepth 2:\n    params      - {'Block': '600'}\n";
        assert!(text.contains(levels), "{text}");
        let tree = "Decoder(\n  1 K = 100% Params, 10 KMACs = 100% MACs, 60 us = 100% latency, 333.33 MFLOPS\n  \
                    (embed): Embedding(400 = 40% Params, 0 MACs = 0% MACs, 5 us = 8.33% latency, 0 FLOPS)\n  \
                    (layers): Vec(\n    600 = 60% Params, 8 KMACs = 80% MACs, 30 us = 50% latency, 533.33 MFLOPS\n    \
                    (0): Block(300 = 30% Params, 4 KMACs = 40% MACs, 10 us = 16.67% latency, 800 MFLOPS)\n";
        assert!(text.contains(tree), "{text}");
        let short = report(&model, &step, Shown { depth: Some(1), top: 3, detailed: false });
        assert!(short.contains("depth 0:") && !short.contains("depth 1:") && !short.contains("(embed)"));
    }
}
