//! What a checkpoint of another program is refused for.

use std::path::Path;

use super::error::{ImportError, ImportProblem};
use super::pickle::View;
use crate::error::{Error, Result};

pub(super) fn refused(path: &Path, problem: impl Into<ImportProblem>) -> Error {
    ImportError { path: path.to_path_buf(), problem: problem.into() }.into()
}

pub(super) fn unexpected(path: &Path, what: &str, expected: &str) -> Error {
    refused(path, ImportProblem::Unexpected { what: what.into(), expected: expected.into() })
}

pub(super) fn unsupported(path: &Path, why: impl Into<String>) -> Error {
    refused(path, ImportProblem::Unsupported(why.into()))
}

pub(super) fn missing(path: &Path, what: impl Into<String>) -> Error {
    refused(path, ImportProblem::Missing(what.into()))
}

pub(super) fn need<'a>(path: &Path, view: View<'a>, name: &str) -> Result<View<'a>> {
    view.get(name).ok_or_else(|| missing(path, name))
}
