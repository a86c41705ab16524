//! The words `key=value` of an example that a bench runs.

use std::collections::HashMap;

use oarlock::{DType, Error, Result};

/// What the command line says, with defaults for the rest.
pub struct Settings(HashMap<String, String>);

impl Settings {
    /// The words `key=value`.
    pub fn read() -> Result<Settings> {
        let pairs = std::env::args().skip(1).map(|argument| match argument.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(Error::Usage(format!("\"{argument}\" is not of the form key=value"))),
        });
        Ok(Settings(pairs.collect::<Result<_>>()?))
    }

    /// A word.
    pub fn word<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.0.get(key).map_or(default, String::as_str)
    }

    /// A number.
    pub fn number(&self, key: &str, default: usize) -> Result<usize> {
        let Some(value) = self.0.get(key) else { return Ok(default) };
        value.parse().map_err(|_| Error::Usage(format!("{key}={value}: give a number")))
    }

    /// f32 or bf16.
    pub fn dtype(&self) -> Result<DType> {
        match self.word("dtype", "f32") {
            "f32" => Ok(DType::F32),
            "bf16" => Ok(DType::BF16),
            other => Err(Error::Usage(format!("dtype={other}: give f32 or bf16"))),
        }
    }
}
