//! Prompts as transformers renders them, and what the assistant says in whole conversations.

use serde_json::json;

use super::super::example::Message;
use super::*;

fn template_of(source: &str) -> ChatTemplate {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" }, "chat_template": source });
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    ChatTemplate::read(dir.path()).unwrap()
}

/// User and assistant in turn.
fn talk(messages: &[&str]) -> Conversation {
    let roles = ["user", "assistant"].iter().cycle();
    let messages = roles.zip(messages).map(|(role, text)| Message::new(role, *text)).collect();
    Conversation { messages, ..Conversation::default() }
}

/// The text with what the assistant says between « and ».
fn shown(template: &ChatTemplate, conversation: &Conversation) -> String {
    let Rendered { text, assistant } = template.render(conversation).unwrap();
    let (mut out, mut end) = (String::new(), 0);
    for span in assistant {
        out += &format!("{}«{}»", &text[end..span.start], &text[span.clone()]);
        end = span.end;
    }
    out + &text[end..]
}

const SUM: [&str; 4] = ["Hi", "Hello", "1+1?", "2"];

#[test]
fn templates_render_as_jinja_does() {
    let template = "{%- set ns = namespace(last=0) %}\n{%- for m in messages[::-1] %}\n    {%- if m.role == 'user' %}\n        \
        {%- set ns.last = (messages|length - 1) - loop.index0 %}\n        {%- break %}\n    {%- endif %}\n{%- endfor %}\n\
        {{- bos_token }}\n{% for m in messages %}\n    {% if m.content is string and m.content.startswith('a') %}\n\
        {{ m['role'].upper() }}: {{ m.content.split('|')[-1].strip() }}{{ eos_token }}\n    {% else %}\n{{ m | tojson }}\n\
        {% endif %}\n{% endfor %}\n{{ ns.last }} {{ m2 is defined }} {{ {'k': ['<x>', 1]} | tojson(indent=1) }}\n\
        {%- if add_generation_prompt %}\n    {{- '\\n>' }}\n{%- endif %}\n";
    let text = template_of(template).render_prompt(&talk(&["a|b ", "<é>", "ax"])).unwrap();
    // What transformers' render_jinja_template gives.
    let expected = "<s>\nUSER: b</s>\n{\"role\": \"assistant\", \"content\": \"<é>\"}\nUSER: ax</s>\n2 False \
        {\n \"k\": [\n  \"<x>\",\n  1\n ]\n}\n>";
    assert_eq!(text, expected);
}

#[test]
fn templates_are_found_in_all_their_places_and_their_faults_are_told() {
    let error = template_of("{{ raise_exception('roles must alternate') }}").render_prompt(&talk(&[]));
    let error = error.unwrap_err().to_string();
    let dir = tempfile::tempdir().unwrap();
    assert!(
        error.contains("tokenizer_config.json: the chat template fails: ")
            && error.contains("roles must alternate"),
        "{error}"
    );
    let read = |template: serde_json::Value| {
        std::fs::write(
            dir.path().join("tokenizer_config.json"),
            json!({ "chat_template": template }).to_string(),
        )
        .unwrap();
        ChatTemplate::read(dir.path()).and_then(|t| t.render_prompt(&talk(&["x"])))
    };
    let list = json!([{ "name": "tools", "template": "t" }, { "name": "default", "template": "d{{ messages[0].content }}" }]);
    assert_eq!(read(list).unwrap(), "dx");
    assert!(read(json!("{% if %}")).unwrap_err().to_string().contains("the chat template is broken"));
    assert!(read(json!(null)).unwrap_err().to_string().contains("has no chat template"));
    std::fs::write(dir.path().join("chat_template.jinja"), "own {{ messages[0].role }}\n").unwrap();
    assert_eq!(read(json!("ignored")).unwrap(), "own user");
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn what_the_assistant_says_begins_behind_the_generation_prompt_and_ends_with_the_turn() {
    let chatml = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello<|im_end|>\n»<|im_start|>user\n1+1?\
        <|im_end|>\n<|im_start|>assistant\n«2<|im_end|>\n»";
    assert_eq!(shown(&template_of(CHATML), &talk(&SUM)), chatml);

    let llama3 = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
        {{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
        <|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";
    let text = shown(&template_of(llama3), &talk(&SUM));
    assert_eq!(text.matches("<|start_header_id|>assistant<|end_header_id|>\n\n«").count(), 2);
    assert!(text.starts_with("<s><|start_header_id|>user") && text.ends_with("«2<|eot_id|>»"), "{text}");

    // Without a generation prompt the model begins behind the user's turn.
    let mistral = "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]\
        {% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}";
    let text = "<s>[INST] Hi[/INST]« Hello</s>»[INST] 1+1?[/INST]« 2</s>»";
    assert_eq!(shown(&template_of(mistral), &talk(&SUM)), text);
    assert!(
        template_of(mistral)
            .render(&Conversation {
                messages: vec![Message::new("assistant", "first")],
                ..Conversation::default()
            })
            .unwrap_err()
            .to_string()
            .contains("roles must alternate")
    );
}

/// As Qwen3: earlier turns lose their thoughts, the last has one, if only an empty one.
const THINKING: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\
    {% set answer = m.content.split('</think>')[-1].lstrip('\n') %}{% if loop.last %}\
    {% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}\
    {{ '<think>\n' + thought + '\n</think>\n\n' + answer }}{% else %}{{ answer }}{% endif %}{% for c in m.tool_calls %}\
    {% if answer or not loop.first %}{{ '\n' }}{% endif %}{{ '<call>' + c.name }}{% endfor %}{% else %}{{ m.content }}\
    {% endif %}{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn a_turn_that_is_rendered_differently_when_it_is_the_last_is_found_by_a_mark() {
    let thoughts = ["Hi", "<think>\nhm\n</think>\n\nHello", "1+1?", "<think>\nsum\n</think>\n\n2"];
    let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello<|im_end|>\n»<|im_start|>user\n1+1?\
        <|im_end|>\n<|im_start|>assistant\n«<think>\nsum\n</think>\n\n2<|im_end|>\n»";
    assert_eq!(shown(&template_of(THINKING), &talk(&thoughts)), expected);

    // A message that only calls a function.
    let mut calls = talk(&["Hi", "", "12:00", "Noon", "Bye", "Bye"]);
    calls.messages[1].extra.insert("tool_calls".into(), json!([{ "name": "now" }, { "name": "here" }]));
    let text = shown(&template_of(THINKING), &calls);
    assert!(text.contains("assistant\n«<call>now\n<call>here<|im_end|>\n»<|im_start|>user\n12:00"), "{text}");
    assert!(text.contains("assistant\n«Noon<|im_end|>\n»"), "{text}");
}

#[test]
fn a_prompt_that_begins_an_empty_thought_is_masked_as_far_as_it_agrees() {
    let minimind = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\
        {{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}";
    let mut conversation = talk(&["Hi", "Hello", "1+1?", "2"]);
    conversation.messages[3].extra.insert("reasoning_content".into(), "sum".into());
    let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«Hello<|im_end|>\n»\
        <|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n«sum\n</think>\n\n2<|im_end|>\n»";
    assert_eq!(shown(&template_of(minimind), &conversation), expected);
}

#[test]
fn whether_the_model_thinks_is_said_to_the_template() {
    let asks = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined %}\
        {{ ' thinks' if enable_thinking else ' answers' }}{{ open_thinking }}{% endif %}";
    let prompt = |template: ChatTemplate| template.render_prompt(&talk(&["Hi"])).unwrap();
    assert_eq!(prompt(template_of(asks)), "Hi");
    assert_eq!(prompt(template_of(asks).thinking(true)), "Hi thinksTrue");
    assert_eq!(prompt(template_of(asks).thinking(false)), "Hi answersFalse");
}

#[test]
fn the_template_may_say_it_by_itself() {
    let blocks = "{% for m in messages %}{% if m.role == 'assistant' %}A:{%- generation -%} {{ m.content }}.\
        {%- endgeneration %}{% else %}U: {{ m.content }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}";
    let template = template_of(blocks);
    assert_eq!(shown(&template, &talk(&SUM)), "U: Hi\nA:«Hello.»\nU: 1+1?\nA:«2.»\n");
    assert_eq!(template.render_prompt(&talk(&SUM[..3])).unwrap(), "U: Hi\nA:Hello.\nU: 1+1?\nA:");
    // What Jinja leaves of line ends and blanks around and inside of a block.
    let spaced = "{% for m in messages %}\n  {% if m.role == 'assistant' %}\n    A\n    {% generation %}\n  {{ m.content }}\n   {% endgeneration %}\n  end\n  {%- endif %}\n{% endfor %}";
    assert_eq!(shown(&template_of(spaced), &talk(&SUM[..2])), "    A\n«  Hello\n»  end");
}

#[test]
fn system_and_tools_reach_the_template() {
    let template = template_of(
        "{% if tools %}T{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}\
         {% for call in m.tool_calls %}{{ call.name }}({{ call.arguments | tojson }}){% endfor %};{% endfor %}\
         {% if add_generation_prompt %}[assistant]{% endif %}",
    );
    let mut conversation = talk(&["Hi", ""]);
    conversation.system = Some("short".into());
    conversation.tools = Some(json!([{ "name": "now", "parameters": null }]));
    conversation.messages[1]
        .extra
        .insert("tool_calls".into(), json!([{ "name": "now", "arguments": { "zone": 1 } }]));
    let expected =
        "T[{\"name\": \"now\", \"parameters\": null}][system]short;[user]Hi;[assistant]«now({\"zone\": 1});»";
    assert_eq!(shown(&template, &conversation), expected);
}

#[test]
fn what_cannot_be_told_from_the_rest_is_refused() {
    // The answers stand together at the end.
    let template = template_of(
        "{% for m in messages if m.role == 'user' %}{{ m.content }}|{% endfor %}{% for m in messages if \
         m.role != 'user' %}{{ m.content }}{{ m.content }}{% endfor %}",
    );
    let error = template.render(&talk(&SUM)).unwrap_err().to_string();
    assert!(error.contains("renders message 2") && error.contains("{% generation %}"), "{error}");
    let error = template_of(CHATML).render(&talk(&["a\u{fdd0}b"])).unwrap_err().to_string();
    assert!(error.contains("U+FDD0"), "{error}");
}

#[test]
fn chains_of_operators_take_no_stack_of_the_caller() {
    let compile = |source: String| ChatTemplate::compile(source, Vec::new(), "t".into());
    for (begin, link, end) in [("", "not ", "1"), ("a", ".b", ""), ("'a'", "|trim", ""), ("1", "+1", "")] {
        let n_links = (super::compiled::MAX_SOURCE_BYTES - 100) / link.len();
        // It compiles or is refused, and the process goes on.
        drop(compile(format!("{{{{ {begin}{}{end} }}}}", link.repeat(n_links))));
        let error = compile(format!("{{{{ {begin}{}{end} }}}}", link.repeat(2 * n_links))).unwrap_err();
        assert!(error.to_string().contains("supported are at most 131072"), "{error}");
    }
}

#[test]
fn a_template_without_end_is_refused() {
    let render = |source: &str| template_of(source).render_prompt(&talk(&["Hi"])).unwrap_err();
    let error =
        render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}").to_string();
    assert!(
        error.contains("tokenizer_config.json: ") && error.contains("look for a loop without end"),
        "{error}"
    );
    let doubling = "{% set ns = namespace(text='%}', n=1) %}\n{% for i in range(60) %}{%- set ns.text = ns.text ~ ns.text -%}\
        {% endfor %}{{ ns.text }}";
    let error = render(doubling);
    assert!(matches!(error, Error::EndlessTemplate { .. }));
    let error = error.to_string();
    assert!(error.contains("takes more than 64 MiB to render a conversation"), "{error}");
}

/// Templates of people who mean harm. Each ends soon and in an error that names the file; none ends the process.
#[test]
#[ignore = "heavy"]
fn hostile_templates_end_in_errors() {
    let loops = "{% for i in range(99999) %}{% for j in range(99999) %}";
    let ends = "{% endfor %}{% endfor %}";
    let hostile: Vec<String> = [
        "{% set x = ''|indent(999999999999) %}",
        "{% set x = 'a\n'|indent(3000000000) %}",
        "{{ [1]|tojson(indent=999999999999) }}",
        "{{ [1]|tojson(indent=18446744073709551615) }}",
        "{{ '%999999999999d'|format(1) }}",
        "{{ '%.999999999f'|format(1.5) }}",
        "{{ '{:>999999999999}'.format(1) }}",
        "{% set x = 'x' * 99999999 %}{{ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x ~ x }}",
        "{% set x = [1] * 99999999 %}{{ x|list|length }}{{ (x + x + x)|list|length }}",
        "{{ ('x' * 9999999)|replace('x', 'y' * 9999999) }}",
        "{{ ('x' * 9999999)|list|join('y' * 99999) }}",
        "{{ ('x' * 9999999).replace('', 'y' * 9999) }}",
        "{{ ('x ' * 9999999).split() | map('upper') | list | sort | length }}",
        "{{ ('x' * 99999999).center(999999999) }}{{ ('x' * 99999999)|upper|title|lower }}",
        "{{ ('abc' * 9999999)|batch(1)|list|length }}",
        "{{ (range(99999)|list * 999)|groupby('x')|list }}",
        "{{ range(99999)|slice(999999999)|list|length }}",
        "{{ [0]|batch(999999999999, 'x')|list|length }}",
        "{{ ('x' * 9999999)|pprint|string|escape|tojson|urlencode }}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m(n) %}{{ caller() }}{% endmacro %}{% call m(1) %}{% call m(2) %}{{ ('x'*99999999) * 9 }}{% endcall %}{% endcall %}",
        "{% set ns = namespace(l=[]) %}LOOP{% set ns.l = ns.l + [('x' * 1000000) ~ i] %}END",
        "{% set ns = namespace(l=[]) %}LOOP{% set ns.l = [ns.l] %}END{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=1) %}LOOP{% set ns.l = {'a': ns.l, 'b': ns.l} %}END{{ ns.l|tojson }}",
        "{% set ns = namespace(l=1) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=1) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|string|length }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns|string|length }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns|tojson }}",
        "{% set a = namespace() %}{% set b = namespace() %}{% set a.o = b %}{% set b.o = a %}{{ (a ~ b)|length }}",
        "{% set a = namespace() %}{% set b = namespace() %}{% set a.o = a %}{% set b.o = b %}{{ a == b }}",
        "{% set ns = namespace(d={}) %}LOOP{% set ns.d = dict(ns.d, **{'k' ~ i ~ j: i}) %}END",
        "{% set ns = namespace(t='x') %}{% for i in range(60) %}{% set ns.t %}{{ ns.t }}{{ ns.t }}{% endset %}{% endfor %}",
        "LOOP{{ ('x' * 9999999)|length }}END",
        "LOOP{{ ('x' * 999999) ~ i }}END",
        "LOOP{{ range(99999)|sum }}END",
        "LOOP{{ range(99999)|list|unique|list|sort|length }}END",
        "{% include 'chat_template' %}",
        "{% import 'chat_template' as t %}{{ t }}",
        "{% from 'chat_template' import x %}{{ x }}",
        "{% set x = 9 ** 99999999 %}{{ 10 ** 38 * 10 ** 38 }}",
        "{{ -170141183460469231731687303715884105728 // -1 }}{{ 1 // 0 }}",
        "{{ 'abc'[::9223372036854775807] }}{{ range(9)[::-9223372036854775808]|list }}{{ undefined_function() }}",
        "{{ debug() }}{% for i in range(99999) %}{{ debug() * 9999 }}{% endfor %}",
    ]
    .iter()
    .map(|source| source.replace("LOOP", loops).replace("END", ends))
    .collect();
    let ends_in_an_error = |source: &String| {
        let begin = std::time::Instant::now();
        let rendered = ChatTemplate::compile(source.clone(), Vec::new(), "tokenizer_config.json".into())
            .and_then(|template| template.render_prompt(&talk(&["Hi"])));
        let (message, took) = (rendered.unwrap_err().to_string(), begin.elapsed());
        assert!(message.starts_with("tokenizer_config.json: the chat template "), "{source}: {message}");
        // Their processor time is bounded by two seconds.
        assert!(took.as_secs() < 60, "{source}: {took:?}");
    };
    // Memory and time are counted for each thread.
    std::thread::scope(|scope| {
        for first in 0..3 {
            let part = hostile.iter().skip(first).step_by(3);
            scope.spawn(|| part.for_each(ends_in_an_error));
        }
    });
}
