//! How long the passes of attention take with each tile, and by cuDNN.

use std::sync::Arc;
use std::thread;

use super::{AttentionShape, Tile, TiledKernel, WGMMA_ARCH};
use crate::cudnn::{Backward, CudnnAttention, Forward, Pass};
use crate::driver::{Arg, DeviceMemory, Function, Stream};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::kernel::Instance;
use crate::modules::Modules;
use crate::table;

/// Runs before those that count: the clock of the GPU rises.
const WARM: usize = 3;
/// A tile whose kernel has more bytes of a thread outside of registers than the usual one and than this is not timed.
const MOST_SPILLED: u32 = 256;

/// A shape with memory for its operands and results.
pub struct Bench<'a> {
    stream: Arc<Stream>,
    modules: &'a Modules,
    shape: AttentionShape,
    element: Element,
    /// Queries, output and their gradients.
    of_queries: [DeviceMemory; 4],
    /// Keys, values and their gradients.
    of_keys: [DeviceMemory; 4],
    /// Log-sum-exps, and inner products of outputs and their gradients.
    statistics: [DeviceMemory; 2],
    /// Parts of the gradients of keys and values.
    parts: DeviceMemory,
}

impl<'a> Bench<'a> {
    /// `memory` makes some of so many bytes, with numbers around 0. The forward pass has run once, so that the backward pass
    /// finds what it needs.
    ///
    /// # Errors
    /// [`Error::Attention`] for heads that no kernel takes; those of the memory, of the modules or of the driver.
    pub fn new(
        stream: &Arc<Stream>,
        modules: &'a Modules,
        (shape, element): (AttentionShape, Element),
        memory: impl Fn(usize) -> Result<DeviceMemory>,
    ) -> Result<Bench<'a>> {
        let of_row = shape.batch * shape.head_dim * element.size();
        let queries = || memory(of_row * shape.q_len * shape.heads);
        let keys = || memory(of_row * shape.kv_capacity * shape.kv_heads);
        let rows = || memory(4 * shape.batch * shape.heads * shape.q_len);
        let bench = Bench {
            stream: stream.clone(),
            modules,
            shape,
            element,
            of_queries: [queries()?, queries()?, queries()?, queries()?],
            of_keys: [keys()?, keys()?, keys()?, keys()?],
            statistics: [rows()?, rows()?],
            parts: stream.context().alloc(shape.kv_parts_bytes().max(16))?,
        };
        let first = bench
            .tiles(TiledKernel::Forward)
            .first()
            .copied()
            .unwrap_or(shape.usual_tile(Pass::Forward, element));
        bench.run(TiledKernel::Forward, first)?;
        bench.delta()?;
        Ok(bench)
    }

    /// The tiles for which a GPU has enough shared memory: first the one that it takes without a measurement, which is the
    /// usual one where that fits.
    pub fn tiles(&self, kernel: TiledKernel) -> Vec<Tile> {
        let most = self.stream.context().limits().shared_bytes;
        let fits = |tile: &Tile| self.shape.tiled(kernel, self.element, *tile).shared_bytes <= most;
        let has_wgmma = self.stream.context().device().arch().is_ok_and(|arch| arch == WGMMA_ARCH);
        let first = self.shape.default_tile(kernel, self.element, (has_wgmma, most));
        let has_wgmma = has_wgmma && self.element != Element::F32;
        let others = Tile::large(has_wgmma).filter(|tile| Some(*tile) != first && fits(tile));
        first.into_iter().chain(others).collect()
    }

    /// Compiles the kernels of these tiles, as many at a time as there are threads. What fails does so again when it is timed.
    pub fn compile(&self, kernel: TiledKernel, tiles: &[Tile], n_threads: usize) {
        let per_thread = tiles.len().div_ceil(n_threads.max(1)).max(1);
        thread::scope(|scope| {
            for tiles in tiles.chunks(per_thread) {
                scope.spawn(move || {
                    tiles.iter().for_each(|tile| drop(self.function(kernel.op(), Some(*tile))))
                });
            }
        });
    }

    /// The milliseconds that a kernel takes with a tile; none where too much of it does not fit into registers.
    ///
    /// # Errors
    /// Those of the modules or of the driver.
    pub fn own(&self, kernel: TiledKernel, tile: Tile, runs: usize) -> Result<Option<f32>> {
        let spilled = |tile| self.function(kernel.op(), tile)?.local_bytes();
        if spilled(Some(tile))? > spilled(None)?.max(MOST_SPILLED) {
            return Ok(None);
        }
        for _ in 0..WARM {
            self.run(kernel, tile)?;
        }
        self.stream.milliseconds(runs, || self.run(kernel, tile)).map(Some)
    }

    /// The milliseconds of the inner products that the own backward pass has besides its two kernels with tiles.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn own_delta(&self, runs: usize) -> Result<f32> {
        self.stream.milliseconds(runs, || self.delta())
    }

    /// The milliseconds that a pass takes by cuDNN; none where it has no plan for it within this workspace.
    ///
    /// # Errors
    /// Those of cuDNN or of the driver.
    pub fn cudnn(
        &self,
        cudnn: &CudnnAttention,
        pass: Pass,
        (limit, runs): (usize, usize),
    ) -> Result<Option<f32>> {
        let of = (&self.shape, self.element);
        let Some(bytes) = cudnn.workspace_bytes((of.0, of.1, pass), limit)? else { return Ok(None) };
        let workspace = self.stream.context().alloc(bytes.max(1))?;
        let [q, o, d_o, d_q] = self.of_queries.each_ref().map(DeviceMemory::all);
        let [k, v, d_k, d_v] = self.of_keys.each_ref().map(DeviceMemory::all);
        let forward = Forward { q, k, v, o, lse: self.statistics[0].all() };
        let room = (workspace.all(), limit);
        let run = || match pass {
            Pass::Forward => cudnn.forward(of, &forward, room),
            Pass::Backward => cudnn.backward(of, &Backward { forward, d_o, d_q, d_k, d_v }, room),
        };
        for _ in 0..WARM {
            run()?;
        }
        self.stream.milliseconds(runs, run).map(Some)
    }

    fn function(&self, op: &'static str, tile: Option<Tile>) -> Result<Arc<Function>> {
        let head_dim = self.shape.unit_head_dim();
        let instance: Option<Instance> =
            table::find(op).and_then(|kernel| kernel.instance(&[self.element], head_dim));
        let instance = instance.filter(|_| head_dim.is_some()).ok_or_else(|| Error::Attention {
            reason: format!("there is no kernel for heads of {} elements", self.shape.head_dim),
        })?;
        self.modules.function(&match tile {
            Some(tile) => instance.with_tile(tile),
            None => instance,
        })
    }

    fn launch(&self, function: &Function, geometry: Geometry, args: &[Arg<'_>]) -> Result<()> {
        // SAFETY: all memory has the elements of the shape, as [`Bench::new`] has made it.
        unsafe { self.stream.launch(function, geometry, args) }
    }

    fn run(&self, kernel: TiledKernel, tile: Tile) -> Result<()> {
        let s = &self.shape;
        let [q, o, d_o, d_q] =
            self.of_queries.each_ref().map(|memory| Arg::memory(self.element, memory.all()));
        let [k, v, d_k, d_v] = self.of_keys.each_ref().map(|memory| Arg::memory(self.element, memory.all()));
        let [lse, delta] = self.statistics.each_ref().map(|memory| Arg::memory(Element::F32, memory.all()));
        let starts = Arg::null(Element::I32);
        let mut args = match kernel {
            TiledKernel::Forward => vec![q, k, v, starts, o, lse],
            TiledKernel::BackwardKv => {
                let (parts, splits) = (Arg::memory(Element::F32, self.parts.all()), s.kv_splits());
                let mut args = vec![q, k, v, starts, d_o, lse, delta, d_k, d_v, parts];
                args.append(&mut numbers(&[splits])?);
                args.push(Arg::f32(s.scale));
                args
            }
            TiledKernel::BackwardQ => vec![q, k, v, starts, d_o, lse, delta, d_q, Arg::f32(s.scale)],
        };
        let sizes = [s.q_len, s.kv_len, s.kv_capacity, s.heads, s.kv_heads, s.head_dim];
        let flags = [usize::from(s.causal), s.window.unwrap_or(0)];
        args.extend(numbers(&[&sizes[..], &flags[..]].concat())?);
        let (factor, cap) = s.score_scale();
        args.extend([Arg::f32(factor), Arg::f32(cap)]);
        let function = self.function(kernel.op(), Some(tile))?;
        self.launch(&function, s.tiled(kernel, self.element, tile), &args)?;
        if kernel != TiledKernel::BackwardKv || s.kv_splits() == 1 {
            return Ok(());
        }
        let (grid, n) = s.kv_join();
        let [_, _, d_k, d_v] = self.of_keys.each_ref().map(|memory| Arg::memory(self.element, memory.all()));
        let mut args = vec![Arg::memory(Element::F32, self.parts.all()), d_k, d_v];
        args.append(&mut numbers(&[s.kv_splits()])?);
        args.push(Arg::u64(n as u64));
        self.launch(&*self.function("attention_join_kv", None)?, grid, &args)
    }

    fn delta(&self) -> Result<()> {
        let s = &self.shape;
        let [_, o, d_o, _] = self.of_queries.each_ref().map(|memory| Arg::memory(self.element, memory.all()));
        let mut args = vec![o, d_o, Arg::memory(Element::F32, self.statistics[1].all())];
        args.extend(numbers(&[s.q_len, s.heads, s.head_dim, s.batch])?);
        self.launch(&*self.function("attention_delta", None)?, s.delta(), &args)
    }
}

fn numbers(sizes: &[usize]) -> Result<Vec<Arg<'static>>> {
    let number = |size: &usize| {
        let reason = || format!("{size} does not fit into 32 bits");
        i32::try_from(*size).map(Arg::i32).map_err(|_| Error::Attention { reason: reason() })
    };
    sizes.iter().map(number).collect()
}
