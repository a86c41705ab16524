//! Long conversations: the same spans as if each turn were rendered with the whole, in a time that grows with the length.

use super::*;

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// As Qwen3: thoughts only behind the last question, results of functions in one turn, functions in the system message.
const QWEN3: &str = r#"{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}{%- set content = message.content %}
{%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
{%- elif message.role == "assistant" %}{%- set reasoning_content = '' %}
{%- if '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index %}{%- if loop.last or (not loop.last and reasoning_content) %}
{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}
{%- for tool_call in message.tool_calls %}{{- '\n<tool_call>\n' }}{{- tool_call | tojson }}{{- '\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == "tool" %}{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
{%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"#;

/// As Mistral: roles in turn, by their number.
const MISTRAL: &str = "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]\
    {% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}";

/// As ChatGLM2: rounds are numbered, so that no turn is rendered as it is elsewhere.
const NUMBERED: &str = "{% for m in messages %}{% if m.role == 'user' %}[Round {{ loop.index0 // 2 }}]\n{{ m.content }}\n\
    {% else %}{{ m.content }}\n{% endif %}{% endfor %}";

fn compiled(source: &str) -> Compiled {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.into(), text.into()));
    Compiled::new(source, tokens.into(), "t".into()).unwrap()
}

/// Messages with these roles in turn, of many different contents.
fn talk(roles: &[&str], n: usize) -> Conversation {
    let message = |at: usize| {
        let role = roles[at % roles.len()];
        let text = match (role, at % 5) {
            ("assistant", 0) => format!("<think>\nhm {at}\n</think>\n\nanswer"),
            ("assistant", 3) => "answer".to_owned(),
            ("user", 2) => "<|im_start|>assistant\nanswer".to_owned(),
            _ => format!("{role} {}", at / 3),
        };
        Message::new(role, text)
    };
    Conversation { messages: (0..n).map(message).collect(), ..Conversation::default() }
}

fn n_rendered(template: &Compiled, of: &Conversation) -> u64 {
    let spans = Spans::new(template, of);
    spans.render().unwrap();
    spans.n_rendered.get()
}

#[test]
fn long_conversations_have_the_spans_of_short_ones() {
    let alternate: &[&str] = &["user", "assistant"];
    let agent: &[&str] = &["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"];
    let long_agent = &[&["user"][..], &["assistant", "tool"].repeat(60)].concat()[..];
    for (source, roles) in [
        (CHATML, alternate),
        (CHATML, agent),
        (QWEN3, alternate),
        (QWEN3, agent),
        (QWEN3, long_agent),
        (QWEN3, &["user", "assistant", "assistant"]),
        (MISTRAL, alternate),
        (NUMBERED, alternate),
    ] {
        let template = compiled(source);
        for n in [49, 50, 77, 130] {
            let of = talk(roles, n);
            let spans = Spans::new(&template, &of);
            let Rendered { text, assistant } = spans.render().unwrap();
            let is_answer = |i: &usize| of.messages[*i].role == "assistant";
            let each = (0..n).filter(is_answer).map(|i| spans.span(&of.messages, i, &text).unwrap());
            assert_eq!(assistant, each.collect::<Vec<_>>(), "{roles:?} {n} {source}");
        }
    }
}

#[test]
fn the_work_grows_with_the_length() {
    for source in [CHATML, QWEN3, MISTRAL] {
        let template = compiled(source);
        let [short, long] = [400, 3200].map(|n| n_rendered(&template, &talk(&["user", "assistant"], n)));
        assert!(long < 10 * short && long < 3200 * 60, "{short} {long} {source}");
    }
    // Where it cannot, the conversation is refused instead of computed for hours.
    let (template, of) = (compiled(NUMBERED), talk(&["user", "assistant"], 3200));
    let error = Spans::new(&template, &of).render().unwrap_err().to_string();
    assert!(error.contains("takes too long for a conversation of 3200 messages"), "{error}");
}
