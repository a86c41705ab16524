//! Grammars in llama.cpp's notation (GBNF) as grammars in Lark's, which is the one that the parser reads.
//!
//! Each character is a token of its own there: so nothing depends on where a lexer would cut a text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// The most brackets around each other.
const DEEPEST: usize = 64;

/// The most characters and rules that a grammar may name.
const MOST_ITEMS: usize = 20_000;

/// The same grammar in Lark's notation.
///
/// # Errors
/// What is wrong with it, with its line.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut reader = Reader { rest: text.chars().peekable(), line: 1, names: BTreeMap::new(), n_items: 0 };
    let mut rules: BTreeMap<usize, String> = BTreeMap::new();
    reader.space(true);
    while reader.rest.peek().is_some() {
        let name = reader.name()?;
        let number = reader.number(&name);
        reader.space(false);
        for expected in "::=".chars() {
            if reader.rest.next() != Some(expected) {
                return Err(reader.wrong("a rule is a name, `::=` and what it stands for"));
            }
        }
        reader.space(true);
        let body = reader.alternatives(0)?;
        if rules.insert(number, body).is_some() {
            return Err(reader.wrong(&format!("the rule {name} stands twice")));
        }
        match reader.rest.peek().copied() {
            None | Some('\n' | '\r') => reader.space(true),
            Some(other) => return Err(reader.wrong(&format!("a rule ends before {other:?}"))),
        }
    }
    if let Some((name, _)) = reader.names.iter().find(|(_, number)| !rules.contains_key(number)) {
        return Err(format!("there is no rule {name}"));
    }
    let Some(root) = reader.names.get("root") else { return Err("there is no rule root".to_owned()) };
    let mut out = format!("start: r{root}\n");
    for (number, body) in rules {
        // Writing to a text never fails.
        let _ = writeln!(out, "r{number}: {body}");
    }
    Ok(out)
}

struct Reader<'t> {
    rest: Peekable<Chars<'t>>,
    line: usize,
    /// The rules that are named, by their numbers.
    names: BTreeMap<String, usize>,
    n_items: usize,
}

impl Reader<'_> {
    fn wrong(&self, problem: &str) -> String {
        format!("line {}: {problem}", self.line)
    }

    fn number(&mut self, name: &str) -> usize {
        let next = self.names.len();
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    /// Passes over spaces and remarks, and over ends of lines where a rule may go on.
    fn space(&mut self, goes_on: bool) {
        while let Some(&c) = self.rest.peek() {
            match c {
                ' ' | '\t' => {}
                '\n' | '\r' if goes_on => {}
                '#' => {
                    while self.rest.peek().is_some_and(|c| !matches!(c, '\n' | '\r')) {
                        self.rest.next();
                    }
                    continue;
                }
                _ => return,
            }
            self.line += usize::from(c == '\n');
            self.rest.next();
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            name.push(c);
        }
        let found = self.rest.peek().copied();
        match name.is_empty() {
            true => Err(self.wrong(&format!("expected the name of a rule, not {found:?}"))),
            false => Ok(name),
        }
    }

    /// Sequences with `|` between them. Inside of brackets they may go on in the next line.
    fn alternatives(&mut self, depth: usize) -> Result<String, String> {
        if depth > DEEPEST {
            return Err(self.wrong(&format!("more than {DEEPEST} brackets stand around each other")));
        }
        let mut ways = vec![self.sequence(depth)?];
        while self.rest.next_if_eq(&'|').is_some() {
            self.space(true);
            ways.push(self.sequence(depth)?);
        }
        Ok(ways.join(" | "))
    }

    fn sequence(&mut self, depth: usize) -> Result<String, String> {
        let mut parts: Vec<String> = Vec::new();
        while let Some(&c) = self.rest.peek() {
            let part = match c {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.rest.next();
                    "/(?s:.)/".to_owned()
                }
                '(' => {
                    self.rest.next();
                    self.space(true);
                    let inside = self.alternatives(depth + 1)?;
                    if self.rest.next() != Some(')') {
                        return Err(self.wrong("a bracket is not closed"));
                    }
                    format!("({inside})")
                }
                c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                    let name = self.name()?;
                    format!("r{}", self.number(&name))
                }
                '<' | '!' => return Err(self.wrong("tokens of the model (`<…>`) cannot be named")),
                _ => break,
            };
            self.n_items += 1;
            if self.n_items > MOST_ITEMS {
                return Err(format!("the grammar has more than {MOST_ITEMS} characters and rules"));
            }
            parts.push(self.repeated(part)?);
            self.space(depth > 0);
        }
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    /// A part with how often it comes.
    fn repeated(&mut self, part: String) -> Result<String, String> {
        let times = match self.rest.peek() {
            Some(&sign @ ('*' | '+' | '?')) => {
                self.rest.next();
                sign.to_string()
            }
            Some('{') => {
                let mut times = String::new();
                for c in self.rest.by_ref() {
                    times.push(c);
                    if c == '}' {
                        break;
                    }
                }
                let inside = times.strip_prefix('{').and_then(|times| times.strip_suffix('}')).unwrap_or("");
                let (least, most) = inside.split_once(',').unwrap_or((inside, inside));
                let (least, most) = (least.trim(), most.trim());
                let is_number = |text: &str| text.parse::<u16>().is_ok();
                if !is_number(least) || !(most.is_empty() || is_number(most)) {
                    return Err(self.wrong(&format!("{times} is no number of times")));
                }
                match inside.contains(',') {
                    true => format!("{{{least},{most}}}"),
                    false => format!("{{{least}}}"),
                }
            }
            _ => return Ok(part),
        };
        Ok(format!("({part}){times}"))
    }

    /// A text as its characters.
    fn literal(&mut self) -> Result<String, String> {
        self.rest.next();
        let mut characters = Vec::new();
        loop {
            match self.rest.next() {
                Some('"') => break,
                Some('\n') | None => return Err(self.wrong("a text in quotes does not end")),
                Some('\\') => characters.push(self.escaped()?),
                Some(c) => characters.push(c),
            }
        }
        self.n_items += characters.len();
        if self.n_items > MOST_ITEMS {
            return Err(format!("the grammar has more than {MOST_ITEMS} characters and rules"));
        }
        let parts: Vec<String> = characters.into_iter().map(|c| format!("/{}/", in_regex(c))).collect();
        Ok(match &parts[..] {
            [] => "\"\"".to_owned(),
            [one] => one.clone(),
            several => format!("({})", several.join(" ")),
        })
    }

    /// Characters in square brackets.
    fn class(&mut self) -> Result<String, String> {
        self.rest.next();
        let mut class = String::from("/[");
        if self.rest.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        let mut is_empty = true;
        loop {
            let from = match self.rest.next() {
                Some(']') => break,
                Some('\n') | None => return Err(self.wrong("characters in brackets do not end")),
                Some('\\') => self.escaped()?,
                Some(c) => c,
            };
            is_empty = false;
            class += &in_regex(from);
            // A line at the end is one of the characters.
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
                self.rest.next();
                let to = match self.rest.next() {
                    Some('\\') => self.escaped()?,
                    Some(c) => c,
                    None => return Err(self.wrong("characters in brackets do not end")),
                };
                if to < from {
                    return Err(self.wrong(&format!("{from:?} to {to:?} is no range")));
                }
                class.push('-');
                class += &in_regex(to);
            }
        }
        match is_empty {
            true => Err(self.wrong("there is no character in the brackets")),
            false => Ok(class + "]/"),
        }
    }

    /// What stands behind a backslash.
    fn escaped(&mut self) -> Result<char, String> {
        let n_digits = match self.rest.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            other => return Err(self.wrong(&format!("a backslash before {other:?} is not known"))),
        };
        let digits: String = self.rest.by_ref().take(n_digits).collect();
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == n_digits);
        code.and_then(char::from_u32).ok_or_else(|| self.wrong(&format!("{digits:?} is no character")))
    }
}

/// A character by its number, which has no meaning of its own in an expression.
fn in_regex(c: char) -> String {
    format!("\\x{{{:x}}}", u32::from(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rules_of_characters() {
        let lark =
            to_lark("root ::= \"a\\n\" b-1* # two\n  \nb-1 ::= [^\"\\]a-f-] | (\n \"x\" |\n .{2,3} )? |\n")
                .unwrap();
        let expected = "start: r0\nr0: (/\\x{61}/ /\\x{a}/) (r1)*\nr1: /[^\\x{22}\\x{5d}\\x{61}-\\x{66}\\x{2d}]/ | ((/\\x{78}/ | \
                        (/(?s:.)/){2,3}))? | \"\"\n";
        assert_eq!(lark, expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, problem) in [
            ("", "there is no rule root"),
            ("a ::= \"b\"", "there is no rule root"),
            ("root ::= other", "there is no rule other"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule root stands twice"),
            ("root ::= \"a", "line 1: a text in quotes does not end"),
            ("root ::= [a", "characters in brackets do not end"),
            ("root ::= []", "there is no character"),
            ("root ::= [z-a]", "'z' to 'a' is no range"),
            ("root ::= (\"a\"", "a bracket is not closed"),
            ("root ::= \"a\"{x}", "{x} is no number of times"),
            ("root ::= \"\\q\"", "a backslash before Some('q')"),
            ("root ::= \"\\ud800\"", "\"d800\" is no character"),
            ("root = \"a\"", "a rule is a name"),
            ("root ::= <[1]>", "tokens of the model"),
            ("root ::= \"a\" )", "a rule ends before ')'"),
            ("?", "expected the name of a rule"),
        ] {
            let found = to_lark(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
        assert!(to_lark(&format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100))).is_err());
        assert!(
            to_lark(&format!("root ::= \"{}\"", "a".repeat(MOST_ITEMS + 1)))
                .unwrap_err()
                .contains("more than")
        );
    }
}
