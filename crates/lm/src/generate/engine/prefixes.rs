//! The keys and values of the beginnings of earlier prompts, so that requests that begin alike read what they share once.
//!
//! They are kept in pages, which the caches of answers to prompts that begin alike hold together with this store. What a page
//! holds follows from the tokens up to its end and from how they are read. So a page is found by the page before it, its
//! own tokens and the reading: the tokens themselves, of which no two sets are taken for each other. A page holds what
//! reading the prompt again would give, bit by bit. That is why only positions that were read as a prompt are kept: those
//! of an answer were computed in another order.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_engine::Result;

use crate::model::{LayerCache, PageOfLayer, Turning};

/// The number of a page; no two pages ever have the same.
pub(super) type PageNumber = u64;

/// How a prompt is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reading {
    /// How its positions are turned.
    pub(super) turning: Turning,
    /// The adapter that reads it.
    pub(super) adapter: Option<usize>,
}

/// What a page follows from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The page before it, if it is not the first.
    before: Option<PageNumber>,
    reading: Reading,
    ids: Vec<u32>,
}

/// A page of each layer.
#[derive(Debug)]
struct Page {
    number: PageNumber,
    layers: Vec<Arc<PageOfLayer>>,
    /// Pages that follow it.
    n_next: usize,
    /// Which use of all was the last of it.
    last_use: u64,
}

/// The beginnings of earlier prompts.
#[derive(Debug)]
pub(super) struct Prefixes {
    pages: BTreeMap<Key, Page>,
    keys: BTreeMap<PageNumber, Key>,
    max_pages: usize,
    n_uses: u64,
    next_number: PageNumber,
}

impl Prefixes {
    /// Room for so many pages.
    pub(super) fn new(max_pages: usize) -> Prefixes {
        Prefixes { pages: BTreeMap::new(), keys: BTreeMap::new(), max_pages, n_uses: 0, next_number: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the page of this number is there.
    pub(super) fn holds(&self, number: PageNumber) -> bool {
        self.keys.contains_key(&number)
    }

    /// Adds the page of these tokens behind `before` to the cache, whose end it continues; its number, if it is there.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn share_with(
        &mut self,
        cache: &mut [LayerCache],
        before: Option<PageNumber>,
        reading: Reading,
        ids: &[u32],
    ) -> Result<Option<PageNumber>> {
        let key = Key { before, reading, ids: ids.to_vec() };
        let Some(page) = self.pages.get_mut(&key) else { return Ok(None) };
        self.n_uses += 1;
        page.last_use = self.n_uses;
        for (layer, page) in cache.iter_mut().zip(&page.layers) {
            layer.append_page(page)?;
        }
        Ok(Some(page.number))
    }

    /// Keeps the page of the cache that begins at a position and holds these tokens; its number, if it is kept. One
    /// that is there already takes the place of the cache's. The page that was not used for the longest time makes room, of those that no other follows.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn keep(
        &mut self,
        cache: &mut [LayerCache],
        first: usize,
        before: Option<PageNumber>,
        reading: Reading,
        ids: &[u32],
    ) -> Result<Option<PageNumber>> {
        // Behind a page that was given up nothing would be found.
        if self.max_pages == 0 || before.is_some_and(|before| !self.keys.contains_key(&before)) {
            return Ok(None);
        }
        let key = Key { before, reading, ids: ids.to_vec() };
        self.n_uses += 1;
        if let Some(page) = self.pages.get_mut(&key) {
            page.last_use = self.n_uses;
            for (layer, page) in cache.iter_mut().zip(&page.layers) {
                layer.share(first, page)?;
            }
            return Ok(Some(page.number));
        }
        if self.pages.len() >= self.max_pages && !self.give_up_one(before) {
            return Ok(None);
        }
        let layers = cache.iter().map(|layer| Ok(layer.page(first)?)).collect::<Result<_>>()?;
        let number = self.next_number;
        self.next_number += 1;
        self.follow(before, 1);
        self.keys.insert(number, key.clone());
        self.pages.insert(key, Page { number, layers, n_next: 0, last_use: self.n_uses });
        Ok(Some(number))
    }

    /// Gives up the page that was not used for the longest time and that no other follows, but for `kept`; whether there was
    /// one.
    fn give_up_one(&mut self, kept: Option<PageNumber>) -> bool {
        let ends = self.pages.iter().filter(|(_, page)| page.n_next == 0 && Some(page.number) != kept);
        let Some(key) = ends.min_by_key(|(_, page)| page.last_use).map(|(key, _)| key.clone()) else {
            return false;
        };
        if let Some(page) = self.pages.remove(&key) {
            self.keys.remove(&page.number);
        }
        self.follow(key.before, -1);
        true
    }

    /// Counts the pages that follow one.
    fn follow(&mut self, before: Option<PageNumber>, change: isize) {
        let page = before.and_then(|number| self.keys.get(&number)).and_then(|key| self.pages.get_mut(key));
        if let Some(page) = page {
            page.n_next = page.n_next.saturating_add_signed(change);
        }
    }
}
