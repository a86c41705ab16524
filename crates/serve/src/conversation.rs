//! What was said so far, as a chat template needs it.

use serde_json::{Map, Value};

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What holds for the whole conversation; `developer` is another word for it.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a function; `function` is another word for it.
    Tool,
}

impl Role {
    /// As it stands in messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// By which its result names it; calls that a backend finds in an answer have none yet.
    pub id: Option<String>,
    /// The name of the function.
    pub name: String,
    /// Its arguments: the text of a JSON value, usually of an object.
    pub arguments: String,
}

/// Something that was said.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// The text; parts of text are joined by line ends.
    pub content: String,
    /// The name of the speaker or of the function.
    pub name: Option<String>,
    /// What the model thought before it said this.
    pub reasoning: Option<String>,
    /// What the model calls.
    pub calls: Vec<Call>,
    /// Of the result of a function, which call it answers.
    pub call_id: Option<String>,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`, as it came.
    pub definition: Value,
}

/// What a model answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// What was said so far.
    pub messages: Vec<Message>,
    /// The functions that the model may call.
    pub tools: Vec<Tool>,
    /// Further variables of the template, such as `enable_thinking`. None is named `messages`, `tools`,
    /// `add_generation_prompt` or `continue_final_message`.
    pub template_options: Map<String, Value>,
    /// Whether the prompt ends with the head of an answer.
    pub adds_generation_prompt: bool,
    /// Whether the last message is a beginning that the model goes on with.
    pub continues_final_message: bool,
}
