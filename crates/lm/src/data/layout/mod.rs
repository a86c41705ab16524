//! Chat layouts by name, as LLaMA-Factory registers them: which text stands around each message, and where it ends.
//!
//! `layouts.json` holds one line for each (bench/golden/make_layouts.py writes it). A conversation becomes tokens slot by
//! slot, each text by itself, so that the boundaries of slots are boundaries of tokens.

mod jinja;
mod parts;
mod tools;
mod turns;

use oarlock_config::config::ChatArgs;
use oarlock_config::nearest::nearest_of;
use serde_json::{Map, Value};

use super::error::{Error, Result};

pub(super) use parts::Layout;
use parts::setting;
pub(super) use tools::ToolFormat;
pub(super) use turns::Turn;

/// The layouts, by name.
const LAYOUTS: &str = include_str!("layouts.json");

impl Layout {
    /// The layout of this name.
    ///
    /// # Errors
    /// A name that is none.
    pub(super) fn named(name: &str) -> Result<Layout> {
        let known: Map<String, Value> = serde_json::from_str(LAYOUTS)
            .map_err(|e| setting(format!("the table of layouts is broken: {e}")))?;
        let Some(found) = known.get(name) else {
            let names = || known.keys().map(String::as_str);
            // Who names a model more exactly than its template is called.
            let begins = || {
                names()
                    .filter(|known| known.len() > 3 && name.starts_with(known))
                    .max_by_key(|known| known.len())
            };
            let hint = match nearest_of(name, names()).or_else(begins) {
                Some(near) => format!("did you mean {near}?"),
                None => format!(
                    "there are {}; without the key the tokenizer's own chat template is taken",
                    names().collect::<Vec<_>>().join(", ")
                ),
            };
            return Err(setting(format!("Template {name} does not exist; {hint}")));
        };
        serde_json::from_value(found.clone())
            .map_err(|e| setting(format!("the layout {name} is broken: {e}")))
    }

    /// With what the configuration changes of it.
    ///
    /// # Errors
    /// A tool format that is none, or `train_on_prompt` where the layout does not allow it.
    pub(super) fn with(mut self, args: &ChatArgs) -> Result<Layout> {
        if args.train_on_prompt && self.efficient_eos {
            return Err(Error::Setting {
                key: "train_on_prompt",
                cause: "Current template does not support `train_on_prompt`: its answers have no end token of their own"
                    .into(),
            });
        }
        if let Some(name) = &args.tool_format {
            ToolFormat::named(name)?;
            self.tools = name.clone().into();
            self.calls = name.clone().into();
        }
        if let Some(system) = &args.default_system {
            self.default_system.clone_from(system);
        }
        Ok(self)
    }
}

/// The names of all layouts, in their order.
pub fn layout_names() -> Vec<String> {
    let known: Map<String, Value> = serde_json::from_str(LAYOUTS).unwrap_or_default();
    known.into_iter().map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests;
