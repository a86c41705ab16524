//! Settings of several parts in the spelling of configuration files: checkpoints keep them as Rust prints them.

/// The text of a setting that Rust has printed, such as `Cosine { num_cycles: 0.5 }`, as a file would hold it:
/// `cosine {num_cycles: 0.5}`. What is printed otherwise stays as it is.
pub(super) fn spelled(name: &str, text: &str) -> String {
    if let Some(words) = words_of(name, text) {
        return words;
    }
    let mut reader = Reader { rest: text, depth: 0 };
    match reader.value() {
        Some(value) if reader.rest.is_empty() => value,
        _ => text.to_owned(),
    }
}

/// The words of the keys for values whose names are none of a file.
fn words_of(name: &str, text: &str) -> Option<String> {
    let inside = |begin: &str, end: &str| text.strip_prefix(begin)?.strip_suffix(end);
    Some(match (name, text) {
        ("packing", "Concat") => "true".to_owned(),
        ("packing", "Truncate") => "false".to_owned(),
        ("packing", "ConcatDocuments") => "true, with neat_packing: true".to_owned(),
        ("quantization_bit" | "ref_model_quantization_bit", "Int8") => "8".to_owned(),
        ("quantization_bit" | "ref_model_quantization_bit", _) => {
            let (code, nested) = inside("FourBit { code: ", " }")?.split_once(", nested: ")?;
            format!("4, with quantization_type: {} and double_quantization: {nested}", snake(code))
        }
        ("pissa_init", "Kaiming") => "false".to_owned(),
        ("pissa_init", "Pissa { iterations: None }") => "true, with pissa_iter: -1".to_owned(),
        ("pissa_init", _) => {
            format!("true, with pissa_iter: {}", inside("Pissa { iterations: Some(", ") }")?)
        }
        ("val_size", _) => inside("Count(", ")").or_else(|| inside("Fraction(", ")"))?.to_owned(),
        _ => return None,
    })
}

/// Deeper than any setting: what a checkpoint holds may be anything.
const MAX_DEPTH: usize = 32;

struct Reader<'t> {
    rest: &'t str,
    /// How many brackets are open.
    depth: usize,
}

impl<'t> Reader<'t> {
    fn value(&mut self) -> Option<String> {
        match self.rest.chars().next()? {
            '[' | '{' | '(' => self.list(),
            '"' => self.quoted(),
            c if c.is_alphabetic() => self.named(),
            _ => {
                let text = self.until(|c| " ,])}:".contains(c));
                (!text.is_empty()).then(|| text.to_owned())
            }
        }
    }

    fn until(&mut self, is_end: impl Fn(char) -> bool) -> &'t str {
        let (text, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest;
        text
    }

    fn skip(&mut self, text: &str) -> bool {
        self.rest.strip_prefix(text).map(|rest| self.rest = rest).is_some()
    }

    /// A name, and what stands in brackets behind it.
    fn named(&mut self) -> Option<String> {
        let name = self.until(|c| !c.is_alphanumeric() && c != '_');
        if name == "None" {
            return Some("null".to_owned());
        }
        if self.rest.starts_with('(') {
            let parts = self.parts()?;
            let own = snake(name);
            return Some(match parts.as_slice() {
                // What only wraps another value, and what does so twice.
                [part] if matches!(name, "Some" | "Custom") || part.starts_with(&format!("{own} ")) => {
                    part.clone()
                }
                parts => format!("{own} {}", parts.join(" ")),
            });
        }
        Some(match self.skip(" ") {
            // The arguments of what was named before.
            true if name.ends_with("Args") => self.list()?,
            true => format!("{} {}", snake(name), self.list()?),
            false => snake(name),
        })
    }

    /// A list, an object, or several values in brackets.
    fn list(&mut self) -> Option<String> {
        let is_object = self.rest.starts_with('{');
        let parts = self.parts()?.join(", ");
        Some(if is_object { format!("{{{parts}}}") } else { format!("[{parts}]") })
    }

    /// What stands in brackets: values, some with a name before a colon.
    fn parts(&mut self) -> Option<Vec<String>> {
        let brackets = [("[", "]"), ("(", ")"), ("{", "}")];
        let (_, close) = brackets.into_iter().find(|(open, _)| self.skip(open))?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut parts = Vec::new();
        loop {
            self.rest = self.rest.trim_start_matches([' ', ',']);
            if self.skip(close) {
                self.depth -= 1;
                return Some(parts);
            }
            let mut part = self.value()?;
            if self.skip(": ") {
                part = format!("{part}: {}", self.value()?);
            }
            parts.push(part);
        }
    }

    fn quoted(&mut self) -> Option<String> {
        let end = self.rest[1..].find(['"', '\\'])?;
        let (text, rest) = self.rest[1..].split_at(end);
        // A text with escapes stays in its quotes, so that all of it does.
        self.rest = rest.strip_prefix('"')?;
        Some(text.to_owned())
    }
}

/// `CosineWithMinLr` as `cosine_with_min_lr`, and `AdamW` as `adamw`.
fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut text = String::new();
    for (at, c) in chars.iter().enumerate() {
        let is_word = chars.get(at + 1).is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && is_word && at > 0 && chars[at - 1] != '_' {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::spelled;

    #[test]
    fn values_are_spelled_as_in_files() {
        for (text, expected) in [
            ("Cosine { num_cycles: 0.5 }", "cosine {num_cycles: 0.5}"),
            ("AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8 }", "adamw {beta1: 0.9, beta2: 0.999, eps: 1e-8}"),
            ("CosineWithMinLr { rate: Some(0.1), at: None }", "cosine_with_min_lr {rate: 0.1, at: null}"),
            ("LoRA", "lora"),
            ("Full", "full"),
            ("Count(10)", "count 10"),
            ("[\"q_proj\", \"v_proj\"]", "[q_proj, v_proj]"),
            ("Names([\"q_proj\"])", "names [q_proj]"),
            ("[(\"q_proj\", 8), (\"v_proj\", 4)]", "[[q_proj, 8], [v_proj, 4]]"),
            ("{\"a\": 1}", "{a: 1}"),
            ("EightBit(EightBit(AdamW { eps: 1e-8 }))", "eight_bit adamw {eps: 1e-8}"),
            (
                "EightBit(EightBit(Custom(AdEmaMix(AdEmaMixArgs { alpha: 5.0 }))))",
                "eight_bit ad_ema_mix {alpha: 5.0}",
            ),
            ("F16", "f16"),
            ("[]", "[]"),
            // What is not printed so.
            ("Be brief.", "Be brief."),
            ("[\"a\\\"b\"]", "[\"a\\\"b\"]"),
            ("Cosine {", "Cosine {"),
            ("Sei \u{fc}berall", "Sei \u{fc}berall"),
            ("[)", "[)"),
            ("[a: ]", "[a: ]"),
            ("\"", "\""),
            ("", ""),
        ] {
            assert_eq!(spelled("any", text), expected);
        }
        for (name, text, expected) in [
            ("packing", "Concat", "true"),
            (
                "quantization_bit",
                "FourBit { code: Nf4, nested: true }",
                "4, with quantization_type: nf4 and double_quantization: true",
            ),
            (
                "ref_model_quantization_bit",
                "FourBit { code: Fp4, nested: false }",
                "4, with quantization_type: fp4 and double_quantization: false",
            ),
            ("quantization_bit", "Int8", "8"),
            ("pissa_init", "Kaiming", "false"),
            ("pissa_init", "Pissa { iterations: None }", "true, with pissa_iter: -1"),
            ("pissa_init", "Pissa { iterations: Some(16) }", "true, with pissa_iter: 16"),
            ("val_size", "Fraction(0.1)", "0.1"),
            ("val_size", "Count(10)", "10"),
            // What another version may have kept.
            ("quantization_bit", "ThreeBit", "three_bit"),
        ] {
            assert_eq!(spelled(name, text), expected);
        }
        let deep = "[".repeat(100_000);
        assert_eq!(spelled("any", &deep), deep);
    }
}
