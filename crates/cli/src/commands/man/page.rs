//! A man page in the language of troff, as groff and mandoc read it.

use std::fmt::Write as _;

use clap::{Arg, ArgAction};

/// How each page begins, by which ours are known.
pub(super) const MARK: &str = ".\\\" Written by `oarlock man`.\n";

/// A page that is being written.
pub(super) struct Page(String);

impl Page {
    pub(super) fn begin(name: &str, version: &str) -> Page {
        let title = escaped(&name.to_uppercase());
        // The fourth word is the source, the fifth the name of the manual.
        Page(format!("{MARK}.TH \"{title}\" 1 \"\" \"oarlock {version}\" \"Oarlock\"\n"))
    }

    pub(super) fn end(self) -> String {
        self.0
    }

    pub(super) fn section(&mut self, title: &str) {
        let _ = writeln!(self.0, ".SH \"{}\"", escaped(title));
    }

    pub(super) fn subsection(&mut self, title: &str) {
        let _ = writeln!(self.0, ".SS \"{}\"", escaped(title));
    }

    /// What the page is about, in the form that `apropos` reads.
    pub(super) fn name(&mut self, name: &str, about: &str) {
        let _ = writeln!(self.0, "{} \\- {}", escaped(name), marked(about));
    }

    /// How the command is called; each further line is another way.
    pub(super) fn synopsis(&mut self, usage: &str) {
        for (n, line) in usage.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
            if n > 0 {
                self.0.push_str(".br\n");
            }
            self.line(&escaped(line));
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.line(&marked(text));
    }

    /// A word and what it means.
    pub(super) fn item(&mut self, word: &str, about: &str) {
        self.0.push_str(".TP\n");
        let (bold, rest) = match word.split_once(['=', '(']) {
            Some((name, rest)) if word.ends_with(')') => (name.to_owned(), format!("({rest}")),
            Some((name, rest)) => (format!("{name}="), format!("\\fI{}\\fR", escaped(rest))),
            None => (word.to_owned(), String::new()),
        };
        self.line(&format!("\\fB{}\\fR{rest}", escaped(&bold)));
        self.line(&marked(about));
    }

    /// A flag or an operand of a command.
    pub(super) fn argument(&mut self, arg: &Arg) {
        let bold = |word: String| format!("\\fB{}\\fR", escaped(&word));
        let takes_value = arg.get_num_args().is_some_and(|n| n.takes_values());
        let names = arg.get_value_names().unwrap_or_default().join(" ");
        let value = if names.is_empty() { arg.get_id().to_string().to_uppercase() } else { names };
        let value = format!("\\fI{}\\fR", escaped(&value));
        let flags = [
            arg.get_short().map(|short| format!("-{short}")),
            arg.get_long().map(|long| format!("--{long}")),
        ];
        let flags: Vec<String> = flags.into_iter().flatten().map(bold).collect();
        self.0.push_str(".TP\n");
        match (flags.is_empty(), takes_value) {
            (true, _) => self.line(&value),
            (false, true) => self.line(&format!("{} {value}", flags.join(", "))),
            (false, false) => self.line(&flags.join(", ")),
        }
        let help = help(arg);
        if !help.is_empty() {
            self.line(&marked(&help));
        }
    }

    pub(super) fn example(&mut self, command: &str) {
        let _ = writeln!(self.0, ".nf");
        self.line(&escaped(command));
        let _ = writeln!(self.0, ".fi");
    }

    /// Other pages, such as `oarlock(1)`.
    pub(super) fn related(&mut self, pages: &[String]) {
        let shown = |page: &String| {
            let name = page.trim_end_matches("(1)");
            format!("\\fB{}\\fR(1)", escaped(name))
        };
        let pages: Vec<String> = pages.iter().map(shown).collect();
        self.line(&pages.join(",\n"));
    }

    /// A line of text; one that begins like a request does not become one.
    fn line(&mut self, text: &str) {
        for line in text.lines() {
            if line.starts_with(['.', '\'']) {
                self.0.push_str("\\&");
            }
            let _ = writeln!(self.0, "{line}");
        }
    }
}

/// What a flag means, with its default and the values that it takes.
fn help(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::Help | ArgAction::Version);
    let values = arg.get_possible_values();
    let values: Vec<&str> = values
        .iter()
        .filter(|value| !value.is_hide_set() && !is_switch)
        .map(|value| value.get_name())
        .collect();
    if !values.is_empty() {
        let _ = write!(text, " ({})", values.join(", "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && !is_switch {
        let _ = write!(text, " [{}]", defaults.join(", "));
    }
    text
}

/// A text as it is read: what troff would take for its own stands for itself.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '"' => out.push_str("\\(dq"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c if c.is_ascii() => out.push(c),
            c => {
                let _ = write!(out, "\\[u{:04X}]", u32::from(c));
            }
        }
    }
    out
}

/// The same, with what stands between two backticks in bold.
fn marked(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return escaped(text);
    }
    let part = |(n, part): (usize, &&str)| match n % 2 {
        0 => escaped(part),
        _ => format!("\\fB{}\\fR", escaped(part)),
    };
    parts.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_troff_would_obey_stands_for_itself() {
        let mut page = Page::begin("oarlock-x", "1.0");
        page.section("DESCRIPTION");
        page.text(".TH a\\b 'c' \"d\" `--e` …\n'f");
        page.item("key=A|B", "of `a");
        page.item("oarlock-train(1)", "trains");
        let expected = format!(
            "{MARK}.TH \"OARLOCK\\-X\" 1 \"\" \"oarlock 1.0\" \"Oarlock\"\n.SH \"DESCRIPTION\"\n\\&.TH a\\eb \\(aqc\\(aq \
             \\(dqd\\(dq \\fB\\-\\-e\\fR \\[u2026]\n\\(aqf\n.TP\n\\fBkey=\\fR\\fIA|B\\fR\nof \\(gaa\n.TP\n\\fBoarlock\\-train\\fR(1)\n\
             trains\n"
        );
        assert_eq!(page.end(), expected);
    }
}
