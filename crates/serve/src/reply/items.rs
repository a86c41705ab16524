//! An answer as a list of items, for APIs that give thoughts, text and calls in the order in which they come.

use crate::conversation::Call;
use crate::ids;
use crate::text::sections::Part;

/// A part of an answer that is complete, or grows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    Thought(String),
    Text(String),
    Call { id: String, call: Call },
}

/// What happens to an item, which has this number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// It begins, and is empty but for the name of a call.
    Begin(usize, Item),
    /// This is added to it.
    Piece(usize, String),
    /// It is complete.
    End(usize, Item),
}

/// The items of an answer so far.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(crate) done: Vec<Item>,
    open: Option<Item>,
}

impl Items {
    /// Takes a part of the answer. `prefix` begins the ids of calls.
    pub(crate) fn push(&mut self, part: Part, prefix: &str) -> Vec<Step> {
        let mut steps = Vec::new();
        match part {
            Part::Text(piece) => {
                if !matches!(self.open, Some(Item::Text(_))) {
                    steps.extend(self.end());
                    steps.push(self.begin(Item::Text(String::new())));
                }
                steps.push(self.grow(piece));
            }
            Part::Thought(piece) => {
                if !matches!(self.open, Some(Item::Thought(_))) {
                    steps.extend(self.end());
                    steps.push(self.begin(Item::Thought(String::new())));
                }
                steps.push(self.grow(piece));
            }
            Part::Calls(calls) => {
                for call in calls {
                    steps.extend(self.end());
                    let arguments = call.arguments.clone();
                    let call = Call { arguments: String::new(), ..call };
                    steps.push(self.begin(Item::Call { id: ids::name(prefix), call }));
                    steps.push(self.grow(arguments));
                }
            }
        }
        steps
    }

    /// Nothing more comes.
    pub(crate) fn end(&mut self) -> Option<Step> {
        let item = self.open.take()?;
        self.done.push(item.clone());
        Some(Step::End(self.done.len() - 1, item))
    }

    fn begin(&mut self, item: Item) -> Step {
        self.open = Some(item.clone());
        Step::Begin(self.done.len(), item)
    }

    fn grow(&mut self, piece: String) -> Step {
        match &mut self.open {
            Some(Item::Text(text) | Item::Thought(text)) => *text += &piece,
            Some(Item::Call { call, .. }) => call.arguments += &piece,
            None => {}
        }
        Step::Piece(self.done.len(), piece)
    }
}
