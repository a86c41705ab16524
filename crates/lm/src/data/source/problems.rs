//! What records can be wrong in, whatever file they stand in.

use std::path::Path;

use super::super::error::{Error, Result};

/// Longer records are taken for a broken file; the bound keeps memory bounded.
pub(super) const MAX_RECORD_BYTES: u64 = 1 << 28;

/// What to do about a record that is not valid UTF-8.
pub(super) const REENCODE: &str = "save the file as UTF-8";

/// Passes items on up to and including the first error.
pub(super) fn until_error<T>(stream: impl Iterator<Item = Result<T>>) -> impl Iterator<Item = Result<T>> {
    stream.scan(false, |failed, item| {
        if *failed {
            return None;
        }
        *failed = item.is_err();
        Some(item)
    })
}

/// What to do about a missing text column.
pub(super) const NAME_COLUMN: &str =
    "name the text column in dataset_info.json: \"columns\": {\"prompt\": \"...\"}";

/// The error for a record or file without the text column.
#[cfg(any(feature = "csv", feature = "parquet"))]
pub(super) fn missing_column(path: &Path, line: u64, wanted: &[String], found: &[String]) -> Error {
    Error::record(path, line, no_column(wanted, found), NAME_COLUMN)
}

/// Columns that an error lists.
const LISTED: usize = 40;

pub(super) fn no_column(wanted: &[String], found: &[String]) -> String {
    match found {
        [] => format!("no column {}: there are no columns", quoted(wanted, " or ")),
        found if found.len() > LISTED => format!(
            "no column {}; the first of {} columns are {}",
            quoted(wanted, " or "),
            found.len(),
            quoted(&found[..LISTED], ", ")
        ),
        found => format!("no column {}; the columns are {}", quoted(wanted, " or "), quoted(found, ", ")),
    }
}

/// The error for a text column that holds something else.
pub(super) fn wrong_type(path: &Path, line: u64, column: &str, found: &str) -> Error {
    let cause = format!("column \"{column}\" holds {found} where a string is expected");
    Error::record(
        path,
        line,
        cause,
        "write the text as a string, each in a record of its own, or remove the record",
    )
}

fn quoted(names: &[String], separator: &str) -> String {
    const SHOWN: usize = 12;
    let mut out: Vec<String> = names.iter().take(SHOWN).map(|n| format!("\"{n}\"")).collect();
    if names.len() > SHOWN {
        out.push(format!("… ({} in all)", names.len()));
    }
    out.join(separator)
}
