//! The table of collectives, as DeepSpeed's `log_summary` prints it.

use std::fmt::Write as _;

use oarlock_comm::{CommunicationTime, OpStats};

use super::python::general;

/// One line for each size under the name of its operation.
pub fn table(stats: &[OpStats]) -> String {
    const TITLES: [&str; 7] = [
        "Comm. Op",
        "Message Size",
        "Count",
        "Total Latency(ms)",
        "Avg Latency(ms)",
        "tput_avg (Gbps)",
        "busbw_avg (Gbps)",
    ];
    let mut out = TITLES.map(|title| format!("{title:<20}")).concat().trim_end().to_owned();
    let mut last = None;
    for one in stats {
        let name = (one.operation, &one.site);
        if last != Some(name) {
            let place = one.site.as_ref().map(|site| format!(" | [Caller: {site}]")).unwrap_or_default();
            let _ = write!(out, "\n{}{place}", one.operation.name());
            last = Some(name);
        }
        let ms = |time: std::time::Duration| format!("{:.2}", 1e3 * time.as_secs_f64());
        let cells = [
            String::new(),
            size(one.bytes),
            one.calls.to_string(),
            ms(one.total),
            ms(one.latency),
            format!("{:.2}", one.throughput / 1e9),
            format!("{:.2}", one.bus_bandwidth / 1e9),
        ];
        let _ = write!(out, "\n{}", cells.map(|cell| format!("{cell:<20}")).concat().trim_end());
    }
    out
}

/// How much of the time of communication was hidden behind computation; `None` where nothing was sent.
pub fn hidden(time: &CommunicationTime) -> Option<String> {
    let seconds = |time: std::time::Duration| time.as_secs_f64();
    (!time.total.is_zero()).then(|| {
        format!(
            "communication: {:.2} s, of which {:.0} % behind computation ({:.2} s waited for)",
            seconds(time.total),
            100.0 * time.hidden_share(),
            seconds(time.total.saturating_sub(time.hidden())),
        )
    })
}

/// Bytes in units of 1024.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
    if bytes == 0 {
        return "0B".to_owned();
    }
    let power = bytes.ilog2() / 10;
    let value = (100.0 * bytes as f64 / 1024f64.powi(power as i32)).round() / 100.0;
    let value = if value.fract() == 0.0 { format!("{value:.1}") } else { general(value) };
    format!("{value} {}", UNITS[power as usize])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oarlock_comm::Operation;

    use super::*;

    #[test]
    fn sizes_are_those_of_the_original() {
        let sizes = [0, 1, 1023, 1024, 1536, 711_840_000, u64::MAX].map(size);
        assert_eq!(sizes, ["0B", "1.0 B", "1023.0 B", "1.0 KB", "1.5 KB", "678.86 MB", "16.0 EB"]);
    }

    #[test]
    fn what_is_hidden_is_a_share_of_all() {
        let ms = Duration::from_millis;
        let time = CommunicationTime { total: ms(4000), exposed: ms(1000), ..CommunicationTime::default() };
        let line = hidden(&time).unwrap();
        assert_eq!(line, "communication: 4.00 s, of which 75 % behind computation (1.00 s waited for)");
        assert_eq!(hidden(&CommunicationTime::default()), None);
    }

    #[test]
    fn sizes_stand_under_their_operation() {
        let one = |operation, bytes, site: Option<&str>| OpStats {
            operation,
            site: site.map(str::to_owned),
            bytes,
            calls: 3,
            total: Duration::from_micros(6500),
            latency: Duration::from_millis(2),
            throughput: 1.5e9,
            bus_bandwidth: 7.5e8,
        };
        let stats = [
            one(Operation::AllReduce, 8, None),
            one(Operation::AllReduce, 2048, None),
            one(Operation::Barrier, 0, Some("run.rs:7")),
        ];
        let pad = " ".repeat(20);
        let row = |size: &str| {
            format!("{pad}{size:<20}{:<20}{:<20}{:<20}{:<20}{}", 3, "6.50", "2.00", "1.50", "0.75")
        };
        let lines: Vec<String> = table(&stats).lines().map(str::to_owned).collect();
        assert!(
            lines[0]
                .starts_with("Comm. Op            Message Size        Count               Total Latency(ms)")
        );
        let expected = [
            "all_reduce".to_owned(),
            row("8.0 B"),
            row("2.0 KB"),
            "barrier | [Caller: run.rs:7]".to_owned(),
            row("0B"),
        ];
        assert_eq!(lines[1..], expected);
        assert_eq!(table(&[]).lines().count(), 1);
    }
}
