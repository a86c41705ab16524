//! The section of docs/gpu.md about what GPUs have confirmed, made of the reports in bench/gpu/reports.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::commands::gpu_check::section::Section;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gpu.md");
const REPORTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/gpu/reports");
/// Around the section.
const MARKS: [&str; 2] = ["<!-- confirmed: made of bench/gpu/reports -->", "<!-- end -->"];

/// What the pages say of GPUs, and the checks that show it: those of a section whose name begins so.
const STATEMENTS: [(&str, Section, &str); 14] = [
    ("The kernels compile, load and run", Section::Device, ""),
    ("Each instruction gives the bits that the kernels are written for", Section::Words, ""),
    ("Each op agrees with a formula in f64, and gives bitwise identical results again", Section::Ops, ""),
    ("Heads have 96, 192 or 256 elements", Section::Ops, "attention causal, heads of "),
    ("A vocabulary has 151,936 tokens", Section::Ops, "head loss of 151936"),
    ("Losses are those of the CPU, and the same bits again", Section::Training, ""),
    ("Each call of NCCL does what its header says, with one rank", Section::Nccl, ""),
    ("Models of 26M to 1.5B parameters train", Section::Throughput, ""),
    ("Optimizer state, parameters and activations can be in main memory or files", Section::Offload, ""),
    ("cuDNN computes attention", Section::Cudnn, "attention "),
    ("Operands have more than 2^31 elements", Section::Large, ""),
    ("Ranks that share a GPU agree with one rank, with ZeRO 0 to 3", Section::Ranks, ""),
    ("compute-sanitizer finds nothing", Section::Sanitizer, ""),
    ("Speed and memory beside PyTorch were measured", Section::Peers, ""),
];

/// The reports of the repository.
fn reports() -> Vec<Value> {
    let entries = fs::read_dir(Path::new(REPORTS)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|x| x == "json"))
        .collect();
    paths.sort();
    paths.iter().map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
}

fn gpu(report: &Value) -> &str {
    report["facts"]["gpu"]["name"].as_str().unwrap_or("a GPU")
}

/// What a report says about a statement; none where it has looked at nothing of it.
fn verdict(report: &Value, section: Section, names: &str) -> Option<String> {
    let is_of = |check: &&Value| {
        check["section"] == section.name()
            && check["name"].as_str().is_some_and(|name| name.starts_with(names))
    };
    let checks: Vec<&Value> = report["checks"].as_array()?.iter().filter(is_of).collect();
    let count = |result: &str| checks.iter().filter(|check| check["result"] == result).count();
    match (count("ok"), count("failed")) {
        (0, 0) => None,
        (1, 0) => Some(format!("{} (1 check)", gpu(report))),
        (n, 0) => Some(format!("{} ({n} checks)", gpu(report))),
        (n, failed) => Some(format!("not {}: {failed} of {} checks failed", gpu(report), n + failed)),
    }
}

/// The section.
fn confirmed(reports: &[Value]) -> String {
    let mut text = match reports {
        [] => "No GPU has confirmed any of these statements yet.\n".to_owned(),
        _ => String::new(),
    };
    for report in reports {
        let (facts, version) = (&report["facts"], report["version"].as_str().unwrap_or_default());
        let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let driver = word(&facts["driver"]["version"]);
        let (nvrtc, cublas) = (word(&facts["nvrtc"]), word(&facts["cublas_lt"]));
        text += &format!(
            "- {}: Oarlock {version}, driver {driver}, NVRTC {nvrtc}, cuBLASLt {cublas}\n",
            gpu(report)
        );
    }
    text += "\n| statement | confirmed by |\n|---|---|\n";
    for (says, section, names) in STATEMENTS {
        let by: Vec<String> = reports.iter().filter_map(|report| verdict(report, section, names)).collect();
        let by = if by.is_empty() { "no GPU yet".to_owned() } else { by.join(", ") };
        text += &format!("| {says} | {by} |\n");
    }
    text
}

#[test]
fn docs_page_says_what_the_reports_have_confirmed() {
    let page = fs::read_to_string(PAGE).unwrap();
    let [begin, end] =
        MARKS.map(|mark| page.find(mark).unwrap_or_else(|| panic!("docs/gpu.md has no {mark}")));
    let wanted = format!("{}\n\n{}\n", MARKS[0], confirmed(&reports()));
    if std::env::var_os("OARLOCK_BLESS").is_some() {
        fs::write(PAGE, format!("{}{wanted}{}", &page[..begin], &page[end..])).unwrap();
        return;
    }
    assert!(
        page[begin..end] == wanted,
        "docs/gpu.md is not what the reports say; update it with OARLOCK_BLESS=1:\n{wanted}"
    );
}

#[test]
fn a_statement_is_confirmed_by_checks_that_hold_and_by_no_others() {
    let check = |section: &str, name: &str, result: &str| serde_json::json!({ "section": section, "name": name, "result": result });
    let report = serde_json::json!({
        "version": "1", "facts": { "gpu": { "name": "H100" }, "driver": { "version": "580.1" }, "nvrtc": "13.0" },
        "checks": [
            check("words", "mma", "ok"), check("words", "put", "ok"), check("ops", "rope", "failed"),
            check("ops", "linear", "ok"), check("nccl", "join", "skipped"), check("ops", "head loss of 151936 f32", "ok"),
        ],
    });
    let text = confirmed(&[report]);
    for line in [
        "- H100: Oarlock 1, driver 580.1, NVRTC 13.0, cuBLASLt unknown",
        "| Each instruction gives the bits that the kernels are written for | H100 (2 checks) |",
        "| Each op agrees with a formula in f64, and gives bitwise identical results again | not H100: 1 of 3 checks failed |",
        "| A vocabulary has 151,936 tokens | H100 (1 check) |",
        "| Each call of NCCL does what its header says, with one rank | no GPU yet |",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!confirmed(&[]).contains("H100"));
}
