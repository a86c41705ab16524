//! Launches: arguments are compared with the table of kernels before the driver sees them.

use std::ffi::{c_uint, c_void};

use super::api::call;
use super::context::Context;
pub use super::memory::Slice;
use super::module::Function;
use super::stream::Stream;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::kernel::Access;
use crate::pieces::Pieces;
use crate::walk::Walk;

/// The most parameters of a kernel; those of the table have fewer.
const MOST_PARAMS: usize = 32;
/// Words of the largest parameter.
const WORDS: usize = size_of::<Walk>().div_ceil(8);

/// An argument of a launch.
#[derive(Clone, Copy)]
pub struct Arg<'a> {
    element: Element,
    /// What the driver copies: the value, or the address.
    words: [u64; WORDS],
    /// For pointers, what they point to; `None` inside for null.
    memory: Option<Option<Slice<'a>>>,
    /// A value that is too large for the words.
    pieces: Option<&'a Pieces<'a>>,
}

impl<'a> Arg<'a> {
    fn value(element: Element, bytes: &[u8]) -> Arg<'a> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        Arg { element, words, memory: None, pieces: None }
    }

    /// A number.
    pub fn f32(value: f32) -> Arg<'a> {
        Arg::value(Element::F32, &value.to_ne_bytes())
    }

    /// A number.
    pub fn i32(value: i32) -> Arg<'a> {
        Arg::value(Element::I32, &value.to_ne_bytes())
    }

    /// A number.
    pub fn u32(value: u32) -> Arg<'a> {
        Arg::value(Element::U32, &value.to_ne_bytes())
    }

    /// A number.
    pub fn u64(value: u64) -> Arg<'a> {
        Arg::value(Element::U64, &value.to_ne_bytes())
    }

    /// A number of 16 bits, by its bits.
    pub fn bf16(bits: u16) -> Arg<'a> {
        Arg::value(Element::BF16, &bits.to_ne_bytes())
    }

    /// A number of 16 bits, by its bits.
    pub fn f16(bits: u16) -> Arg<'a> {
        Arg::value(Element::F16, &bits.to_ne_bytes())
    }

    /// An order of operands.
    pub fn walk(walk: &Walk) -> Arg<'a> {
        Arg::value(Element::Walk, &walk.bytes())
    }

    /// Memory that holds elements of this type.
    pub fn memory(element: Element, slice: Slice<'a>) -> Arg<'a> {
        let mut words = [0; WORDS];
        words[0] = slice.address();
        Arg { element, words, memory: Some(Some(slice)), pieces: None }
    }

    /// The null pointer, for a parameter that may be absent.
    pub fn null(element: Element) -> Arg<'a> {
        Arg { element, words: [0; WORDS], memory: Some(None), pieces: None }
    }

    /// Pieces of memory.
    pub fn pieces(pieces: &'a Pieces<'a>) -> Arg<'a> {
        Arg { element: Element::Pieces, words: [0; WORDS], memory: None, pieces: Some(pieces) }
    }

    /// What the driver copies.
    fn passed(&self) -> *const u64 {
        self.pieces.map_or(self.words.as_ptr(), |pieces| pieces.words().as_ptr())
    }
}

impl Stream {
    /// Runs a kernel later, in the order of the stream. The arguments are copied now.
    ///
    /// # Errors
    /// [`Error::Launch`] if the arguments are not those of the table, [`Error::TooLarge`] if this GPU has less than the launch
    /// needs, and [`Error::OtherContext`]; then nothing was launched. Otherwise the driver's own.
    ///
    /// # Safety
    /// The memory of each pointer holds as many elements as the kernel reads or writes there, given its other arguments, and
    /// what it reads as an index is inside. Null is passed only where the kernel takes it.
    pub unsafe fn launch(&self, function: &Function, geometry: Geometry, args: &[Arg<'_>]) -> Result<()> {
        self.context().expect_same(function.context(), "the kernel")?;
        check_args(function, args, self.context())?;
        check_geometry(function, &geometry, self.context())?;
        function.allow_shared(geometry.shared_bytes)?;
        // On the stack: a launch allocates nothing.
        let mut params = [std::ptr::null_mut::<c_void>(); MOST_PARAMS];
        let Some(used) = params.get_mut(..args.len()) else {
            return Err(function.wrong(format!("it takes more than {MOST_PARAMS} arguments")));
        };
        used.iter_mut().zip(args).for_each(|(param, arg)| *param = arg.passed().cast_mut().cast());
        let ([x, y, z], threads) = (geometry.grid, geometry.threads);
        let shared = c_uint::try_from(geometry.shared_bytes).unwrap_or(c_uint::MAX);
        let (stream, api) = (self.handle(), self.context().enter()?);
        self.context().count_launch();
        // SAFETY: there is an argument of the right size for each parameter, checked above against the table, which a test
        // compares with the code; the driver copies them before it returns and changes none. What they point to is the
        // caller's promise.
        unsafe {
            call!(
                api,
                launch(
                    function.handle(),
                    x,
                    y,
                    z,
                    threads,
                    1,
                    1,
                    shared,
                    stream,
                    params.as_mut_ptr(),
                    std::ptr::null_mut()
                )
            )
        }
    }
}

fn check_args(function: &Function, args: &[Arg<'_>], context: &Context) -> Result<()> {
    let (instance, params) = (function.instance(), function.instance().kernel.params);
    if args.len() != params.len() {
        let reason = format!("it takes {} arguments, not {}", params.len(), args.len());
        return Err(function.wrong(reason));
    }
    for (arg, param) in args.iter().zip(params) {
        let (element, is_value) = (instance.element(param), param.access == Access::Value);
        if (element, is_value) != (arg.element, arg.memory.is_none()) {
            let said = |is_value, element: Element| {
                format!("{} {element}", if is_value { "a value" } else { "a pointer to" })
            };
            let (wanted, got) = (said(is_value, element), said(arg.memory.is_none(), arg.element));
            return Err(function.wrong(format!("{} is {wanted}, not {got}", param.name)));
        }
        let of_pieces = arg.pieces.map_or(&[][..], Pieces::memory);
        of_pieces.iter().try_for_each(|slice| context.expect_same(slice.context(), "the memory"))?;
        let Some(Some(slice)) = arg.memory else { continue };
        context.expect_same(slice.context(), "the memory")?;
        let size = element.size();
        if !slice.address().is_multiple_of(size as u64) || !slice.bytes().is_multiple_of(size) {
            let (start, bytes) = (slice.address() % 256, slice.bytes());
            let reason = format!(
                "{} is {bytes} bytes from byte {start} of a block on, which are no {element} elements",
                param.name
            );
            return Err(function.wrong(reason));
        }
    }
    Ok(())
}

fn check_geometry(function: &Function, geometry: &Geometry, context: &Context) -> Result<()> {
    let wanted = function.instance().threads();
    if geometry.threads != wanted {
        let reason = format!("its blocks have {wanted} threads, not {}", geometry.threads);
        return Err(function.wrong(reason));
    }
    if geometry.grid.contains(&0) {
        return Err(function.wrong(format!("no GPU takes a grid of {:?} blocks", geometry.grid)));
    }
    match function.needs().excess(geometry, context.limits()) {
        Some(reason) => Err(Error::TooLarge { kernel: function.instance().name(), reason }),
        None => Ok(()),
    }
}
