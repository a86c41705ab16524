//! What a word may become.

/// Something that may stand in the place of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    Word { value: String, about: String },
    Part { value: String, about: String },
    Files { behind: String },
    Folders { behind: String },
}

impl Candidate {
    pub(super) fn word(value: impl Into<String>, about: impl Into<String>) -> Candidate {
        Candidate::Word { value: value.into(), about: about.into() }
    }

    pub(super) fn part(value: impl Into<String>, about: impl Into<String>) -> Candidate {
        Candidate::Part { value: value.into(), about: about.into() }
    }

    pub(super) fn files(behind: &str) -> Candidate {
        Candidate::Files { behind: behind.to_owned() }
    }

    /// Whether it goes on from what is written.
    pub(super) fn continues(&self, current: &str) -> bool {
        match self {
            Candidate::Word { value, .. } | Candidate::Part { value, .. } => value.starts_with(current),
            Candidate::Files { behind } | Candidate::Folders { behind } => {
                current.starts_with(behind.as_str())
            }
        }
    }

    /// Its line of the answer.
    pub(super) fn line(&self) -> String {
        // A description has one line.
        let one_line = |about: &str| about.split_whitespace().collect::<Vec<_>>().join(" ");
        match self {
            Candidate::Word { value, about } => format!("w{value}\t{}\n", one_line(about)),
            Candidate::Part { value, about } => format!("p{value}\t{}\n", one_line(about)),
            Candidate::Files { behind } => format!("f{behind}\n"),
            Candidate::Folders { behind } => format!("d{behind}\n"),
        }
    }
}
