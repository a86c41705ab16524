//! Which tiles of attention were measured to be the fastest, and whether cuDNN was faster: its entries in [`tables`].
//!
//! ```text
//! attention forward bf16 16 8 128 causal 1024 : own 128x32
//! attention backward bf16 16 8 128 causal 1024 : cudnn 64x64 128x32
//! ```
//!
//! These are the pass, the type, heads, heads of keys, elements of a head, `causal` or `full`, and the keys that a query sees at
//! most. An entry holds from that number on up to the one of the next entry. Then come who computes the pass, and the tiles of
//! the own kernels: of outputs, or of the gradients of keys and values and of those of queries. The own kernels also compute
//! what cuDNN has no plan for.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::{AttentionShape, Tile, TiledKernel, WGMMA_ARCH};
use crate::cudnn::{Choice, Pass};
use crate::driver::Device;
use crate::element::Element;
use crate::error::Result;
use crate::tables::{self, Kind, Take};

/// What an entry is for, besides the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pass: Pass,
    element: Element,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    causal: bool,
}

/// What was measured to be the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Who computes the pass.
    pub by: Choice,
    /// The tile of the forward pass, or of the gradients of keys and values.
    pub tile: Tile,
    /// That of the gradients of queries; of no meaning forward.
    pub of_queries: Tile,
}

/// The entries of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned {
    entries: HashMap<Key, BTreeMap<usize, Measured>>,
    /// Whether the GPU has tiles of warpgroups.
    has_wgmma: bool,
}

impl Key {
    /// That of a pass.
    pub fn of((shape, element, pass): (&AttentionShape, Element, Pass)) -> Key {
        let &AttentionShape { heads, kv_heads, head_dim, causal, .. } = shape;
        Key { pass, element, heads, kv_heads, head_dim, causal }
    }
}

/// The keys that a query sees at most.
fn seen(shape: &AttentionShape) -> usize {
    shape.window.map_or(shape.kv_len, |window| window.min(shape.kv_len))
}

impl fmt::Display for Key {
    /// As a table has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pass = if self.pass == Pass::Forward { "forward" } else { "backward" };
        let sight = if self.causal { "causal" } else { "full" };
        let Key { element, heads, kv_heads, head_dim, .. } = self;
        write!(f, "{pass} {element} {heads} {kv_heads} {head_dim} {sight}")
    }
}

impl Tuned {
    /// Those of the program for a GPU, and those of the file that `OARLOCK_CUDA_TUNED` names, which come first.
    ///
    /// # Errors
    /// [`Error::Table`](crate::Error::Table), or the driver's own.
    pub fn of(device: &Device) -> Result<Tuned> {
        let mut tuned = Tuned::empty(&device.arch()?);
        tables::read(device, Kind::Attention, &mut *tuned.taking())?;
        Ok(tuned)
    }

    /// What holds for a GPU of an architecture without any entry.
    pub fn empty(arch: &str) -> Tuned {
        Tuned { has_wgmma: arch == WGMMA_ARCH, ..Tuned::default() }
    }

    /// Takes over the entries for this GPU, before which those go that were there.
    fn taking(&mut self) -> Box<Take<'_>> {
        Box::new(|line, is_ours| {
            let (key, keys, measured) = entry(line)?;
            if is_ours {
                self.entries.entry(key).or_default().insert(keys, measured);
            }
            Ok(())
        })
    }

    /// Puts in or replaces what is known of the passes of a shape and of those with more keys.
    pub fn insert(&mut self, of: (&AttentionShape, Element, Pass), measured: Measured) {
        self.entries.entry(Key::of(of)).or_default().insert(seen(of.0), measured);
    }

    /// The entry that holds for a pass.
    pub fn get(&self, of: (&AttentionShape, Element, Pass)) -> Option<&Measured> {
        Some(self.entries.get(&Key::of(of))?.range(..=seen(of.0)).next_back()?.1)
    }

    /// The tile of a kernel, on a GPU whose blocks have so much shared memory: where there is no entry, or where that of the
    /// entry does not fit, the usual one for such a GPU or the largest below it that fits. None where none fits.
    pub fn tile(
        &self,
        (shape, element): (&AttentionShape, Element),
        kernel: TiledKernel,
        shared_bytes: usize,
    ) -> Option<Tile> {
        let (pass, is_second) = match kernel {
            TiledKernel::Forward => (Pass::Forward, false),
            TiledKernel::BackwardKv => (Pass::Backward, false),
            TiledKernel::BackwardQ => (Pass::Backward, true),
        };
        let measured = self.get((shape, element, pass));
        let tile = measured.map(|measured| if is_second { measured.of_queries } else { measured.tile });
        let fits = |tile: &Tile| shape.tiled(kernel, element, *tile).shared_bytes <= shared_bytes;
        tile.filter(fits).or_else(|| shape.default_tile(kernel, element, (self.has_wgmma, shared_bytes)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As the lines of a table.
    pub fn lines(&self) -> String {
        let line = |key: &Key, keys: &usize, measured: &Measured| {
            let by = if measured.by == Choice::Cudnn { "cudnn" } else { "own" };
            let second = match key.pass {
                Pass::Forward => String::new(),
                Pass::Backward => format!(" {}", measured.of_queries),
            };
            format!("attention {key} {keys} : {by} {}{second}\n", measured.tile)
        };
        let of_key = |(key, all): (&Key, &BTreeMap<usize, Measured>)| -> Vec<String> {
            all.iter().map(|(keys, measured)| line(key, keys, measured)).collect()
        };
        let mut lines: Vec<String> = self.entries.iter().flat_map(of_key).collect();
        lines.sort();
        lines.concat()
    }
}

fn entry(line: &str) -> std::result::Result<(Key, usize, Measured), &'static str> {
    let (key, measured) = line.split_once(':').ok_or("there is no `:`")?;
    let words: Vec<&str> = key.split_whitespace().collect();
    let [pass, element, heads, kv_heads, head_dim, sight, keys] = words[..] else {
        return Err("attention has seven words before the `:`");
    };
    let pass = match pass {
        "forward" => Pass::Forward,
        "backward" => Pass::Backward,
        _ => return Err("a pass is forward or backward"),
    };
    let causal = match sight {
        "causal" => true,
        "full" => false,
        _ => return Err("attention is causal or full"),
    };
    let elements = [Element::F32, Element::BF16, Element::F16];
    let element = elements.into_iter().find(|own| own.to_string() == element);
    let element = element.ok_or("attention has no such type")?;
    let number = |word: &str| word.parse::<usize>().map_err(|_| "a size is not a number");
    let (heads, kv_heads, head_dim) = (number(heads)?, number(kv_heads)?, number(head_dim)?);
    let words: Vec<&str> = measured.split_whitespace().collect();
    let (by, tiles) = words.split_first().ok_or("nothing says who computes it")?;
    let by = match *by {
        "own" => Choice::Own,
        "cudnn" => Choice::Cudnn,
        _ => return Err("who computes it is own or cudnn"),
    };
    let tile = |word: &&str| Tile::from_words(word).ok_or("there is no such tile");
    let (tile, of_queries) = match (pass, tiles) {
        (Pass::Forward, [one]) => (tile(one)?, tile(one)?),
        (Pass::Backward, [kv, q]) => (tile(kv)?, tile(q)?),
        (Pass::Forward, _) => return Err("a forward pass has one tile"),
        (Pass::Backward, _) => return Err("a backward pass has two tiles"),
    };
    let key = Key { pass, element, heads, kv_heads, head_dim, causal };
    Ok((key, number(keys)?, Measured { by, tile, of_queries }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Gpu;

    const LINES: &str = "attention backward bf16 4 2 64 causal 1024 : cudnn 64x64 128x32\n\
                         attention forward bf16 4 2 64 causal 1024 : own 128x32\n\
                         attention forward bf16 4 2 64 causal 4096 : own 128x128\n";
    const SHAPE: AttentionShape = AttentionShape {
        batch: 2,
        q_len: 1024,
        kv_len: 1024,
        kv_capacity: 1024,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        scale: 1.0,
        causal: true,
        window: None,
        logit_cap: None,
    };
    /// Of an H100.
    const SHARED: usize = 227 << 10;

    fn read(text: &str) -> Result<Tuned> {
        let mut tuned = Tuned::default();
        let gpu = Gpu { name: "NVIDIA H200", arch: "sm_90a" };
        tables::read_text(("a table", text), &gpu, Kind::Attention, &mut *tuned.taking())?;
        Ok(tuned)
    }

    #[test]
    fn entries_are_read_as_they_are_written_and_only_for_their_gpu() {
        let product = "bf16 f32 1 768 2048 8192 tn - : 66 20 1 0 0 0 9 0 3\n";
        let tuned = read(&format!("arch sm_90\n{product}{LINES}")).expect("a table");
        assert_eq!((tuned.len(), tuned.lines().as_str()), (3, LINES));
        assert!(read(&format!("arch sm_80\n{LINES}")).expect("a table").is_empty());
        assert!(read(&format!("arch sm_90\ndevice NVIDIA H100\n{LINES}")).expect("a table").is_empty());
    }

    #[test]
    fn an_entry_holds_from_its_keys_on() {
        let tuned = read(&format!("arch sm_90\n{LINES}")).expect("a table");
        let tile = |shape: AttentionShape| {
            let tile = tuned.tile((&shape, Element::BF16), TiledKernel::Forward, SHARED);
            tile.expect("it fits").to_string()
        };
        assert_eq!(tile(SHAPE), "128x32");
        assert_eq!(tile(AttentionShape { kv_len: 1023, ..SHAPE }), "64x64");
        assert_eq!(tile(AttentionShape { kv_len: 4095, batch: 7, ..SHAPE }), "128x32");
        assert_eq!(tile(AttentionShape { kv_len: 9000, ..SHAPE }), "128x128");
        assert_eq!(tile(AttentionShape { kv_len: 9000, window: Some(2000), ..SHAPE }), "128x32");
        for other in [AttentionShape { heads: 8, ..SHAPE }, AttentionShape { causal: false, ..SHAPE }] {
            assert_eq!(tile(other), "64x64");
        }
        let of =
            |kernel, shared| tuned.tile((&SHAPE, Element::BF16), kernel, shared).map(|tile| tile.to_string());
        assert_eq!(of(TiledKernel::BackwardKv, SHARED).as_deref(), Some("64x64"));
        assert_eq!(of(TiledKernel::BackwardQ, SHARED).as_deref(), Some("128x32"));
        // What does not fit is not launched.
        assert_eq!(of(TiledKernel::BackwardQ, 40 << 10).as_deref(), Some("64x32"));
        assert_eq!(of(TiledKernel::BackwardQ, 15 << 10).as_deref(), Some("16x16"));
        assert_eq!(of(TiledKernel::BackwardQ, 1 << 10), None);
    }

    #[test]
    fn a_gpu_with_warpgroups_takes_their_tiles_where_nothing_was_measured() {
        let tile = |tuned: &Tuned, element, kernel, shared| {
            tuned.tile((&SHAPE, element), kernel, shared).map(|tile| tile.to_string())
        };
        let hopper = Tuned::empty("sm_90a");
        let of = |kernel| tile(&hopper, Element::BF16, kernel, SHARED);
        assert_eq!(
            TiledKernel::ALL.map(of),
            ["64x64-wgmma", "64x128-wgmma", "64x64-wgmma"].map(|t| Some(t.into()))
        );
        // Tensor cores do not multiply f32, and other GPUs have no warpgroups.
        for (tuned, element) in [(&hopper, Element::F32), (&Tuned::empty("sm_100"), Element::BF16)] {
            let tile = tile(tuned, element, TiledKernel::BackwardKv, SHARED).expect("it fits");
            assert!(!tile.ends_with("wgmma"), "{tile}");
        }
        // What does not fit makes way for the usual tile, and an entry for neither.
        assert_eq!(tile(&hopper, Element::BF16, TiledKernel::BackwardKv, 60 << 10).as_deref(), Some("64x64"));
        let mut measured = hopper.clone();
        let one = Tile::from_words("128x32-wgmma").expect("a tile");
        let by = Measured { by: Choice::Own, tile: one, of_queries: one };
        measured.insert((&SHAPE, Element::BF16, Pass::Forward), by);
        let entry = "attention forward bf16 4 2 64 causal 1024 : own 128x32-wgmma\n";
        assert_eq!(measured.lines(), entry);
        assert_eq!(
            tile(&measured, Element::BF16, TiledKernel::Forward, SHARED).as_deref(),
            Some("128x32-wgmma")
        );
    }

    #[test]
    fn an_entry_that_is_none_is_an_error_that_names_it() {
        for (line, says) in [
            ("forward bf16 4 2 64", "line 2: there is no `:`"),
            ("forward bf16 4 2 64 causal : own 64x64", "seven words"),
            ("sideways bf16 4 2 64 causal 8 : own 64x64", "forward or backward"),
            ("forward i32 4 2 64 causal 8 : own 64x64", "no such type"),
            ("forward bf16 4 2 64 partly 8 : own 64x64", "causal or full"),
            ("forward bf16 4 2 x causal 8 : own 64x64", "not a number"),
            ("forward bf16 4 2 64 causal 8 :", "who computes it"),
            ("forward bf16 4 2 64 causal 8 : me 64x64", "own or cudnn"),
            ("forward bf16 4 2 64 causal 8 : own 64x48", "no such tile"),
            ("forward bf16 4 2 64 causal 8 : own 64x64 64x64", "one tile"),
            ("backward bf16 4 2 64 causal 8 : own 64x64", "two tiles"),
        ] {
            let error = read(&format!("arch sm_90\nattention {line}")).expect_err(line).to_string();
            assert!(error.contains(says) && error.contains("a table, line 2"), "{error}");
        }
    }
}
