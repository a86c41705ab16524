//! A chat template in the language of Ollama, which is that of Go's templates, found by what the template makes of placeholders.

use serde_json::{Value, json};

use super::ollama_check::{Parts, json_in, proven};
use crate::data::{ChatTemplate, Conversation, Message, Tokenizer};

const SYSTEM: &str = "{{ .System }}";
const CONTENT: &str = "{{ .Content }}";
const THINKING: &str = "{{ .Thinking }}";

/// Two functions and the calls of them, by names that no template knows.
const NAMES: [&str; 2] = ["first_function", "second_function"];

/// What a template is made of.
pub(super) struct OllamaTemplate {
    /// The whole of it.
    pub(super) text: String,
    /// What stands behind an answer.
    pub(super) behind_answer: String,
    /// What the chat template writes, and this one does not.
    pub(super) lacks: Vec<&'static str>,
}

/// The template of a model; `None` for one that renders a message otherwise depending on its place or its text. What it says is
/// what the chat template says, in conversations of every kind; what it cannot say is named.
pub(super) fn of_ollama(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<OllamaTemplate> {
    // Where the last answer begins with an empty thought that earlier ones lack, the parts are found with thoughts.
    let basis = Basis::of(template.clone(), tokenizer)
        .or_else(|| Basis::of(template.clone().thinking(true), tokenizer))?;
    let (calls, last) = (basis.calls().or_else(|| basis.results()), basis.last(template)?);
    let made = |parts: Parts| {
        let text = basis.text(parts, calls.as_ref(), &last);
        // Three quotes would end it in the file.
        (!text.contains("\"\"\"")).then_some(text)
    };
    let (text, lacks) = proven(template, &made)?;
    Some(OllamaTemplate { text, behind_answer: basis.behind, lacks })
}

/// The parts of conversations without functions.
struct Basis {
    /// The template, with or without thoughts.
    template: ChatTemplate,
    /// What a text begins with, without a system prompt.
    prefix: String,
    /// A question; with what asks for the answer, where both cannot be told apart.
    user: String,
    /// The first question, where it is another than the later ones.
    first: Option<First>,
    /// What asks for an answer and stands before each, where it is known.
    asks: String,
    /// An answer, and what stands behind it.
    answer: String,
    behind: String,
}

/// The first question of a conversation.
struct First {
    /// Without a system prompt.
    plain: String,
    /// With one inside of it, where the template writes it there.
    with_system: Option<String>,
}

/// What stands behind the last message, which asks for an answer.
struct Last {
    /// Where nobody says whether the model thinks.
    plain: String,
    /// Where somebody may say it.
    thinking: Option<String>,
}

/// Calls of functions, and their results.
struct Calls {
    /// `None` where the template writes nothing of a call but the text of its message.
    calls: Option<String>,
    result: String,
}

impl Basis {
    fn of(template: ChatTemplate, tokenizer: &Tokenizer) -> Option<Basis> {
        let user = || Message::new("user", CONTENT);
        let answer = Message::new("assistant", "{{ .Answer }}");
        let one = rendered(&template, None, None, vec![user()])?;
        let two = rendered(&template, None, None, vec![user(), answer, user()])?;
        // The second question comes after the first and its answer, and ends as the first does.
        let rest = two.strip_prefix(&one)?;
        let (answer, behind) = rest.split_once("{{ .Answer }}")?;
        let at = match whole_answer(&template, &one, answer) {
            // A conversation that ends with the answer ends with what stands behind it.
            Some(end) if behind.starts_with(&end) && behind[end.len()..].contains(CONTENT) => end.len(),
            _ => {
                // What begins a text, or ends a system prompt, may by chance end as an answer does.
                let with_system = rendered(&template, Some(SYSTEM), None, vec![user()]).unwrap_or_default();
                let common = common_end(behind, &one).min(match with_system.contains(SYSTEM) {
                    true => common_end(behind, &with_system),
                    false => usize::MAX,
                });
                // What ends an answer may end other messages, too: it belongs to the answer.
                let mut at = (behind.len() - common).max(end_of_answer(behind, tokenizer));
                while !behind.is_char_boundary(at) {
                    at += 1;
                }
                at
            }
        };
        let (behind, question) = behind.split_at(at);
        if !question.contains(CONTENT) {
            return None;
        }
        let prefix = one.strip_suffix(question).unwrap_or_default().to_owned();
        // Of two questions in a row the first asks for nothing.
        let twice = rendered(&template, None, None, vec![user(), user()]);
        let alone = twice.and_then(|twice| {
            let alone = question.get(..twice.len().checked_sub(one.len())?)?;
            (twice == format!("{prefix}{alone}{question}") && alone.contains(CONTENT))
                .then(|| alone.to_owned())
        });
        let asks = alone.as_ref().map_or("", |alone| &question[alone.len()..]).to_owned();
        let user = alone.unwrap_or_else(|| question.to_owned());
        let answer = format!("{answer}{CONTENT}");
        let plain = one.strip_prefix(&prefix)?.strip_suffix(&asks)?.to_owned();
        let with_system = rendered(&template, Some(SYSTEM), None, vec![Message::new("user", CONTENT)])
            .filter(|text| !text.ends_with(question))
            .and_then(|text| Some(text.strip_prefix(&prefix)?.strip_suffix(&asks)?.to_owned()))
            .filter(|text| text.contains(SYSTEM) && text.contains(CONTENT));
        let is_other = plain != user || with_system.is_some();
        let first = is_other.then_some(First { plain, with_system });
        Some(Basis { template, prefix, user, first, asks, answer, behind: behind.to_owned() })
    }

    /// A question, by its place.
    fn question(&self, parts: Parts) -> String {
        let Some(First { plain, with_system }) = &self.first else { return self.user.clone() };
        let first = match with_system.as_ref().filter(|_| parts.system) {
            Some(with) => {
                let with = with.replace(SYSTEM, "{{ $.System }}");
                format!("{{{{ if $.System }}}}{with}{{{{ else }}}}{plain}{{{{ end }}}}")
            }
            None => plain.clone(),
        };
        format!("{{{{ if $first }}}}{first}{{{{ $first = false }}}}{{{{ else }}}}{}{{{{ end }}}}", self.user)
    }

    /// The template with these parts.
    fn text(&self, parts: Parts, calls: Option<&Calls>, last: &Last) -> String {
        let begin = self.begin(parts);
        let Basis { answer, behind, asks, .. } = self;
        let thoughts = self.thoughts().filter(|_| parts.thoughts).unwrap_or_default();
        let asks_or_not = last.thinking.as_ref().filter(|_| parts.thinking).unwrap_or(&last.plain);
        let place = if self.first.is_some() { "{{ $first := true }}" } else { "" };
        let mut text = format!(
            "{begin}{place}{{{{ range $i, $message := .Messages }}}}{{{{ if eq .Role \"user\" }}}}{}",
            self.question(parts)
        );
        text.push_str("{{ else if eq .Role \"assistant\" }}");
        text.push_str(asks);
        text.push_str(&thoughts);
        match calls.filter(|_| parts.calls) {
            Some(Calls { calls: Some(calls), result }) => text.push_str(&format!(
                "{{{{ if .ToolCalls }}}}{calls}{{{{ else }}}}{answer}{behind}{{{{ end }}}}{{{{ else if eq .Role \"tool\" }}}}{result}"
            )),
            Some(Calls { calls: None, result }) => {
                text.push_str(&format!("{answer}{behind}{{{{ else if eq .Role \"tool\" }}}}{result}"));
            }
            None => text.push_str(&format!("{answer}{behind}")),
        }
        text.push_str("{{ end }}");
        // The last message asks for an answer.
        if !asks_or_not.is_empty() {
            text.push_str(&format!(
                "{{{{ if and (eq (len (slice $.Messages $i)) 1) (ne .Role \"assistant\") }}}}{asks_or_not}{{{{ end }}}}"
            ));
        }
        text + "{{ end }}"
    }

    /// What a text begins with: the system prompt and the functions, where there are any.
    fn begin(&self, parts: Parts) -> String {
        let template = &self.template;
        let before = |system: Option<&str>, tools: Option<Value>| {
            let text = rendered(template, system, tools, vec![Message::new("user", CONTENT)])?;
            Some(text.strip_suffix(&format!("{}{}", self.user, self.asks))?.to_owned())
        };
        let system = before(Some(SYSTEM), None).filter(|text| parts.system && text.contains(SYSTEM));
        let either = |system: Option<&String>, without: &str| match system {
            Some(system) => format!("{{{{ if .System }}}}{system}{{{{ else }}}}{without}{{{{ end }}}}"),
            None => without.to_owned(),
        };
        let plain = either(system.as_ref(), &self.prefix);
        let with_tools = |system: Option<&str>| {
            let (one, two) = (before(system, Some(functions(1)))?, before(system, Some(functions(2)))?);
            in_go(&one, &two)
        };
        let Some(tools) = with_tools(None).filter(|_| parts.tools) else { return plain };
        let both = with_tools(Some(SYSTEM)).filter(|text| parts.system && text.contains(SYSTEM));
        format!("{{{{ if .Tools }}}}{}{{{{ else }}}}{plain}{{{{ end }}}}", either(both.as_ref(), &tools))
    }

    /// The thoughts before an answer, where the template writes those of earlier answers.
    fn thoughts(&self) -> Option<String> {
        let template = &self.template;
        let user = || Message::new("user", CONTENT);
        let mut answer = Message::new("assistant", CONTENT);
        answer.extra.insert("reasoning_content".to_owned(), THINKING.into());
        let one = rendered(template, None, None, vec![user()])?;
        let with = rendered(template, None, None, vec![user(), answer, user()])?;
        let end = format!("{}{}{}{}", self.answer, self.behind, self.user, self.asks);
        let thoughts = with.strip_prefix(&one)?.strip_suffix(&end)?;
        thoughts.contains(THINKING).then(|| format!("{{{{ if .Thinking }}}}{thoughts}{{{{ end }}}}"))
    }

    /// What asks for an answer, by the template itself.
    fn last(&self, template: &ChatTemplate) -> Option<Last> {
        let asks = |template: &ChatTemplate| {
            let text = rendered(template, None, None, vec![Message::new("user", CONTENT)])?;
            let question = self.first.as_ref().map_or(&self.user, |first| &first.plain);
            Some(text.strip_prefix(&self.prefix)?.strip_prefix(question)?.to_owned())
        };
        let told = |thinks: bool| asks(&template.clone().thinking(thinks));
        let plain = asks(template)?;
        let thinking = match (told(true), told(false)) {
            (Some(on), Some(off)) if on != off && plain == off => {
                Some(format!("{{{{ if and $.IsThinkSet $.Think }}}}{on}{{{{ else }}}}{off}{{{{ end }}}}"))
            }
            (Some(on), Some(off)) if on != off => {
                let not = "and $.IsThinkSet (not $.Think)";
                Some(format!("{{{{ if {not} }}}}{off}{{{{ else }}}}{plain}{{{{ end }}}}"))
            }
            _ => None,
        };
        Some(Last { plain, thinking })
    }

    /// Results alone, of a template that writes calls as the text of their message.
    fn results(&self) -> Option<Calls> {
        let answer = Message::new("assistant", "{{ .Answer }}");
        let messages = vec![Message::new("user", CONTENT), answer, Message::new("tool", CONTENT)];
        let one = rendered(&self.template, None, None, messages[..1].to_vec())?;
        let text = rendered(&self.template, None, None, messages)?;
        let before = format!("{}{}", self.answer.replace(CONTENT, "{{ .Answer }}"), self.behind);
        let result = text.strip_prefix(&one)?.strip_prefix(&before)?.strip_suffix(&self.asks)?;
        (result.matches(CONTENT).count() == 1).then(|| Calls { calls: None, result: result.to_owned() })
    }

    /// Calls and results.
    fn calls(&self) -> Option<Calls> {
        let template = &self.template;
        let begin = rendered(template, None, Some(functions(1)), vec![Message::new("user", CONTENT)])?;
        let with = |n: usize| {
            let mut call = Message::new("assistant", "");
            let calls = NAMES[..n].iter().map(|name| json!({"type": "function", "function": {"name": name, "arguments": {name.to_owned(): 1}}}));
            call.extra.insert("tool_calls".to_owned(), calls.collect());
            let messages = vec![Message::new("user", CONTENT), call, Message::new("tool", CONTENT)];
            let text = rendered(template, None, Some(functions(1)), messages)?;
            Some(text.strip_prefix(&begin)?.to_owned())
        };
        let (one, two) = (with(1)?, with(2)?);
        // A call is its name and then its arguments.
        let parts = |text: &str, from: usize, name: &str| {
            let at = from + text[from..].find(name)?;
            let arguments = json_in(text, at, &json!({name: 1}))?;
            Some((at, at + name.len(), arguments))
        };
        let (at, end, arguments) = parts(&one, 0, NAMES[0])?;
        let (head, middle, rest) = (&one[..at], &one[end..arguments.start], &one[arguments.end..]);
        let (first, first_end, first_arguments) = parts(&two, 0, NAMES[0])?;
        let (second, second_end, second_arguments) = parts(&two, first_arguments.end, NAMES[1])?;
        let is_same = two[..first] == *head
            && two[first_end..first_arguments.start] == *middle
            && two[second_end..second_arguments.start] == *middle
            && two[second_arguments.end..] == *rest;
        if !is_same {
            return None;
        }
        let between = &two[first_arguments.end..second];
        let (end, result) = match rest.find(&self.behind) {
            Some(at) if !self.behind.is_empty() => rest.split_at(at + self.behind.len()),
            _ => return None,
        };
        let result = result.strip_suffix(&self.asks)?;
        if result.matches(CONTENT).count() != 1 || head.contains("{{") || end.contains("{{") {
            return None;
        }
        let calls = format!(
            "{{{{ range $n, $call := .ToolCalls }}}}{{{{ if $n }}}}{between}{{{{ else }}}}{head}{{{{ end }}}}\
             {{{{ $call.Function.Name }}}}{middle}{{{{ $call.Function.Arguments }}}}{{{{ end }}}}{end}"
        );
        Some(Calls { calls: Some(calls), result: result.to_owned() })
    }
}

/// What stands behind an answer at the end of a conversation, where that is the same conversation up to there.
fn whole_answer(template: &ChatTemplate, one: &str, answer: &str) -> Option<String> {
    let messages = vec![Message::new("user", CONTENT), Message::new("assistant", "{{ .Answer }}")];
    let whole = template.render(&Conversation { messages, ..Conversation::default() }).ok()?;
    let behind = whole.text.strip_prefix(one)?.strip_prefix(answer)?.strip_prefix("{{ .Answer }}")?;
    (!behind.is_empty()).then(|| behind.to_owned())
}

/// The bytes with which both texts end.
fn common_end(a: &str, b: &str) -> usize {
    a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count()
}

/// The bytes of the token with which an answer ends, and of the lines behind it.
fn end_of_answer(behind: &str, tokenizer: &Tokenizer) -> usize {
    let text = behind.trim_start();
    let is_special = |id| tokenizer.is_special(id).unwrap_or(false);
    let specials = tokenizer.added().unwrap_or_default().into_iter().filter(|(_, id)| is_special(*id));
    let Some(end) =
        specials.map(|(token, _)| token).filter(|token| text.starts_with(token)).max_by_key(|t| t.len())
    else {
        return 0;
    };
    let rest = &text[end.len()..];
    behind.len() - rest.trim_start_matches('\n').len()
}

/// A prompt.
fn rendered(
    template: &ChatTemplate,
    system: Option<&str>,
    tools: Option<Value>,
    messages: Vec<Message>,
) -> Option<String> {
    let conversation = Conversation { system: system.map(str::to_owned), tools, messages };
    template.render_prompt(&conversation).ok()
}

/// So many functions.
fn functions(n: usize) -> Value {
    let function = |name: &&str| {
        json!({"type": "function", "function": {
            "name": name, "description": "d", "parameters": {"type": "object", "properties": {}},
        }})
    };
    NAMES[..n].iter().map(function).collect()
}

/// A text with one function and the same with two as a text with any number of them.
fn in_go(one: &str, two: &str) -> Option<String> {
    let all = functions(2);
    // Some templates write what is inside of `function`.
    let forms =
        [("$tool", [&all[0], &all[1]]), ("$tool.Function", [&all[0]["function"], &all[1]["function"]])];
    forms.into_iter().find_map(|(name, [first, second])| {
        let at = json_in(one, 0, first)?;
        let (a, b) = (json_in(two, 0, first)?, json_in(two, 0, second)?);
        let (before, between, behind) = (&two[..a.start], two.get(a.end..b.start)?, &two[b.end..]);
        let is_same = one[..at.start] == *before && one[at.end..] == *behind;
        is_same.then(|| {
            format!(
                "{before}{{{{ range $n, $tool := .Tools }}}}{{{{ if $n }}}}{between}{{{{ end }}}}{{{{ {name} }}}}{{{{ end \
                 }}}}{behind}"
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// ChatML with functions, thoughts and calls, as Qwen3 writes it.
    const CHATML: &str = r#"{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}{{- '<tools>' }}{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}{%- for message in messages %}{%- if message.role == 'user' %}{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}{{- message.content }}{%- for call in message.tool_calls or [] %}{%- if not loop.first or message.content %}{{- '\n' }}{%- endif %}{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- elif message.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"#;

    #[test]
    fn a_template_has_functions_thoughts_calls_and_results() {
        let folder = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/minimind-small");
        std::fs::copy(from.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
        std::fs::write(folder.path().join("chat_template.jinja"), CHATML).unwrap();
        let (template, tokenizer) =
            (ChatTemplate::read(folder.path()).unwrap(), Tokenizer::open(folder.path()).unwrap());
        let OllamaTemplate { text, behind_answer, lacks } = of_ollama(&template, &tokenizer).unwrap();
        assert_eq!((behind_answer.as_str(), lacks), ("<|im_end|>\n", Vec::new()));
        for part in [
            "{{ if .Tools }}{{ if .System }}<|im_start|>system\n{{ .System }}\n\n<tools>\n{{ range $n, $tool := .Tools }}\
             {{ if $n }}\n{{ end }}{{ $tool }}{{ end }}\n</tools><|im_end|>\n{{ else }}<|im_start|>system\n<tools>\n",
            "{{ else }}{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ else }}{{ end }}{{ end }}",
            "{{ if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n{{ else if",
            "<|im_start|>assistant\n{{ if .Thinking }}<think>\n{{ .Thinking }}\n</think>\n\n{{ end }}{{ if .ToolCalls }}",
            "{{ range $n, $call := .ToolCalls }}{{ if $n }}}\n</tool_call>\n<tool_call>\n{\"name\": \"{{ else }}<tool_call>\n\
             {\"name\": \"{{ end }}{{ $call.Function.Name }}\", \"arguments\": {{ $call.Function.Arguments }}{{ end }}}\n\
             </tool_call><|im_end|>\n{{ else }}{{ .Content }}<|im_end|>\n{{ end }}",
            "\"tool\" }}<|im_start|>user\n<tool_response>\n{{ .Content }}\n</tool_response><|im_end|>\n{{ end }}",
            "(ne .Role \"assistant\") }}{{ if and $.IsThinkSet (not $.Think) }}<|im_start|>assistant\n<think>\n\n</think>\n\n\
             {{ else }}<|im_start|>assistant\n{{ end }}{{ end }}{{ end }}",
        ] {
            assert!(text.contains(part), "{part}\n---\n{text}");
        }
        // An order of roles that the template does not know leaves out what needs it.
        std::fs::write(folder.path().join("chat_template.jinja"), "{{ raise_exception('no') }}").unwrap();
        assert!(of_ollama(&ChatTemplate::read(folder.path()).unwrap(), &tokenizer).is_none());
    }
}
