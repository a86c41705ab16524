//! Which architecture a compiler makes code for, so that a GPU can run it.

use super::Nvrtc;
use crate::error::{Error, Result};
use crate::libraries::{Cuda, Library};

/// The first versions of NVRTC that know an architecture.
const FIRST: [(u32, Cuda); 12] = [
    (80, (11, 0)),
    (86, (11, 1)),
    (87, (11, 4)),
    (88, (13, 0)),
    (89, (11, 8)),
    (90, (11, 8)),
    (100, (12, 8)),
    (101, (12, 8)),
    (103, (12, 9)),
    (110, (13, 0)),
    (120, (12, 8)),
    (121, (12, 9)),
];

impl Nvrtc {
    /// The architecture to compile for, so that a GPU of `arch`, such as `sm_103`, can run the code: its own, or where this
    /// version does not know that, the newest of the same family below it, whose code it runs as well.
    ///
    /// # Errors
    /// [`Error::UnknownArch`] where it knows none of the family.
    pub fn arch_for(&self, arch: &str, cuda: Option<Cuda>) -> Result<String> {
        let Some(known) = self.api.known_archs() else { return Ok(arch.to_owned()) };
        choose(arch, &known).ok_or_else(|| {
            let first = FIRST.into_iter().find(|(number, _)| Some(*number) == number_of(arch));
            let (needs, first) = match first {
                Some((_, (major, minor))) => {
                    (format!("NVRTC {major}.{minor} or newer"), Some((major, minor)))
                }
                None => ("a newer one".to_owned(), None),
            };
            // A driver of CUDA 12 takes what is of CUDA 12.
            let cuda = cuda.filter(|cuda| first.is_none_or(|first| first.0 <= cuda.0));
            Error::UnknownArch {
                version: self.version.clone(),
                file: self.file.clone(),
                arch: arch.to_owned(),
                help: format!("{needs} (`{}`)", Library::Nvrtc.command(cuda)),
            }
        })
    }
}

/// The number in the name of an architecture, such as 90 of `sm_90a`.
fn number_of(arch: &str) -> Option<u32> {
    arch.strip_prefix("sm_")?.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()
}

/// The own architecture, or the newest known one of the same family below it.
fn choose(arch: &str, known: &[u32]) -> Option<String> {
    let number = number_of(arch)?;
    if known.contains(&number) {
        return Some(arch.to_owned());
    }
    let below = known.iter().filter(|known| **known / 10 == number / 10 && **known < number).max()?;
    Some(format!("sm_{below}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_compiler_makes_code_of_the_same_family() {
        let of = |arch, known: &[u32]| choose(arch, known);
        let old = [80, 86, 89, 90, 100, 120];
        assert_eq!(of("sm_90a", &old).as_deref(), Some("sm_90a"));
        assert_eq!(of("sm_103", &old).as_deref(), Some("sm_100"));
        assert_eq!(of("sm_121", &old).as_deref(), Some("sm_120"));
        assert_eq!(of("sm_89", &[80, 86]).as_deref(), Some("sm_86"));
        assert_eq!(of("sm_100", &[80, 86, 89, 90]), None);
        // Code for a later one does not run on an earlier one.
        assert_eq!(of("sm_100", &[90, 103]), None);
    }
}
