//! A backend that holds the server to what it promises to models: whatever a client says, only that comes to them.

use crate::backend::{
    AnswerFormat, Backend, CallMarks, Model, Prompt, Refusal, Request, Sampling, ThoughtMarks,
};
use crate::conversation::{Call, Conversation, Tool};
use crate::events::{Alternative, Event, EventSender, Finished, StopReason, Token};
use crate::form::{Form, ReadForm, TextForm};

/// Tokens are bytes, and every answer comes at once.
pub struct Exact;

const CONTEXT_LENGTH: usize = 2048;

/// What it answers, as far as a request wants it: thoughts, text, a call, and the beginning of a character.
const ANSWER: &[u8] = b"<t>a</t>b\xc3\xa9<c>{\"name\": \"f\", \"arguments\": {}}</c>\xe4";

impl Backend for Exact {
    fn models(&self) -> Vec<Model> {
        let model = Model {
            name: "exact".to_owned(),
            parent: None,
            created: 0,
            context_length: CONTEXT_LENGTH,
            sampling: Sampling::OPENAI,
            fingerprint: String::new(),
        };
        vec![model]
    }

    fn render(&self, _: &str, conversation: &Conversation) -> Result<Prompt, Refusal> {
        assert!(!conversation.messages.is_empty());
        for name in ["messages", "tools", "add_generation_prompt", "continue_final_message"] {
            assert!(!conversation.template_options.contains_key(name), "{name}");
        }
        let text: String = conversation.messages.iter().map(|message| message.content.as_str()).collect();
        let marks = |open: &str, close: &str| (open.to_owned(), close.to_owned());
        let ((think, end_think), (call, end_call)) = (marks("<t>", "</t>"), marks("<c>", "</c>"));
        let format = AnswerFormat {
            thoughts: Some(ThoughtMarks { open: think, close: end_think, is_open: false }),
            calls: Some(CallMarks { open: call, close: Some(end_call), is_only_first: false }),
        };
        Ok(Prompt { ids: text.bytes().map(u32::from).collect(), text, format })
    }

    fn tokenize(&self, _: &str, text: &str, adds_special: bool) -> Result<Vec<u32>, Refusal> {
        Ok(adds_special.then_some(2).into_iter().chain(text.bytes().map(u32::from)).collect())
    }

    fn detokenize(&self, _: &str, ids: &[u32]) -> Result<Vec<Vec<u8>>, Refusal> {
        let unknown =
            |id: &u32| Refusal::Invalid { message: format!("There is no token {id}."), param: None };
        ids.iter().map(|id| u8::try_from(*id).map(|byte| vec![byte]).map_err(|_| unknown(id))).collect()
    }

    fn calls(&self, _: &str, text: &str, tools: &[Tool]) -> Option<Vec<Call>> {
        assert!(text.starts_with("<c>") && !tools.is_empty());
        let value: serde_json::Value =
            serde_json::from_str(text.strip_prefix("<c>")?.strip_suffix("</c>")?).ok()?;
        let name = value["name"].as_str()?.to_owned();
        let is_known = tools.iter().any(|tool| tool.name == name);
        is_known.then(|| vec![Call { id: None, name, arguments: value["arguments"].to_string() }])
    }

    fn read_form(&self, _: &str, form: &Form, _: &AnswerFormat) -> Result<ReadForm, Refusal> {
        assert!(form.text.is_some() || !form.calls.is_empty());
        assert!(form.calls.iter().all(|call| !call.name.is_empty() && call.arguments.value.is_object()));
        match &form.text {
            Some(TextForm::Json(schema)) => assert!(schema.value.is_object()),
            Some(TextForm::OneOf(texts)) => assert!(!texts.is_empty()),
            Some(TextForm::Regex(text) | TextForm::Lark(text) | TextForm::Gbnf(text)) => {
                assert!(text.len() <= 64 << 10)
            }
            Some(TextForm::Any) | None => {}
        }
        Ok(ReadForm::new(form.clone()))
    }

    fn submit(&self, request: Request, mut events: EventSender) -> Result<(), Refusal> {
        check(&request);
        let token = |byte: u8, n_top: Option<usize>| {
            let other = Alternative { id: 0, bytes: vec![0], logprob: -1.0 };
            Token {
                id: u32::from(byte),
                bytes: vec![byte],
                logprob: n_top.map(|_| -0.5),
                top: vec![other; n_top.unwrap_or(0)],
            }
        };
        events.send(Event::Started).unwrap();
        if request.prompt_logprobs.is_some() {
            let tokens = request.ids.iter().map(|id| token(*id as u8, request.prompt_logprobs));
            events.send(Event::Prompt(tokens.collect())).unwrap();
        }
        for byte in ANSWER.iter().take(request.max_tokens) {
            events.send(Event::Token(token(*byte, request.logprobs))).unwrap();
        }
        let reason = if request.max_tokens < ANSWER.len() { StopReason::Length } else { StopReason::Stop };
        events.send(Event::Finished(Finished { reason, n_cached_tokens: 0, timings: None })).unwrap();
        Ok(())
    }

    fn embed(&self, _: &str, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, Refusal> {
        assert!(texts.iter().all(|ids| !ids.is_empty() && ids.len() <= CONTEXT_LENGTH));
        Ok(texts.iter().map(|ids| vec![ids.len() as f32, ids[0] as f32]).collect())
    }

    fn score(&self, _: &str, texts: Vec<Vec<u32>>) -> Result<Vec<f32>, Refusal> {
        Ok(texts.iter().map(|ids| ids.len() as f32).collect())
    }
}

/// What the fields of [`Request`] and [`Sampling`] say of themselves.
fn check(request: &Request) {
    let sampling = &request.sampling;
    assert!((0.0..=2.0).contains(&sampling.temperature), "{sampling:?}");
    assert!(sampling.top_p > 0.0 && sampling.top_p <= 1.0, "{sampling:?}");
    assert!((0.0..1.0).contains(&sampling.min_p), "{sampling:?}");
    assert!(sampling.repetition_penalty > 0.0 && sampling.repetition_penalty.is_finite(), "{sampling:?}");
    for penalty in [sampling.presence_penalty, sampling.frequency_penalty] {
        assert!((-2.0..=2.0).contains(&penalty), "{sampling:?}");
    }
    let biases = &sampling.logit_bias;
    assert!(
        biases.iter().all(|(_, bias)| bias.is_finite()) && biases.windows(2).all(|two| two[0].0 != two[1].0)
    );
    assert!(!request.ids.is_empty() && request.ids.len() < CONTEXT_LENGTH);
    assert!(request.ids.len() + request.max_tokens <= CONTEXT_LENGTH);
    assert!(request.form.as_ref().is_none_or(|form| form.get::<Form>().is_some()));
    assert!(request.logprobs.is_none_or(|n| n <= 20) && request.stop_ids.len() <= 16);
}
