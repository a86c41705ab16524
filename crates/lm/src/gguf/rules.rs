//! The rules by which byte-level tokenizers cut texts before merges, under llama.cpp's names and as `tokenizer.json` has them.

use serde_json::{Value, json};

/// How texts are cut.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The name in llama.cpp (`tokenizer.ggml.pre`).
    pub(crate) name: &'static str,
    /// Patterns as `tokenizer.json` writes them. Each cuts every piece that those before it have left.
    cuts: &'static [&'static str],
    /// `ignore_merges`: whether pieces that are tokens are taken whole.
    pub(crate) takes_whole: bool,
}

/// The rule of GPT-2, which `ByteLevel` has without being told.
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Each digit alone, and each run of digits: the two forms of `Digits`.
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// All rules, of several with one pattern the most usual one first.
pub(crate) const RULES: [Rule; 13] = [
    Rule { name: "gpt-2", cuts: &[GPT_2], takes_whole: false },
    Rule { name: "smollm", cuts: &[DIGIT, GPT_2], takes_whole: false },
    Rule { name: "llama-bpe", cuts: &[LLAMA_3], takes_whole: true },
    Rule { name: "smaug-bpe", cuts: &[LLAMA_3], takes_whole: false },
    Rule {
        name: "qwen2",
        cuts: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        takes_whole: false,
    },
    Rule {
        name: "qwen35",
        cuts: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        takes_whole: false,
    },
    // Words by upper and lower case.
    Rule {
        name: "tekken",
        cuts: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        takes_whole: true,
    },
    Rule {
        name: "gpt-4o",
        cuts: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        takes_whole: false,
    },
    Rule { name: "falcon", cuts: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, r"[0-9][0-9][0-9]"], takes_whole: false },
    Rule {
        name: "deepseek-llm",
        cuts: &[
            r"[\r\n]",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            DIGITS,
        ],
        takes_whole: false,
    },
    Rule {
        name: "deepseek-coder",
        cuts: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", DIGIT],
        takes_whole: false,
    },
    Rule {
        name: "deepseek-v3",
        cuts: &[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        takes_whole: false,
    },
    // What llama.cpp does where a file names no rule.
    Rule {
        name: "default",
        cuts: &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, DIGITS, "[0-9][0-9][0-9]"],
        takes_whole: false,
    },
];

impl Rule {
    /// The rule of a name, or of another name of it; `None` for one that is not known here.
    pub(crate) fn named(pre: &str) -> Option<&'static Rule> {
        let same = match pre {
            "mpt" | "olmo" | "phi-2" | "gpt2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de"
            | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "jais" | "trillion" | "granite-docling"
            | "exaone4" => "gpt-2",
            "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
                "smollm"
            }
            "llama3" | "llama-v3" | "glm4" | "glm5" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
            | "lfm2" => "llama-bpe",
            "dbrx" | "chatglm-bpe" => "smaug-bpe",
            "stablelm2" | "deepseek-r1-qwen" | "megrez" | "kormo" | "hunyuan" | "solar-open" | "grok-2" => {
                "qwen2"
            }
            "llama4" | "kanana2" | "minimax-m2" => "gpt-4o",
            "hunyuan-dense" | "joyai-llm" => "deepseek-v3",
            own => own,
        };
        RULES.iter().find(|rule| rule.name == same)
    }

    /// Whether these patterns are those of the rule.
    pub(crate) fn has(&self, cuts: &[String]) -> bool {
        self.cuts.iter().map(|cut| plain(cut)).eq(cuts.iter().map(|cut| plain(cut)))
    }

    /// Whether llama.cpp cuts words with combining marks, such as those of Hindi, otherwise than the rule says.
    pub(crate) fn knows_no_marks(&self) -> bool {
        matches!(self.name, "tekken" | "gpt-4o")
    }

    /// `pre_tokenizer` of a `tokenizer.json`.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |cuts: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts});
        let step = |cut: &&str| match *cut {
            DIGIT => json!({"type": "Digits", "individual_digits": true}),
            regex => {
                json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
            }
        };
        // The last step has the pattern of GPT-2 by itself.
        let (before, ends) = match self.cuts.split_last() {
            Some((&GPT_2, before)) => (before, bytes(true)),
            _ => (self.cuts, bytes(false)),
        };
        match before {
            [] => ends,
            before => {
                let steps: Vec<Value> = before.iter().map(step).chain([ends]).collect();
                json!({"type": "Sequence", "pretokenizers": steps})
            }
        }
    }

    /// `normalizer`. llama.cpp has none for these, and the tokenizers that the files came from have this one.
    pub(crate) fn normalizer(&self) -> Value {
        if self.name.starts_with("qwen") { json!({"type": "NFC"}) } else { Value::Null }
    }
}

/// The patterns by which a `tokenizer.json` cuts texts.
///
/// # Errors
/// Steps that are no patterns, or that do more than to cut.
pub(crate) fn cuts_of(tokenizer: &Value) -> Result<Vec<String>, String> {
    let pre_tokenizer = &tokenizer["pre_tokenizer"];
    let refuse = |step: &Value| format!("llama.cpp has no name for the rule {step}");
    let steps: Vec<&Value> = match pre_tokenizer["type"] == "Sequence" {
        true => pre_tokenizer["pretokenizers"].as_array().into_iter().flatten().collect(),
        false => vec![pre_tokenizer],
    };
    let Some((bytes, before)) = steps.split_last() else { return Err(refuse(pre_tokenizer)) };
    if bytes["type"] != "ByteLevel" || bytes["add_prefix_space"] == true {
        return Err(refuse(pre_tokenizer));
    }
    let cut = |step: &&Value| -> Result<String, String> {
        match step["type"].as_str() {
            Some("Digits") if step["individual_digits"] == true => Ok(DIGIT.to_owned()),
            Some("Digits") => Ok(DIGITS.to_owned()),
            Some("Split") => {
                let is_kept = step["behavior"] == "Isolated" && step["invert"] != true;
                // What no match covers is lost here, and the patterns that stand alone cover every text.
                let is_only = step["behavior"] == "Removed" && step["invert"] == true && before.len() == 1;
                let regex = step["pattern"]["Regex"].as_str().filter(|_| is_kept || is_only);
                regex.map(str::to_owned).ok_or_else(|| refuse(step))
            }
            _ => Err(refuse(step)),
        }
    };
    let mut cuts = before.iter().map(cut).collect::<Result<Vec<_>, _>>()?;
    if bytes["use_regex"].as_bool().unwrap_or(true) {
        cuts.push(GPT_2.to_owned());
    }
    Ok(cuts)
}

/// A pattern with the characters that it writes by letters, as some files have it.
fn plain(regex: &str) -> String {
    regex.replace(r"\r", "\r").replace(r"\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_made_by_a_rule_is_known_by_it() {
        for rule in &RULES {
            let cuts = cuts_of(&json!({"pre_tokenizer": rule.pre_tokenizer()})).unwrap();
            let same: Vec<&str> = RULES.iter().filter(|rule| rule.has(&cuts)).map(|rule| rule.name).collect();
            assert!(same.contains(&rule.name) && same.len() <= 2, "{} {same:?}", rule.name);
        }
        for (other, name) in [("llama3", "llama-bpe"), ("chatglm-bpe", "smaug-bpe"), ("llama4", "gpt-4o")] {
            assert_eq!(Rule::named(other).unwrap().name, name);
        }
        assert!(Rule::named("superbpe").is_none());
    }

    #[test]
    fn other_ways_to_write_a_rule_mean_the_same() {
        let name = |steps: Value| {
            let cuts = cuts_of(&json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}))?;
            RULES.iter().find(|rule| rule.has(&cuts)).map(|rule| rule.name).ok_or(cuts.join(" then "))
        };
        let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let bytes = |cuts: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": cuts});
        assert_eq!(name(json!([split(GPT_2), bytes(false)])), Ok("gpt-2"));
        assert_eq!(name(json!([split(r"\p{N}"), bytes(true)])), Ok("smollm"));
        assert_eq!(name(json!([split(&plain(LLAMA_3)), bytes(false)])), Ok("llama-bpe"));
        // What tiktoken's files are converted to.
        let mut removed = split(LLAMA_3);
        removed["behavior"] = json!("Removed");
        removed["invert"] = json!(true);
        assert_eq!(name(json!([removed, bytes(false)])), Ok("llama-bpe"));
        assert!(name(json!([split(r"\p{N}"), removed, bytes(false)])).unwrap_err().contains("no name"));
        assert_eq!(name(json!([split("x"), bytes(false)])), Err("x".to_owned()));
        assert!(name(json!([split("x")])).is_err());
        assert!(name(json!([{"type": "ByteLevel", "add_prefix_space": true}])).is_err());
    }
}
