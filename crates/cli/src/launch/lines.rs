//! What ranks write, as whole lines, each after the mark of its rank where several share a stream.

use oarlock_engine::distributed::launch::WorkerEnv;

/// The longest line that is kept together.
const LONGEST: usize = 64 << 10;

/// Puts bytes together to lines. A carriage return ends one, too: progress bars have nothing else.
#[derive(Default)]
pub(super) struct LineBuffer {
    /// What of a line has come.
    begun: Vec<u8>,
}

impl LineBuffer {
    /// Takes bytes; the lines that are whole by now.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.begun.extend_from_slice(bytes);
        let end = match self.begun.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(last) => last + 1,
            None if self.begun.len() >= LONGEST => self.begun.len(),
            None => 0,
        };
        let rest = self.begun.split_off(end);
        std::mem::replace(&mut self.begun, rest)
    }

    /// What is left of a line when its writer has ended.
    pub(super) fn end(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.begun)
    }
}

/// The mark of a rank before its lines: a template in which `${role_name}`, `${local_rank}` and `${rank}` stand for it.
pub(super) fn mark(template: Option<&str>, role: &str, worker: &WorkerEnv, color: bool) -> Vec<u8> {
    // Not red, which is for errors.
    const COLORS: [u8; 5] = [36, 32, 33, 35, 34];
    let mark = template
        .unwrap_or("[${role_name}${local_rank}]:")
        .replace("${role_name}", role)
        .replace("${local_rank}", &worker.local_rank.to_string())
        .replace("${rank}", &worker.rank().to_string());
    match color {
        true => format!("\x1b[{}m{mark}\x1b[0m", COLORS[worker.local_rank % COLORS.len()]).into_bytes(),
        false => mark.into_bytes(),
    }
}

/// LineBuffer with a mark before each.
pub(super) fn marked(mark: &[u8], lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len() + lines.len() / 8 + mark.len());
    for line in lines.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
        // The second half of \r\n, or a bar that begins by going back.
        let half = line == b"\r" || line == b"\n" && out.last() == Some(&b'\r');
        if !half {
            out.extend_from_slice(mark);
        }
        out.extend_from_slice(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&str]) -> String {
        let mut lines = LineBuffer::default();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend(marked(b"[0]:", &lines.push(piece.as_bytes())));
        }
        out.extend(marked(b"[0]:", &lines.end()));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_line_is_marked_once_however_it_comes() {
        assert_eq!(shown(&["a", "b\nc", "\n", "d"]), "[0]:ab\n[0]:c\n[0]:d");
        assert_eq!(shown(&["\r10 %", "\r20 %\n"]), "\r[0]:10 %\r[0]:20 %\n");
        assert_eq!(shown(&["a\r\nb\r\n"]), "[0]:a\r\n[0]:b\r\n");
        assert_eq!(shown(&["\n\n"]), "[0]:\n[0]:\n");
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn a_line_without_end_does_not_grow_for_ever() {
        let mut lines = LineBuffer::default();
        assert_eq!(lines.push(&[b'x'; LONGEST - 1]).len(), 0);
        assert_eq!(lines.push(b"x").len(), LONGEST);
        assert!(lines.end().is_empty());
    }

    #[test]
    fn ranks_differ_by_colour_where_there_are_colours() {
        let worker = |local_rank| WorkerEnv {
            local_rank,
            node_rank: 1,
            local_ranks: vec![4, 4],
            restart: 0,
            master: (String::new(), 0),
        };
        assert_eq!(mark(None, "default", &worker(3), false), b"[default3]:");
        assert_eq!(mark(Some("${rank}/${local_rank} "), "default", &worker(3), false), b"7/3 ");
        assert_ne!(mark(None, "r", &worker(0), true)[..5], mark(None, "r", &worker(1), true)[..5]);
    }
}
