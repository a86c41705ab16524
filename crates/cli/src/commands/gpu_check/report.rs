//! The report of a check: a line for each check when it ends, a table of the sections, and all of it as JSON.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::finding::{Finding, Verdict};
use super::next;
use super::section::Section;
use crate::console::{Failure, Outcome, print};

/// What a file is not that has something else in it.
pub(super) const NO_REPORT: &str = "it is not a report of gpu-check";

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
    /// The sections of which nothing is left to check.
    finished: Vec<Section>,
    facts: Map<String, Value>,
    start: Instant,
    /// Of the calls before this one.
    seconds_before: f64,
}

impl Report {
    pub fn new(quick: bool) -> Report {
        Report {
            quick,
            section: Section::Device,
            checks: Vec::new(),
            finished: Vec::new(),
            facts: Map::new(),
            start: Instant::now(),
            seconds_before: 0.0,
        }
    }

    /// Goes on with what a call before has found on the GPU of this name, by its JSON. The device is looked at anew: it may be
    /// another one of its kind, with other libraries.
    ///
    /// # Errors
    /// Why it does not go on.
    pub fn resumed(found: &Value, quick: bool, gpu: &str) -> Result<Report, String> {
        let mut report = Report::new(quick);
        let of_report = || NO_REPORT.to_owned();
        let version = found["version"].as_str().ok_or_else(of_report)?;
        if version != env!("CARGO_PKG_VERSION") {
            return Err(format!("it is of version {version}"));
        }
        if found["quick"] != quick {
            return Err("one of both has --quick, and the other has not".to_owned());
        }
        report.facts = found["facts"].as_object().ok_or_else(of_report)?.clone();
        match report.gpu() {
            Some((name, _)) if name != gpu => {
                return Err(format!("it is of another GPU ({name}), here is {gpu}"));
            }
            _ => {}
        }
        for check in found["checks"].as_array().ok_or_else(of_report)? {
            let section = check["section"].as_str().and_then(Section::named).ok_or_else(of_report)?;
            let (name, seconds) = (check["name"].as_str(), check["seconds"].as_f64());
            let (Some(name), Some(seconds)) = (name, seconds) else { return Err(of_report()) };
            let finding = Finding::from_json(check.clone()).ok_or_else(of_report)?;
            if !finding.is_left() && section != Section::Device {
                report.checks.push(Check { section, name: name.to_owned(), finding, seconds });
            }
        }
        let finished = found["finished"].as_array().into_iter().flatten();
        report.finished = finished.filter_map(|name| Section::named(name.as_str()?)).collect();
        report.finished.retain(|section| *section != Section::Device);
        report.seconds_before = found["summary"]["seconds"].as_f64().unwrap_or(0.0);
        Ok(report)
    }

    /// What comes from here on belongs to this section. The checks of it that were found before.
    pub fn begin(&mut self, section: Section) -> Result<usize, Failure> {
        let gap = if self.section == Section::Device && section == Section::Device { "" } else { "\n" };
        self.section = section;
        let n_before = self.checks.iter().filter(|check| check.section == section).count();
        let before =
            if n_before > 0 { format!(" ({n_before} checks were done before)") } else { String::new() };
        print(&format!("{gap}{}{before}\n", section.title()))?;
        Ok(n_before)
    }

    /// The section that has begun is over; it is finished if nothing of it is left.
    pub fn end(&mut self) {
        let section = self.section;
        if !self.checks.iter().any(|check| check.section == section && check.finding.is_left()) {
            self.finished.push(section);
        }
    }

    /// Whether nothing of a section is left to check.
    pub fn is_finished(&self, section: Section) -> bool {
        self.finished.contains(&section)
    }

    /// How many checks were begun and not come to.
    fn n_left(&self) -> usize {
        self.checks.iter().filter(|check| check.finding.is_left()).count()
    }

    /// How long the whole check has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something to know, which is neither good nor bad.
    pub fn record(&mut self, key: &str, value: impl Into<Value>, line: impl Display) -> Outcome {
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
    pub fn record_staged(&mut self) -> Outcome {
        let lists = self.checks.iter().filter_map(|check| check.finding.numbers.get("staged")?.as_array());
        let staged: BTreeSet<String> =
            lists.flatten().filter_map(|op| Some(op.as_str()?.to_owned())).collect();
        let staged: Vec<String> = staged.into_iter().collect();
        let line = match staged.len() {
            0 => "no op was staged".to_owned(),
            n => format!("{n} ops have no form for the GPU and were staged: {}", staged.join(", ")),
        };
        self.record("staged", staged, line)
    }

    /// Name and compute capability of the GPU, where they are known.
    pub fn gpu(&self) -> Option<(String, String)> {
        let gpu = self.facts.get("gpu")?;
        Some((gpu["name"].as_str()?.to_owned(), gpu["compute_capability"].as_str()?.to_owned()))
    }

    /// The lines of a table of algorithms that checks have found, in their order.
    pub fn entries(&self) -> Vec<String> {
        let entries = self.checks.iter().filter_map(|check| check.finding.numbers.get("entry")?.as_str());
        entries.map(str::to_owned).collect()
    }

    /// The training runs beside their peers: model, tokens per second of both, bytes of both. Those that both have
    /// measured.
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

    pub fn has_failed_in(&self, section: Section) -> bool {
        self.count(section, Verdict::Failed) > 0
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
        for step in next::steps(&self.found()) {
            text += &format!("NEXT: {step}\n");
        }
        text + if self.has_failed() { "Something does not work on this GPU.\n" } else { "Nothing failed.\n" }
    }

    /// Everything, and what to do next.
    pub fn json(&self) -> Value {
        let mut found = self.found();
        found["next"] = next::steps(&found).into();
        found
    }

    fn found(&self) -> Value {
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
        let seconds = self.seconds_before + self.start.elapsed().as_secs_f64();
        let finished: Vec<&str> = self.finished.iter().map(|section| section.name()).collect();
        let beside = self.beside().into_iter().map(|(name, [rate, peer], [bytes, of_peer])| {
            json!({ "name": name, "speed": rate / peer, "memory": bytes / of_peer })
        });
        json!({
            "ratios": beside.collect::<Vec<_>>(),
            "version": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "facts": self.facts,
            "checks": checks.collect::<Vec<_>>(),
            "finished": finished,
            "summary": { "ok": ok, "failed": failed, "skipped": skipped, "left": self.n_left(), "seconds": seconds },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of a GPU called A, with a check that is done and one that is left.
    fn report() -> Report {
        let mut report = Report::new(true);
        report.facts.insert("gpu".into(), json!({ "name": "A", "compute_capability": "9.0" }));
        let mut add = |section, name: &str, finding| {
            report.checks.push(Check { section, name: name.into(), finding, seconds: 1.0 });
        };
        add(Section::Device, "first kernel", Finding::ok("fine"));
        add(Section::Words, "mma", Finding::of(false, "wrong").with("x", 1.5));
        add(Section::Ops, "linear", Finding::ok("fine"));
        add(Section::Ops, "softmax", Finding::left("no time"));
        for section in [Section::Words, Section::Ops] {
            report.section = section;
            report.end();
        }
        report
    }

    #[test]
    fn a_report_goes_on_with_what_is_left() {
        let first = report();
        assert!(first.is_finished(Section::Words) && !first.is_finished(Section::Ops));
        let json = first.json();
        assert_eq!((json["summary"]["left"].as_u64(), &json["finished"]), (Some(1), &json!(["words"])));
        assert!(first.summary().contains("NEXT: 1 checks are left"), "{}", first.summary());
        let again = Report::resumed(&json, true, "A").unwrap();
        let names: Vec<&str> = again.checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, ["mma", "linear"]);
        assert!(again.is_finished(Section::Words) && !again.is_finished(Section::Ops) && again.has_failed());
        assert_eq!(again.checks[0].finding.numbers["x"], 1.5);
    }

    #[test]
    fn a_report_of_something_else_is_not_gone_on_with() {
        let json = report().json();
        let why = |found: &Value, quick, gpu| Report::resumed(found, quick, gpu).err().unwrap();
        assert!(why(&json, false, "A").contains("--quick"));
        assert!(why(&json, true, "B").contains("another GPU (A), here is B"));
        let change = |key: &str, value: Value| {
            let mut changed = json.clone();
            changed[key] = value;
            why(&changed, true, "A")
        };
        assert!(change("version", json!("0.0.0")).contains("version 0.0.0"));
        for (key, value) in [
            ("version", json!(1)),
            ("checks", json!(2)),
            ("checks", json!([{ "section": "none" }])),
            ("facts", json!([])),
        ] {
            assert!(change(key, value).contains("not a report"), "{key}");
        }
    }
}
