//! A few words that one rank writes and any rank may read at any time: a sequence lock without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::stamp::{text, write_text};

/// `W` words with a single writer. A reader gets a whole value, or nothing if the writer died half-way. All zero bytes
/// are a valid value.
#[repr(C)]
pub(super) struct SeqLock<const W: usize> {
    version: AtomicU64,
    words: [AtomicU64; W],
}

impl<const W: usize> SeqLock<W> {
    const ATTEMPTS: usize = 10_000;

    pub(super) fn write(&self, words: &[u64; W]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, &word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    pub(super) fn read(&self) -> Option<[u64; W]> {
        for _ in 0..Self::ATTEMPTS {
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return Some(words);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Writes as much of a text as fits.
    pub(super) fn write_text(&self, text: &str) {
        let mut words = [0u64; W];
        write_text(bytemuck::cast_slice_mut(&mut words), text);
        self.write(&words);
    }

    pub(super) fn read_text(&self) -> String {
        self.read().map_or_else(String::new, |words| text(bytemuck::cast_slice(&words)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_whole_values_only() {
        let cell = SeqLock::<8> { version: AtomicU64::new(0), words: Default::default() };
        std::thread::scope(|s| {
            s.spawn(|| (1..50_000u64).for_each(|i| cell.write(&[i; 8])));
            let mut last = 0;
            while last < 49_999 {
                let Some(words) = cell.read() else { continue };
                assert!(words.iter().all(|&w| w == words[0]) && words[0] >= last, "{words:?} after {last}");
                last = words[0];
            }
        });
    }

    #[test]
    fn a_writer_that_died_half_way_hides_the_value() {
        let cell = SeqLock::<2> { version: AtomicU64::new(7), words: Default::default() };
        assert_eq!(cell.read(), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let cell = SeqLock::<1> { version: AtomicU64::new(0), words: Default::default() };
        cell.write_text("schönen Tag");
        assert_eq!(cell.read_text(), "schönen");
        cell.write_text("sieben7ö");
        assert_eq!(cell.read_text(), "sieben7");
    }
}
