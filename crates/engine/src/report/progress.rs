//! The line that moves while a training runs; on anything but a terminal, one plain line for every record.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::log::{Metrics, clock_time};
use super::terminal::{readable, shown};

/// What the line shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Optimizer steps done.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub total: u64,
    /// Loss of the step.
    pub loss: f64,
    /// The objective's metrics of the step.
    pub metrics: Metrics,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Norm of its gradients before clipping.
    pub grad_norm: f64,
    /// Tokens per second of all ranks.
    pub throughput: f64,
    /// Share of the machine's peak, from 0 to 1, where the peak is known.
    pub utilization: Option<f64>,
    /// Memory of a rank, where it is known.
    pub memory_bytes: Option<u64>,
    /// Time since the start.
    pub elapsed: Duration,
    /// Time left.
    pub remaining: Duration,
}

/// How often the line moves at most; more only costs time.
const REDRAW: Duration = Duration::from_millis(100);

/// The progress of a run on an output. Only rank 0 has one. A reader that goes away, as `head` does, ends the output
/// quietly and not the training; where the output fails otherwise, as on a full disk, lines are lost, which standard
/// error reports once.
pub struct Progress<W: Write> {
    out: W,
    /// The columns of a terminal; `None` for plain lines.
    width: Option<usize>,
    drawn: Option<Instant>,
    /// Whether the cursor stands behind a line that moves.
    open: bool,
    closed: bool,
    /// Whether the warning about lost lines was printed.
    warned: bool,
}

impl Progress<io::Stdout> {
    /// On standard output; `plain` asks for plain lines even on a terminal.
    pub fn stdout(plain: bool) -> Self {
        let out = io::stdout();
        let width = || rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
        let width = (!plain && out.is_terminal()).then(|| Some(width()).filter(|n| *n > 0).unwrap_or(80));
        Self::new(out, width)
    }
}

impl<W: Write> Progress<W> {
    /// On any output: a terminal of so many columns, or plain lines.
    pub fn new(out: W, width: Option<usize>) -> Self {
        Progress { out, width, drawn: None, open: false, closed: false, warned: false }
    }

    /// Whether this is a terminal, with a line that moves.
    pub fn is_terminal(&self) -> bool {
        self.width.is_some()
    }

    /// After every step: moves the line, at most ten times a second. Nothing without a terminal.
    pub fn step(&mut self, status: &Status) {
        let due = self.drawn.is_none_or(|at| at.elapsed() >= REDRAW) || status.step >= status.total;
        if let Some(width) = self.width.filter(|_| due) {
            self.drawn = Some(Instant::now());
            self.open = true;
            self.write(&format!("\r{}\x1b[K", moving_line(status, width)));
        }
    }

    /// At every record: a line that stays, without a terminal; else the line just moves.
    pub fn record(&mut self, status: &Status) {
        match self.width {
            Some(_) => self.step(status),
            None => self.write(&format!("{}\n", plain_line(status))),
        }
    }

    /// A message that stays, above the line that moves.
    pub fn message(&mut self, text: &str) {
        let clear = if self.open { "\r\x1b[K" } else { "" };
        // The line comes back with the next step, without waiting.
        (self.open, self.drawn) = (false, None);
        let text = if self.is_terminal() { shown(text) } else { text.to_owned() };
        self.write(&format!("{clear}{text}\n"));
    }

    /// Leaves the line as it is and goes below it.
    pub fn finish(&mut self) {
        if std::mem::take(&mut self.open) {
            self.write("\n");
        }
    }

    fn write(&mut self, text: &str) {
        if self.closed {
            return;
        }
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(error) if !self.warned => {
                self.warned = true;
                // If that fails as well, there is no place to report it.
                let _ = writeln!(
                    io::stderr(),
                    "warning: cannot write to standard output: {error}; lines are lost, and the run goes on"
                );
            }
            _ => {}
        }
    }
}

/// `step 10/100  loss 4.2500  lr 3.00e-4  …`.
pub fn plain_line(status: &Status) -> String {
    let step = format!("step {}/{}", status.step, status.total);
    std::iter::once(step).chain(fields(status)).collect::<Vec<_>>().join("  ")
}

/// ` 10/100 ━━━━╸──── 10%  loss 4.2500  …`, cut to the width: what does not fit is left out, the objective's metrics first,
/// and the times, which matter most to who waits, last of all.
fn moving_line(status: &Status, width: usize) -> String {
    let share = if status.total == 0 { 1.0 } else { (status.step as f64 / status.total as f64).min(1.0) };
    let digits = status.total.to_string().len();
    let count = format!("{:>digits$}/{}", status.step, status.total);
    let percent = format!("{:>3.0}%", (share * 100.0).floor());
    let mut parts = fields(status);
    let times = parts.pop().unwrap_or_default();
    let bar_width = (width / 6).clamp(6, 24);
    let fixed =
        [&count, &percent, &times].iter().map(|part| part.chars().count()).sum::<usize>() + 4 + bar_width;
    // One column stays free: a terminal wraps when the last one is filled.
    let mut left = width.saturating_sub(1).saturating_sub(fixed);
    let mut middle = String::new();
    for part in parts {
        let needed = part.chars().count() + 2;
        if needed <= left {
            left -= needed;
            middle += &format!("  {part}");
        }
    }
    let line = format!("{count} {} {percent}{middle}  {times}", bar(share, bar_width));
    line.chars().take(width.saturating_sub(1)).collect()
}

/// A share as a line of so many cells; half a cell is the finest step.
pub(super) fn bar(share: f64, width: usize) -> String {
    let halves = (share * 2.0 * width as f64) as usize;
    let full = (halves / 2).min(width);
    let half = usize::from(halves % 2 == 1 && full < width);
    "━".repeat(full) + &"╸".repeat(half) + &"─".repeat(width - full - half)
}

/// All numbers, by what they say to who waits; the times last.
fn fields(status: &Status) -> Vec<String> {
    let mut fields = vec![
        format!("loss {:.4}", status.loss),
        format!("lr {:.2e}", status.learning_rate),
        format!("norm {:.3}", status.grad_norm),
        format!("{} tok/s", thousands(status.throughput)),
    ];
    if let Some(share) = status.utilization {
        fields.push(format!("MFU {:.1}%", 100.0 * share));
    }
    if let Some(bytes) = status.memory_bytes {
        fields.push(readable(bytes));
    }
    fields.extend(status.metrics.iter().map(|(name, mean)| format!("{name} {mean:.4}")));
    fields.push(format!("{} < {}", clock_time(status.elapsed), clock_time(status.remaining)));
    fields
}

/// `1,804`.
pub(super) fn thousands(x: f64) -> String {
    let digits = (x.max(0.0).round() as u64).to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(step: u64) -> Status {
        Status {
            step,
            total: 1000,
            loss: 4.25,
            metrics: Vec::new(),
            learning_rate: 3e-4,
            grad_norm: 0.5,
            throughput: 1_234_804.4,
            utilization: Some(0.634),
            memory_bytes: Some(900_000_000),
            elapsed: Duration::from_secs(12),
            remaining: Duration::from_secs(92),
        }
    }

    /// An output whose reader has gone, or whose disk is full.
    struct Broken(io::ErrorKind, usize);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_plain_line_says_everything() {
        assert_eq!(
            plain_line(&status(120)),
            "step 120/1000  loss 4.2500  lr 3.00e-4  norm 0.500  1,234,804 tok/s  MFU 63.4%  900 MB  0:00:12 < 0:01:32"
        );
        let bare = Status { utilization: None, memory_bytes: None, loss: f64::NAN, ..status(1) };
        assert_eq!(
            plain_line(&bare),
            "step 1/1000  loss NaN  lr 3.00e-4  norm 0.500  1,234,804 tok/s  0:00:12 < 0:01:32"
        );
    }

    #[test]
    fn a_moving_line_fits_its_terminal() {
        assert_eq!(
            moving_line(&status(120), 140),
            " 120/1000 ━━╸────────────────────  12%  loss 4.2500  lr 3.00e-4  norm 0.500  1,234,804 tok/s  MFU 63.4%  900 MB  0:00:12 < 0:01:32"
        );
        assert_eq!(
            moving_line(&status(1000), 60),
            "1000/1000 ━━━━━━━━━━ 100%  loss 4.2500  0:00:12 < 0:01:32"
        );
        let metrics = vec![("rewards/accuracies", 0.5), ("rewards/chosen", -0.25), ("kl", 0.125)];
        assert_eq!(
            moving_line(&Status { metrics, ..status(1000) }, 144),
            "1000/1000 ━━━━━━━━━━━━━━━━━━━━━━━━ 100%  loss 4.2500  lr 3.00e-4  norm 0.500  1,234,804 tok/s  MFU 63.4%  900 MB  kl 0.1250  0:00:12 < 0:01:32"
        );
        for width in 0..200 {
            for step in [0, 1, 999, 1000, 5000] {
                let line = moving_line(&status(step), width);
                assert!(line.chars().count() <= width.saturating_sub(1), "{width}: {line}");
            }
        }
        let empty = Status { total: 0, ..status(0) };
        assert!(moving_line(&empty, 100).contains("100%"));
    }

    #[test]
    fn a_pipe_gets_lines_and_a_terminal_one_line() {
        let mut plain = Progress::new(Vec::new(), None);
        plain.step(&status(1));
        plain.message("evaluating");
        plain.record(&status(2));
        plain.finish();
        assert_eq!(
            String::from_utf8(plain.out).unwrap(),
            format!("evaluating\n{}\n", plain_line(&status(2)))
        );

        let mut terminal = Progress::new(Vec::new(), Some(90));
        terminal.step(&status(1));
        terminal.step(&status(2));
        terminal.message("saved");
        terminal.record(&status(3));
        terminal.step(&status(1000));
        terminal.finish();
        terminal.finish();
        let line = |step| format!("\r{}\x1b[K", moving_line(&status(step), 90));
        // Step 2 came too soon; the last step is always drawn.
        let expected = format!("{}\r\x1b[Ksaved\n{}{}\n", line(1), line(3), line(1000));
        assert_eq!(String::from_utf8(terminal.out).unwrap(), expected);
    }

    #[test]
    fn a_reader_that_goes_away_is_no_error() {
        let mut progress = Progress::new(Broken(io::ErrorKind::BrokenPipe, 0), None);
        progress.record(&status(1));
        progress.record(&status(2));
        assert_eq!((progress.out.1, progress.warned), (1, false), "nothing more is tried");
        let mut progress = Progress::new(Broken(io::ErrorKind::StorageFull, 0), None);
        progress.record(&status(1));
        progress.record(&status(2));
        assert_eq!((progress.out.1, progress.warned), (2, true), "there may be space again");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0.0, 999.4, 999.5, 1_234_567.0].map(thousands));
        assert_eq!(thousands(f64::NAN), "0");
    }
}
