//! Where the configuration file of Accelerate lies.

use crate::config::Problems;
use crate::config::accelerate::File;
use crate::front::accelerate::cluster::default_file;

/// The file that is named, else the default one if it is there.
///
/// # Errors
/// If the named one cannot be read, or anything in it is wrong.
pub(super) fn read(
    named: Option<&str>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<File>, Problems> {
    let default = default_file(environment);
    match named {
        Some(path) => File::read(path).map(Some),
        None if default.is_file() => File::read(&default.display().to_string()).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_default_file_lies_in_the_cache_of_hugging_face() {
        for (variables, expected) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/accelerate/default_config.yaml"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")], "/c/huggingface/accelerate/default_config.yaml"),
            (
                &[("HOME", "/u"), ("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/hf")],
                "/hf/accelerate/default_config.yaml",
            ),
            (&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/accelerate/default_config.yaml"),
            (&[("HOME", "/u"), ("HF_HOME", "")], "/u/.cache/huggingface/accelerate/default_config.yaml"),
        ] {
            let look_up = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(default_file(&look_up), Path::new(expected), "{variables:?}");
        }
    }
}
