//! What a new GPU is asked first: whether each word that kernels are written in means there what it should.
//!
//! The kernels of `probe.cu` use one word each. Their inputs are chosen so that a right answer has no rounding error but
//! for `exp2_fast`, and the order is that in which one word needs another, so the first that fails is the wrong one.

mod products;

use std::sync::Arc;

use crate::Element::{self, BF16, F16, F32};
use crate::blas::Form;
use crate::cache::Cache;
use crate::driver::{Arg, Context, DeviceMemory, Driver, Stream};
use crate::error::{Error, Result};
use crate::geometry::{self, Geometry};
use crate::libraries::Libraries;
use crate::modules::Modules;
use crate::table;

const WARP: Geometry = Geometry { grid: [1, 1, 1], threads: 32, shared_bytes: 0 };

/// A GPU whose words are asked about.
pub struct Probe {
    modules: Arc<Modules>,
    stream: Arc<Stream>,
    context: Context,
}

/// What a word gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whether it was right, twice.
    pub is_right: bool,
    /// How many numbers there were, or the first wrong one.
    pub detail: String,
}

type Run = fn(&Probe, Element) -> Result<(Vec<u32>, Vec<u32>)>;

/// A word, a function of `words.h` that every kernel uses, or a product by the own kernels.
pub struct Word {
    name: &'static str,
    element: Element,
    run: Run,
}

impl Word {
    const fn new(name: &'static str, element: Element, run: Run) -> Word {
        Word { name, element, run }
    }

    /// As `words.h` calls it, with the type of its elements.
    pub fn name(&self) -> String {
        format!("{} {}", self.name, self.element)
    }
}

/// All of them, those first that others need.
pub const WORDS: &[Word] = &[
    Word::new("put and to_f32", BF16, |gpu, of| gpu.rounding(of)),
    Word::new("put and to_f32", F16, |gpu, of| gpu.rounding(of)),
    Word::new("pair", BF16, |gpu, of| gpu.pairs(of)),
    Word::new("pair", F16, |gpu, of| gpu.pairs(of)),
    Word::new("mul_rn", F32, |gpu, _| gpu.rounded_product()),
    Word::new("exp2_fast", F32, |gpu, _| gpu.powers()),
    Word::new("shuffle_xor", F32, |gpu, _| gpu.sums(0)),
    Word::new("warp_sum", F32, |gpu, _| gpu.sums(1)),
    Word::new("warp_max", F32, |gpu, _| gpu.sums(2)),
    Word::new("team_sum", F32, |gpu, _| gpu.sums(3)),
    Word::new("team_max", F32, |gpu, _| gpu.sums(4)),
    Word::new("cp_async", BF16, |gpu, of| gpu.copies(of, 0..256)),
    Word::new("cp_async", F16, |gpu, of| gpu.copies(of, 0..256)),
    Word::new("cp_async of zeros", BF16, |gpu, of| gpu.copies(of, 256..264)),
    Word::new("ldmatrix", BF16, |gpu, of| gpu.loads(of, false)),
    Word::new("ldmatrix", F16, |gpu, of| gpu.loads(of, false)),
    Word::new("ldmatrix_trans", BF16, |gpu, of| gpu.loads(of, true)),
    Word::new("ldmatrix_trans", F16, |gpu, of| gpu.loads(of, true)),
    Word::new("mma", BF16, |gpu, of| gpu.product(of)),
    Word::new("mma", F16, |gpu, of| gpu.product(of)),
    Word::new("own product a b", BF16, |gpu, of| gpu.own_product(of, [Form::AsStored, Form::AsStored])),
    Word::new("own product a b'", BF16, |gpu, of| gpu.own_product(of, [Form::AsStored, Form::Transposed])),
    Word::new("own product a' b", BF16, |gpu, of| gpu.own_product(of, [Form::Transposed, Form::AsStored])),
    Word::new("own product a' b'", BF16, |gpu, of| gpu.own_product(of, [Form::Transposed, Form::Transposed])),
    Word::new("own product a b", F16, |gpu, of| gpu.own_product(of, [Form::AsStored, Form::AsStored])),
    Word::new("own product a b'", F16, |gpu, of| gpu.own_product(of, [Form::AsStored, Form::Transposed])),
    Word::new("own product a' b", F16, |gpu, of| gpu.own_product(of, [Form::Transposed, Form::AsStored])),
    Word::new("own product a' b'", F16, |gpu, of| gpu.own_product(of, [Form::Transposed, Form::Transposed])),
    Word::new("own product a b", F32, |gpu, of| gpu.own_product(of, [Form::AsStored, Form::AsStored])),
    Word::new("own product a b'", F32, |gpu, of| gpu.own_product(of, [Form::AsStored, Form::Transposed])),
    Word::new("own product a' b", F32, |gpu, of| gpu.own_product(of, [Form::Transposed, Form::AsStored])),
    Word::new("own product a' b'", F32, |gpu, of| gpu.own_product(of, [Form::Transposed, Form::Transposed])),
];

/// Small whole numbers, which all types have, as do their products and sums.
fn whole(seed: u32, n: u32) -> Vec<f32> {
    (0..n).map(|i| ((i * (seed + 7) + i * i % 11) % 17) as f32 - 8.0).collect()
}

/// The bits of a number that the type has: a whole one below 256, or a normal one with few digits.
fn bits(of: Element, x: f32) -> u16 {
    let bits = x.to_bits();
    match of {
        F16 if x == 0.0 => (bits >> 16) as u16,
        F16 => {
            let exponent = ((bits >> 23 & 0xff) + 15).wrapping_sub(127);
            ((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3ff)) as u16
        }
        _ => (bits >> 16) as u16,
    }
}

/// Numbers, each with the bits that it is rounded to: those in the middle to the even neighbor.
fn rounded(of: Element) -> Vec<(f32, u16)> {
    let step = if of == F16 { 2f32.powi(-10) } else { 2f32.powi(-7) };
    let at = |i: usize| {
        let (sign, n) = (if i.is_multiple_of(3) { -1.0 } else { 1.0 }, (i / 4) as f32);
        // Below, at and above the middle between two neighbors.
        let (part, up) = [(0.25, 0.0), (0.5, n % 2.0), (0.75, 1.0), (0.0, 0.0)][i % 4];
        let scale = sign * 2f32.powi((i % 5) as i32 - 2);
        (scale * (1.0 + step * (n + part)), bits(of, scale * (1.0 + step * (n + up))))
    };
    (0..64).map(at).collect()
}

fn words_of(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

impl Probe {
    /// The GPU of this number, with kernels that are kept there.
    ///
    /// # Errors
    /// No driver, no such GPU, or one that is too old.
    pub fn open(libraries: &Libraries, index: usize, cache: Cache) -> Result<Probe> {
        let context = Driver::find(libraries)?.device(index)?.context()?;
        let modules = Arc::new(Modules::new(&context, libraries, cache)?);
        Ok(Probe { modules, stream: Arc::new(context.stream()?), context })
    }

    /// Asks for a word, twice.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    pub fn ask(&self, word: &Word) -> Result<Answer> {
        for _ in 0..2 {
            let (got, want) = (word.run)(self, word.element)?;
            let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
            if let Some(at) = wrong {
                let detail = format!("number {at} has the bits {:08x}, not {:08x}", got[at], want[at]);
                return Ok(Answer { is_right: false, detail });
            }
            if got.len() != want.len() || got.is_empty() {
                let detail = format!("{} numbers, not {}", got.len(), want.len());
                return Ok(Answer { is_right: false, detail });
            }
        }
        Ok(Answer { is_right: true, detail: "every bit is right, twice".into() })
    }

    fn memory(&self, bytes: &[u8]) -> Result<DeviceMemory> {
        let memory = self.context.alloc(bytes.len())?;
        self.stream.write_now(bytes, memory.all())?;
        Ok(memory)
    }

    fn floats(&self, x: &[f32]) -> Result<DeviceMemory> {
        self.memory(&x.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>())
    }

    fn halves(&self, of: Element, x: &[f32]) -> Result<DeviceMemory> {
        self.memory(&x.iter().flat_map(|x| bits(of, *x).to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// Runs a probe in one block: inputs, then outputs of so many bytes, which begin as ones. The outputs.
    fn run<const N: usize>(
        &self,
        op: &'static str,
        of: &[Element],
        inputs: &[&DeviceMemory],
        outputs: [usize; N],
    ) -> Result<[Vec<u8>; N]> {
        let instance = table::find(op).and_then(|kernel| kernel.instance(of, None));
        let unknown = || Error::Launch { kernel: op.into(), reason: "there is no such kernel".into() };
        let instance = instance.ok_or_else(unknown)?;
        let function = self.modules.function(&instance)?;
        let mut made = Vec::new();
        for bytes in outputs {
            let memory = self.context.alloc(bytes)?;
            self.stream.fill(memory.all(), 0xff)?;
            made.push(memory);
        }
        let all = inputs.iter().copied().chain(&made);
        let args: Vec<Arg<'_>> = (instance.kernel.params.iter().zip(all))
            .map(|(param, memory)| Arg::memory(instance.element(param), memory.all()))
            .collect();
        let geometry = if instance.kernel.threads == 32 { WARP } else { geometry::one_block() };
        // SAFETY: the callers pass memory of the sizes that `probe.cu` says.
        unsafe { self.stream.launch(&function, geometry, &args) }?;
        let mut read = outputs.map(|bytes| vec![0; bytes]);
        for (memory, bytes) in made.iter().zip(&mut read) {
            self.stream.read_now(memory.all(), bytes)?;
        }
        Ok(read)
    }

    fn rounding(&self, of: Element) -> Result<(Vec<u32>, Vec<u32>)> {
        let cases = rounded(of);
        let x = self.floats(&cases.iter().take(32).map(|(x, _)| *x).collect::<Vec<_>>())?;
        let [y, back] = self.run("probe_round", &[of], &[&x], [64, 128])?;
        let want: Vec<u16> = cases.iter().take(32).map(|(_, bits)| *bits).collect();
        let back_bits = f32s(&back).iter().map(|x| u32::from(bits(of, *x))).collect::<Vec<_>>();
        let want = want.iter().map(|x| u32::from(*x)).collect::<Vec<_>>();
        Ok(([u16s(&y), back_bits].concat(), [want.clone(), want].concat()))
    }

    fn pairs(&self, of: Element) -> Result<(Vec<u32>, Vec<u32>)> {
        let cases = rounded(of);
        let x = self.floats(&cases.iter().map(|(x, _)| *x).collect::<Vec<_>>())?;
        let [pairs, _] = self.run("probe_numbers", &[of], &[&x], [128, 128])?;
        let want = cases.chunks(2).map(|x| u32::from(x[0].1) | u32::from(x[1].1) << 16);
        Ok((u32s(&pairs), want.collect()))
    }

    /// Whole powers have no error; of the others two units in the last place are none.
    fn powers(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let x: Vec<f32> = (0..64).map(|i| i as f32 - 16.0 + if i < 16 { 0.37 } else { 0.0 }).collect();
        let [_, powers] = self.run("probe_numbers", &[BF16], &[&self.floats(&x)?], [128, 128])?;
        let close = |(got, x): (&f32, &f32)| {
            let want = libm::exp2(f64::from(*x));
            u32::from((f64::from(*got) - want).abs() <= 4e-7 * want)
        };
        Ok((f32s(&powers).iter().zip(&x).map(close).collect(), vec![1; 32]))
    }

    fn rounded_product(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let (x, z) = (self.floats(&[1.0 + f32::EPSILON; 32])?, self.floats(&[-1.0; 32])?);
        let [sums] = self.run("probe_mul", &[], &[&x, &x, &z], [128])?;
        // One rounding at the end would leave the square of epsilon in it.
        Ok((u32s(&sums), vec![(2.0 * f32::EPSILON).to_bits(); 32]))
    }

    fn sums(&self, what: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let x = whole(1, 256);
        let [shuffled, of_warps, of_block] =
            self.run("probe_sums", &[], &[&self.floats(&x)?], [1024, 64, 8])?;
        let (warps, block) = (u32s(&of_warps), u32s(&of_block));
        let most = |x: &[f32]| x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let of_each = |f: &dyn Fn(&[f32]) -> f32| words_of(&x.chunks(32).map(f).collect::<Vec<_>>());
        Ok(match what {
            0 => (u32s(&shuffled), words_of(&(0..256).map(|i| x[i ^ 5]).collect::<Vec<_>>())),
            1 => (warps[..8].to_vec(), of_each(&|x| x.iter().sum())),
            2 => (warps[8..].to_vec(), of_each(&most)),
            3 => (block[..1].to_vec(), words_of(&[x.iter().sum()])),
            _ => (block[1..].to_vec(), words_of(&[most(&x)])),
        })
    }

    fn copies(&self, of: Element, part: std::ops::Range<usize>) -> Result<(Vec<u32>, Vec<u32>)> {
        let x = whole(3, 256);
        let [y] = self.run("probe_copy", &[of], &[&self.halves(of, &x)?], [528])?;
        let turned = x.chunks(8).rev().flatten().copied().chain([0.0; 8]);
        let want: Vec<u32> = turned.map(|x| u32::from(bits(of, x))).collect();
        Ok((u16s(&y)[part.clone()].to_vec(), want[part].to_vec()))
    }

    /// Word i of a lane is of matrix i, of which row r begins at x[64 i + 8 r].
    fn loads(&self, of: Element, transposed: bool) -> Result<(Vec<u32>, Vec<u32>)> {
        let x = whole(5, 256);
        let [rows, columns] = self.run("probe_load", &[of], &[&self.halves(of, &x)?], [512, 512])?;
        let element = |i: usize, row: usize, column: usize| {
            let at = if transposed { 8 * column + row } else { 8 * row + column };
            u32::from(bits(of, x[64 * i + at]))
        };
        let word = |at: usize| {
            let (i, row, column) = (at % 4, at / 16, 2 * (at / 4 % 4));
            element(i, row, column) | element(i, row, column + 1) << 16
        };
        Ok((u32s(if transposed { &columns } else { &rows }), (0..128).map(word).collect()))
    }

    fn product(&self, of: Element) -> Result<(Vec<u32>, Vec<u32>)> {
        let (a, b) = (whole(2, 256), whole(4, 128));
        let [c] = self.run("probe_mma", &[of], &[&self.halves(of, &a)?, &self.halves(of, &b)?], [512])?;
        let sum = |i: usize| (0..16).map(|k| a[i / 8 * 16 + k] * b[k * 8 + i % 8]).sum::<f32>();
        Ok((u32s(&c), words_of(&(0..128).map(sum).collect::<Vec<_>>())))
    }
}

fn u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    u32s(bytes).into_iter().map(f32::from_bits).collect()
}

fn u16s(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(2).map(|b| u32::from(u16::from_ne_bytes([b[0], b[1]]))).collect()
}
