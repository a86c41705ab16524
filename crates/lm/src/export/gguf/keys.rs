//! The keys of a GGUF file that begin with the name of its architecture.

use oarlock_engine::Result;
use oarlock_gguf::{Metadata, ToValue};

use super::settings::Settings;

/// The keys of an architecture.
pub(super) struct Keys<'a> {
    architecture: &'a str,
    pub(super) settings: &'a Settings,
    metadata: &'a mut Metadata,
}

impl<'a> Keys<'a> {
    pub(super) fn new(architecture: &'a str, settings: &'a Settings, metadata: &'a mut Metadata) -> Keys<'a> {
        Keys { architecture, settings, metadata }
    }

    /// Sets a key of the architecture.
    pub(super) fn set(&mut self, key: &str, value: impl ToValue) -> Result<()> {
        let key = format!("{}.{key}", self.architecture);
        self.metadata.set(&key, value).map_err(|error| self.settings.refuse(error))
    }
}
