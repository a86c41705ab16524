//! The report of a check: a line for each check when it ends, a table of the sections, and all of it as JSON.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::finding::{Finding, Verdict};
use crate::console::{Outcome, print};

/// The parts of a check, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Section {
    Device,
    Words,
    Ops,
    Training,
    Ranks,
    Sanitizer,
    Tune,
    Speed,
    Throughput,
    Peers,
}

impl Section {
    pub const ALL: [Section; 10] = [
        Section::Device,
        Section::Words,
        Section::Ops,
        Section::Training,
        Section::Ranks,
        Section::Sanitizer,
        Section::Tune,
        Section::Speed,
        Section::Throughput,
        Section::Peers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Section::Device => "device",
            Section::Words => "words",
            Section::Ops => "ops",
            Section::Training => "training",
            Section::Ranks => "ranks",
            Section::Sanitizer => "sanitizer",
            Section::Tune => "tune",
            Section::Speed => "speed",
            Section::Throughput => "throughput",
            Section::Peers => "peers",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Section::Device => "Device and libraries",
            Section::Words => "Words: each instruction that the kernels are written in, by itself",
            Section::Ops => "Ops: the GPU beside formulas in f64, errors relative to the largest value",
            Section::Training => "Training: losses on the GPU beside those on the CPU",
            Section::Ranks => "Ranks: losses of two ranks on one GPU beside those of one rank",
            Section::Sanitizer => "Sanitizer: small checks under compute-sanitizer",
            Section::Tune => "Tuning: the algorithms of matrix products, the tiles of attention",
            Section::Speed => "Speed of products, copies and attention",
            Section::Throughput => "Throughput: training in bf16, AdamW, random weights",
            Section::Peers => {
                "Peers: transformers and Accelerate with torch.compile and SDPA, the same steps"
            }
        }
    }

    /// When it must be over, as a share of the whole time. What a section does not use is left for those behind it.
    pub fn end(self) -> f64 {
        match self {
            Section::Device => 0.08,
            Section::Words => 0.12,
            Section::Ops => 0.42,
            Section::Training => 0.54,
            Section::Ranks => 0.58,
            Section::Sanitizer => 0.68,
            Section::Tune => 0.76,
            Section::Speed => 0.78,
            Section::Throughput => 0.9,
            Section::Peers => 1.0,
        }
    }
}

struct Check {
    section: Section,
    name: String,
    finding: Finding,
    seconds: f64,
}

/// All findings so far.
pub(super) struct Report {
    quick: bool,
    section: Section,
    checks: Vec<Check>,
    facts: Map<String, Value>,
    start: Instant,
}

impl Report {
    pub fn new(quick: bool) -> Report {
        let (checks, facts, section) = (Vec::new(), Map::new(), Section::Device);
        Report { quick, section, checks, facts, start: Instant::now() }
    }

    /// What comes from here on belongs to this section.
    pub fn begin(&mut self, section: Section) -> Outcome {
        let gap = if self.checks.is_empty() { "" } else { "\n" };
        self.section = section;
        print(&format!("{gap}{}\n", section.title()))
    }

    /// How long the whole check has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something to know, which is neither good nor bad.
    pub fn tell(&mut self, key: &str, value: impl Into<Value>, line: impl Display) -> Outcome {
        self.facts.insert(key.to_owned(), value.into());
        print(&format!("  {line}\n"))
    }

    /// What a library said on its own.
    pub fn pass_on(&self, line: &str) -> Outcome {
        print(&format!("  {line}\n"))
    }

    /// How a check of the section has ended.
    pub fn add(&mut self, name: &str, finding: Finding, seconds: f64) -> Outcome {
        let line = format!("  {:8}{name:36} {} ({seconds:.2} s)\n", finding.verdict.word(), finding.detail);
        self.checks.push(Check { section: self.section, name: name.to_owned(), finding, seconds });
        print(&line)
    }

    /// The ops that any check has found without a form for the GPU.
    pub fn tell_staged(&mut self) -> Outcome {
        let lists = self.checks.iter().filter_map(|check| check.finding.numbers.get("staged")?.as_array());
        let staged: BTreeSet<String> =
            lists.flatten().filter_map(|op| Some(op.as_str()?.to_owned())).collect();
        let staged: Vec<String> = staged.into_iter().collect();
        let line = match staged.len() {
            0 => "no op was staged".to_owned(),
            n => format!("{n} ops have no form for the GPU and were staged: {}", staged.join(", ")),
        };
        self.tell("staged", staged, line)
    }

    /// Name and compute capability of the GPU, where they were told.
    pub fn gpu(&self) -> Option<(String, String)> {
        let gpu = self.facts.get("gpu")?;
        Some((gpu["name"].as_str()?.to_owned(), gpu["compute_capability"].as_str()?.to_owned()))
    }

    /// The lines of a table of algorithms that checks have found, in their order.
    pub fn entries(&self) -> Vec<String> {
        let entries = self.checks.iter().filter_map(|check| check.finding.numbers.get("entry")?.as_str());
        entries.map(str::to_owned).collect()
    }

    /// The trainings beside their peers: model, tokens per second of both, bytes of both. Those that both have measured.
    fn beside(&self) -> Vec<(&str, [f64; 2], [f64; 2])> {
        let of = |section, name: &str, key: &str| {
            let is_it = |check: &&Check| check.section == section && check.name == name;
            self.checks.iter().find(is_it)?.finding.numbers.get(key)?.as_f64()
        };
        let both = |name: &str, key: &str| {
            Some([of(Section::Throughput, name, key)?, of(Section::Peers, name, key)?])
        };
        let names =
            self.checks.iter().filter(|check| check.section == Section::Peers).map(|check| &check.name);
        names
            .filter_map(|name| Some((name.as_str(), both(name, "tokens_per_second")?, both(name, "bytes")?)))
            .collect()
    }

    pub fn has_failed(&self) -> bool {
        self.checks.iter().any(|check| check.finding.verdict == Verdict::Failed)
    }

    fn count(&self, section: Section, verdict: Verdict) -> usize {
        let checks = self.checks.iter().filter(|check| check.section == section);
        checks.filter(|check| check.finding.verdict == verdict).count()
    }

    /// The table at the end, and what failed once more.
    pub fn summary(&self) -> String {
        let mut text = format!("\n{:10}{:>6}{:>8}{:>9}{:>10}\n", "", "ok", "failed", "skipped", "seconds");
        for section in Section::ALL {
            let [ok, failed, skipped] = Verdict::ALL.map(|verdict| self.count(section, verdict));
            let of_section = self.checks.iter().filter(|check| check.section == section);
            let seconds = of_section.fold(0.0, |sum, check| sum + check.seconds);
            text += &format!("{:10}{ok:6}{failed:8}{skipped:9}{seconds:10.1}\n", section.name());
        }
        let beside = self.beside();
        if !beside.is_empty() {
            text += &format!(
                "\n{:28}{:>12}{:>12}{:>8}{:>9}{:>9}{:>8}\n",
                "", "tokens/s", "peer", "ratio", "GB", "peer", "ratio"
            );
        }
        for (name, [rate, peer], [bytes, of_peer]) in beside {
            let (speed, memory) = (rate / peer, bytes / of_peer);
            let (bytes, of_peer) = (bytes / 1e9, of_peer / 1e9);
            text +=
                &format!("{name:28}{rate:12.0}{peer:12.0}{speed:8.2}{bytes:9.2}{of_peer:9.2}{memory:8.2}\n");
        }
        for check in self.checks.iter().filter(|check| check.finding.verdict == Verdict::Failed) {
            text += &format!("FAILED: {}: {}: {}\n", check.section.name(), check.name, check.finding.detail);
        }
        text + if self.has_failed() { "Something does not work on this GPU.\n" } else { "Nothing failed.\n" }
    }

    /// Everything.
    pub fn json(&self) -> Value {
        let checks = self.checks.iter().map(|check| {
            let mut value = check.finding.to_json();
            value["section"] = check.section.name().into();
            value["name"] = check.name.as_str().into();
            value["seconds"] = check.seconds.into();
            value
        });
        let count = |verdict: Verdict| -> usize {
            Section::ALL.iter().map(|section| self.count(*section, verdict)).sum()
        };
        let [ok, failed, skipped] = Verdict::ALL.map(count);
        let seconds = self.start.elapsed().as_secs_f64();
        let beside = self.beside().into_iter().map(|(name, [rate, peer], [bytes, of_peer])| {
            json!({ "name": name, "speed": rate / peer, "memory": bytes / of_peer })
        });
        json!({
            "ratios": beside.collect::<Vec<_>>(),
            "version": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "facts": self.facts,
            "checks": checks.collect::<Vec<_>>(),
            "summary": { "ok": ok, "failed": failed, "skipped": skipped, "seconds": seconds },
        })
    }
}
