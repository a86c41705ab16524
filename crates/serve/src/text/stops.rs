//! Strings that end an answer: no part of them is ever shown.

use super::overlap::overlap;

/// Passes text on up to the first stop string that is complete.
#[derive(Debug)]
pub(crate) struct Stops {
    stops: Vec<String>,
    /// What could be the beginning of one.
    held: String,
    n_passed: usize,
    found: Option<String>,
}

impl Stops {
    /// Empty strings end nothing.
    pub(crate) fn new(mut stops: Vec<String>) -> Stops {
        stops.retain(|stop| !stop.is_empty());
        Stops { stops, held: String::new(), n_passed: 0, found: None }
    }

    /// The text that is certainly before any of them. Of several in the same place the one that is complete first ends the
    /// text, and of those the one that begins first, however the text comes in pieces.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held += text;
        let found = self.stops.iter().filter_map(|stop| {
            let begin = self.held.find(stop.as_str())?;
            Some((begin + stop.len(), begin, stop))
        });
        let n_shown = match found.min() {
            Some((_, begin, stop)) => {
                self.found = Some(stop.clone());
                begin
            }
            None => {
                let longest = self.stops.iter().map(|stop| overlap(&self.held, stop)).max();
                self.held.len() - longest.unwrap_or(0)
            }
        };
        let rest = self.held.split_off(n_shown);
        let shown = std::mem::replace(&mut self.held, rest);
        self.n_passed += shown.len();
        if self.found.is_some() {
            self.held = String::new();
        }
        shown
    }

    /// What was held back, when nothing more comes.
    pub(crate) fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        self.n_passed += rest.len();
        rest
    }

    /// The stop string that has come.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// How many bytes of text were passed on.
    pub(crate) fn n_passed(&self) -> usize {
        self.n_passed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Stops;

    /// The pieces that come out, and whether a stop string was found.
    fn pieces(stops: &[&str], text: &[&str]) -> (Vec<String>, bool) {
        let mut stops = Stops::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut pieces: Vec<String> = text.iter().map(|piece| stops.push(piece)).collect();
        pieces.push(stops.finish());
        (pieces, stops.found().is_some())
    }

    #[test]
    fn a_beginning_is_held_back_until_it_is_none() {
        let said = |pieces: &[&str]| pieces.iter().map(|piece| (*piece).to_owned()).collect::<Vec<_>>();
        assert_eq!(pieces(&["END"], &["a E", "N", "x"]), (said(&["a ", "", "ENx", ""]), false));
        assert_eq!(pieces(&["END"], &["a E", "N", "D b"]), (said(&["a ", "", "", ""]), true));
        assert_eq!(pieces(&["END"], &["a EN"]), (said(&["a ", "EN"]), false));
        assert_eq!(pieces(&["END", "N"], &["a END"]), (said(&["a E", ""]), true));
        assert_eq!(pieces(&[""], &["a"]), (said(&["a", ""]), false));
        assert_eq!(pieces(&["好"], &["你", "好"]), (said(&["你", "", ""]), true));
    }

    proptest! {
        /// However it is cut, a text ends where it ends when it comes character by character.
        #[test]
        fn pieces_make_no_difference(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            cuts in prop::collection::vec(0_usize..24, 0..6),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let cut: Vec<&str> = cuts.windows(2).map(|two| &text[two[0]..two[1]]).collect();
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            let (a, a_is_over) = pieces(&stops, &cut);
            let (b, b_is_over) = pieces(&stops, &characters);
            let a = a.concat();
            prop_assert_eq!(&a, &b.concat());
            prop_assert_eq!(a_is_over, b_is_over);
            prop_assert!(text.starts_with(&a));
            prop_assert!(stops.iter().all(|stop| !a.contains(stop)));
            prop_assert_eq!(a_is_over, stops.iter().any(|stop| text.contains(stop)));
        }
    }
}
