//! Attention (Vaswani et al. 2017) with grouped kv heads, computed block by block without an S x S matrix
//! (FlashAttention, Dao 2023): the forward pass keeps the log-sum-exp of each row, the backward pass recomputes the rest.

pub use oarlock_kernels::attention::BlockMask;
use oarlock_kernels::attention::{self as kernel, AttentionShape, CachedSequence};
use oarlock_kernels::{DType, Element, Error, Result};

use crate::cuda::{self, Call, FormError, Operands, TiledKernel, element};
use crate::launch::{Launch, View};
use crate::ops::slice::{concat, narrow};
use crate::ops::{check_device, check_dtype, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// Which keys a query sees.
#[derive(Clone, Debug)]
pub enum Mask {
    /// All of them.
    Full,
    /// Those at its own position and before. With fewer queries than keys, the queries are the last positions.
    Causal,
    /// As causal, and none before the first position of its own document: i32 `[B, S]`.
    Documents(Tensor),
}

/// What attention does with its scores.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOptions {
    /// The factor of the scores, usually `1 / sqrt(D)`.
    pub scale: f32,
    /// A sliding window of `w` positions: a query sees itself and the `w - 1` positions before it, within its mask.
    pub window: Option<usize>,
    /// A soft cap `c`: scores become `c · tanh(scores / c)` before the softmax, as in Gemma 2.
    pub logit_cap: Option<f32>,
    /// The blocks of the scores that are computed; of the others nothing is seen, within the mask.
    pub blocks: Option<BlockMask>,
}

impl AttentionOptions {
    /// Scores times `scale`, all of them, not capped.
    pub fn new(scale: f32) -> AttentionOptions {
        AttentionOptions { scale, window: None, logit_cap: None, blocks: None }
    }

    fn check(&self, mask: &Mask) -> Result<()> {
        let refuse = |what: String| Err(Error::Usage(format!("attention: {what}")));
        if !self.scale.is_finite() {
            return refuse(format!("the scale is {}", self.scale));
        }
        if let Some(cap) = self.logit_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return refuse(format!("expected a positive logit cap, got {cap}"));
        }
        match (self.window, mask) {
            (Some(0), _) => refuse("expected a window of at least one position, got 0".to_owned()),
            (Some(_), Mask::Full) => refuse("a window needs a causal mask".to_owned()),
            _ => Ok(()),
        }
    }
}

/// q `[B, S, H, D]`, k and v `[B, K, G, D]` → `[B, S, H, D]`; `softmax(q·kᵀ·scale)·v`.
///
/// # Errors
/// Shapes, dtypes or options that do not fit.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: &Mask,
    options: &AttentionOptions,
) -> Result<Tensor> {
    let recorder = Recorder::new(&[q, k, v], &[])?;
    let attended = Attended::new([q, k, v], mask, options)?;
    Ok(Recorder::record(recorder, attended.output(), |recorder| AttentionBackward {
        q: recorder.save(q),
        k: recorder.save(k),
        v: recorder.save(v),
        attended,
    }))
}

/// As [`attention`], causal, over the first `kv_len` rows of a key-value cache `[B, capacity, G, D]`; not recorded.
///
/// # Errors
/// Shapes, dtypes or options that do not fit.
pub fn attention_cached(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    kv_len: usize,
    options: &AttentionOptions,
) -> Result<Tensor> {
    check_device("attention", q, &[k, v])?;
    check_dtype("attention", q, k)?;
    check_dtype("attention", q, v)?;
    let shape = shape_of(q, k, kv_len, v, &Mask::Causal, options)?;
    Ok(forward(q, k, v, &Mask::Causal, &shape, options.blocks.as_ref())?.0)
}

/// Rows of a page of a key-value cache.
pub const CACHE_PAGE: usize = kernel::PAGE_ROWS;

/// Keys and values of one sequence as a cache holds them: pages `[1, CACHE_PAGE, G, D]`, or a single one of any number of rows.
/// Those of a GPU are single ones, which its kernels read.
#[derive(Clone, Debug)]
pub struct CachedKv<'a> {
    /// The pages of keys.
    pub keys: Vec<&'a Tensor>,
    /// As many of values.
    pub values: Vec<&'a Tensor>,
    /// The rows that are filled.
    pub len: usize,
}

impl CachedKv<'_> {
    /// The shape of the last positions `[1, S, H, D]` over the first `kv_len` rows, when all of it fits.
    fn shape(&self, q: &Tensor, kv_len: usize, options: &AttentionOptions) -> Result<AttentionShape> {
        let (Some(&k), Some(&v)) = (self.keys.first(), self.values.first()) else {
            return Err(wrong_shape("attention", "pages of keys and values", q));
        };
        let is_paged = self.keys.len() > 1;
        for page in self.keys.iter().chain(&self.values) {
            check_device("attention", q, &[page])?;
            check_dtype("attention", q, page)?;
            if page.shape() != k.shape() || is_paged && page.sizes().get(1) != Some(&CACHE_PAGE) {
                return Err(wrong_shape("attention", format!("pages of {CACHE_PAGE} rows, all alike"), page));
            }
        }
        if self.keys.len() != self.values.len() {
            return Err(wrong_shape("attention", "as many pages of values as of keys", v));
        }
        let capacity = k.sizes().get(1).copied().unwrap_or(0) * self.keys.len();
        shape_with(q, k, (kv_len, capacity), v, &Mask::Causal, options)
    }

    /// The only page, where kernels read no others.
    fn whole(&self) -> Result<(&Tensor, &Tensor)> {
        match (&self.keys[..], &self.values[..]) {
            ([k], [v]) => Ok((k, v)),
            _ => Err(Error::Usage("attention: on a GPU keys and values lie in one piece".to_owned())),
        }
    }

    fn read<T: Element>(&self, launch: &mut Launch<'_>) -> Result<[Vec<View<T>>; 2]> {
        let mut views =
            |pages: &[&Tensor]| pages.iter().map(|page| launch.read::<T>(page)).collect::<Result<Vec<_>>>();
        Ok([views(&self.keys)?, views(&self.values)?])
    }
}

/// As [`attention_cached`], over keys and values that are read in their pages, with the same bits.
///
/// # Errors
/// As [`attention_cached`].
pub fn attention_in_pages(q: &Tensor, cache: &CachedKv<'_>, options: &AttentionOptions) -> Result<Tensor> {
    if q.device().is_cuda() {
        let (k, v) = cache.whole()?;
        return attention_cached(q, k, v, cache.len, options);
    }
    let shape = cache.shape(q, cache.len, options)?;
    let (device, len, blocks) = (q.device(), cache.len, options.blocks.clone());
    let mut o = Tensor::uninit(*q.shape(), q.dtype(), device, "activation")?;
    let mut lse = Tensor::uninit([1, shape.n_heads, shape.q_len], DType::F32, device, "statistics")?;
    let mut launch = device.launch("attention forward", 2 * product_flops(&shape, blocks.as_ref()), 0);
    let scratch =
        launch.scratch(kernel::attention_forward_scratch_bytes(device.host(), &shape, q.dtype()))?;
    with_float!(q.dtype(), "attention", T => {
        let (q, views) = (launch.read::<T>(q)?, cache.read::<T>(&mut launch)?);
        let (o, lse) = (launch.write::<T>(&mut o)?, launch.write::<f32>(&mut lse)?);
        launch.run(move |cpu| {
            let [k, v] = views.each_ref().map(|pages| pages.iter().map(|page| page.slice(cpu)).collect::<Vec<&[T]>>());
            kernel::attention_of_cached(
                cpu, &shape, q.slice(cpu), &CachedSequence { k: &k, v: &v, len }, blocks.as_ref(), o.slice(cpu),
                lse.slice(cpu), scratch.slice(cpu),
            )
        })
    })?;
    Ok(o)
}

/// The attention of single queries q `[B, 1, H, D]`, in this order: of each sequence its last positions, as many as its number
/// says. Each sees the positions up to its own, and on a CPU its bits are those that it has alone.
///
/// # Errors
/// As [`attention_in_pages`], or another number of queries than the sequences have together.
pub fn attention_cached_each(
    q: &Tensor,
    caches: &[(CachedKv<'_>, usize)],
    options: &AttentionOptions,
) -> Result<Tensor> {
    let &[n, 1, n_heads, _] = q.sizes() else {
        return Err(wrong_shape("attention", "q of shape [B, 1, H, D]", q));
    };
    let n_queries: usize = caches.iter().map(|(_, n)| *n).sum();
    if n == 0 || n_queries != n || caches.iter().any(|(cache, n)| *n > cache.len) {
        return Err(wrong_shape("attention", format!("q of {n_queries} positions, at least one"), q));
    }
    let lens = |(cache, n): &(CachedKv<'_>, usize)| cache.len + 1 - n..=cache.len;
    let own = |index: usize| narrow(q, 0, index..index + 1);
    if q.device().is_cuda() {
        let mut each = Vec::with_capacity(n);
        for of_sequence in caches {
            let (k, v) = of_sequence.0.whole()?;
            for len in lens(of_sequence) {
                each.push(attention_cached(&own(each.len())?, k, v, len, options)?);
            }
        }
        return concat(&each, 0);
    }
    let (first, blocks) = (own(0)?, options.blocks.clone());
    let (mut flops, mut shape) = (0, None::<AttentionShape>);
    for of_sequence in caches {
        for len in lens(of_sequence) {
            let own = of_sequence.0.shape(&first, len, options)?;
            flops += 2 * product_flops(&own, blocks.as_ref());
            if shape.is_none_or(|longest| own.kv_len > longest.kv_len) {
                shape = Some(AttentionShape { batch: n, ..own });
            }
        }
    }
    let Some(shape) = shape else { return Err(wrong_shape("attention", "at least one query", q)) };
    let mut o = Tensor::uninit(*q.shape(), q.dtype(), q.device(), "activation")?;
    let mut lse = Tensor::uninit([n, n_heads, 1], DType::F32, q.device(), "statistics")?;
    let mut launch = q.device().launch("attention forward", flops, 0);
    let bytes = kernel::attention_forward_scratch_bytes(q.device().host(), &shape, q.dtype());
    let scratch = launch.scratch(bytes)?;
    with_float!(q.dtype(), "attention", T => {
        let q = launch.read::<T>(q)?;
        let mut views = Vec::with_capacity(caches.len());
        for of_sequence in caches {
            views.push((of_sequence.0.read::<T>(&mut launch)?, lens(of_sequence)));
        }
        let (o, lse) = (launch.write::<T>(&mut o)?, launch.write::<f32>(&mut lse)?);
        launch.run(move |cpu| {
            let slices = |pages: &[View<T>]| pages.iter().map(|page| page.slice(cpu)).collect::<Vec<&[T]>>();
            let pages: Vec<_> = views.iter().map(|([k, v], lens)| (slices(k), slices(v), lens.clone())).collect();
            let mut caches: Vec<CachedSequence<T>> = Vec::with_capacity(n);
            for (k, v, lens) in &pages {
                caches.extend(lens.clone().map(|len| CachedSequence { k, v, len }));
            }
            kernel::attention_of_each(
                cpu, &shape, q.slice(cpu), &caches, blocks.as_ref(), o.slice(cpu), lse.slice(cpu), scratch.slice(cpu),
            )
        })
    })?;
    Ok(o)
}

fn shape_of(
    q: &Tensor,
    k: &Tensor,
    kv_len: usize,
    v: &Tensor,
    mask: &Mask,
    options: &AttentionOptions,
) -> Result<AttentionShape> {
    let capacity = k.sizes().get(1).copied().unwrap_or(0);
    shape_with(q, k, (kv_len, capacity), v, mask, options)
}

/// As [`shape_of`], with so many rows of storage, of which k and v may be a page.
fn shape_with(
    q: &Tensor,
    k: &Tensor,
    (kv_len, kv_capacity): (usize, usize),
    v: &Tensor,
    mask: &Mask,
    options: &AttentionOptions,
) -> Result<AttentionShape> {
    let &[batch, q_len, n_heads, head_dim] = q.sizes() else {
        return Err(wrong_shape("attention", "q of shape [B, S, H, D]", q));
    };
    let &[kv_batch, _, n_kv_heads, kv_dim] = k.sizes() else {
        return Err(wrong_shape("attention", "k of shape [B, K, G, D]", k));
    };
    if v.shape() != k.shape() {
        return Err(wrong_shape("attention", format!("v of k's shape {:?}", k.shape()), v));
    }
    let causal = !matches!(mask, Mask::Full);
    let fits = (kv_batch, kv_dim) == (batch, head_dim)
        && n_kv_heads > 0
        && n_heads.is_multiple_of(n_kv_heads)
        && kv_len <= kv_capacity
        && (!causal || q_len <= kv_len);
    if !fits {
        let expected = format!(
            "k and v of shape [{batch}, K, G, {head_dim}] with K of at least {q_len} and G a divisor of {n_heads}"
        );
        return Err(wrong_shape("attention", expected, k));
    }
    if let Mask::Documents(starts) = mask
        && (starts.sizes() != [batch, q_len] || starts.dtype() != DType::I32)
    {
        return Err(wrong_shape("attention", format!("document starts i32 [{batch}, {q_len}]"), starts));
    }
    options.check(mask)?;
    let &AttentionOptions { scale, window, logit_cap, ref blocks } = options;
    let shape = AttentionShape {
        batch,
        q_len,
        kv_len,
        n_heads,
        n_kv_heads,
        head_dim,
        kv_capacity,
        scale,
        causal,
        window,
        logit_cap,
    };
    blocks.as_ref().map_or(Ok(()), |blocks| blocks.check("attention", &shape))?;
    Ok(shape)
}

/// A document begins at its queries' positions or before: else a query would see nothing.
fn check_starts(starts: &[i32], q_len: usize, kv_len: usize) -> Result<()> {
    for (position, &start) in starts.iter().enumerate() {
        let bound = kv_len - q_len + position % q_len + 1;
        if usize::try_from(start).map_or(true, |start| start >= bound) {
            return Err(Error::Index {
                op: "attention, document starts",
                index: i64::from(start),
                position,
                bound,
            });
        }
    }
    Ok(())
}

fn doc_start(launch: &mut Launch<'_>, mask: &Mask) -> Result<Option<View<i32>>> {
    match mask {
        Mask::Documents(starts) => launch.read(starts).map(Some),
        _ => Ok(None),
    }
}

/// Multiply-adds of one product over the visible part, times two.
fn product_flops(s: &AttentionShape, blocks: Option<&BlockMask>) -> u64 {
    if let Some(blocks) = blocks {
        return 2 * (s.batch * s.head_dim) as u64 * blocks.pairs(s);
    }
    let window = s.window.map_or(s.kv_len, |window| window.min(s.kv_len));
    // Keys that the first n positions see, each with those before it in its window.
    let seen = |n: usize| n.min(window) * (n.min(window) + 1) / 2 + n.saturating_sub(window) * window;
    let pairs = if s.causal { seen(s.kv_len) - seen(s.kv_len - s.q_len) } else { s.q_len * s.kv_len };
    2 * (s.batch * s.n_heads * s.head_dim * pairs) as u64
}

fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: &Mask,
    shape: &AttentionShape,
    blocks: Option<&BlockMask>,
) -> Result<(Tensor, Tensor)> {
    let device = q.device();
    let mut o = Tensor::uninit(*q.shape(), q.dtype(), device, "activation")?;
    let mut lse =
        Tensor::uninit([shape.batch, shape.n_heads, shape.q_len], DType::F32, device, "statistics")?;
    let mut launch = device.launch("attention forward", 2 * product_flops(shape, blocks), 0);
    let scratch = launch.scratch(kernel::attention_forward_scratch_bytes(device.host(), shape, q.dtype()))?;
    let (shape, starts, blocks) = (*shape, doc_start(&mut launch, mask)?, blocks.cloned());
    with_float!(q.dtype(), "attention", T => {
        let (q, k, v) = (launch.read::<T>(q)?, launch.read::<T>(k)?, launch.read::<T>(v)?);
        let (o, lse) = (launch.write::<T>(&mut o)?, launch.write::<f32>(&mut lse)?);
        launch.cuda(|gpu| {
            no_blocks(blocks.as_ref())?;
            let (s, of) = (on_gpu(&shape), element(T::DTYPE));
            if starts.is_none() {
                let operands = [gpu.slice(&q)?, gpu.slice(&k)?, gpu.slice(&v)?, gpu.slice(&o)?, gpu.slice(&lse)?];
                if gpu.attention_by_cudnn((&s, of), &Operands::Forward(operands))? {
                    return Ok(());
                }
            }
            let n_rows = s.batch * s.heads * s.q_len;
            let n_splits = s.n_splits(of);
            if n_splits == 1 {
                let (call, grid) = gpu.tiled(TiledKernel::Forward, (&s, of))?;
                let call = call.view(&q).view(&k).view(&v).optional(starts.as_ref()).view(&o).view(&lse);
                return with_shape(call, &s).run(grid);
            }
            let bytes = 4 * n_rows * n_splits;
            let parts = gpu.temporary(bytes * (s.head_dim + 2))?;
            let (maxima, sums) = (parts.part(0, bytes)?, parts.part(bytes, bytes)?);
            let parts = parts.part(2 * bytes, bytes * s.head_dim)?;
            let call = gpu.of_heads("attention_decode", (&s, of))?.view(&q).view(&k).view(&v);
            let call = call.optional(starts.as_ref()).slice(parts).slice(maxima).slice(sums).i32(n_splits);
            with_shape(call, &s).run(s.decode(of, n_splits))?;
            let call = gpu.of_heads("attention_decode_join", (&s, of))?.slice(parts).slice(maxima).slice(sums);
            let call = call.view(&o).view(&lse).i32(n_splits).i32(s.batch).i32(s.q_len).i32(s.heads);
            call.i32(s.kv_heads).i32(s.head_dim).run(s.decode_join())
        })?;
        launch.run(move |cpu| {
            let starts = starts.map(|starts| starts.slice(cpu));
            if let Some(starts) = starts {
                check_starts(starts, shape.q_len, shape.kv_len)?;
            }
            kernel::attention_forward(
                cpu, &shape, q.slice(cpu), k.slice(cpu), v.slice(cpu), starts, blocks.as_ref(), o.slice(cpu),
                lse.slice(cpu), scratch.slice(cpu),
            )
        })
    })?;
    Ok((o, lse))
}

/// The kernels of a GPU take no block mask yet: the host computes in their place.
fn no_blocks(blocks: Option<&BlockMask>) -> std::result::Result<(), FormError> {
    blocks.map_or(Ok(()), |_| Err(FormError::NoForm))
}

/// The shape as the kernels of a GPU take it.
fn on_gpu(s: &AttentionShape) -> cuda::AttentionShape {
    cuda::AttentionShape {
        batch: s.batch,
        q_len: s.q_len,
        kv_len: s.kv_len,
        kv_capacity: s.kv_capacity,
        heads: s.n_heads,
        kv_heads: s.n_kv_heads,
        head_dim: s.head_dim,
        scale: s.scale,
        causal: s.causal,
        window: s.window,
        logit_cap: s.logit_cap,
    }
}

/// The arguments that describe the shape, behind those of a pass.
fn with_shape<'l>(call: Call<'l>, s: &cuda::AttentionShape) -> Call<'l> {
    let (factor, cap) = s.score_scale();
    let call =
        call.i32(s.q_len).i32(s.kv_len).i32(s.kv_capacity).i32(s.heads).i32(s.kv_heads).i32(s.head_dim);
    call.i32(usize::from(s.causal)).i32(s.window.unwrap_or(0)).f32(factor).f32(cap)
}

struct AttentionBackward {
    q: Saved,
    k: Saved,
    v: Saved,
    attended: Attended,
}

impl Function for AttentionBackward {
    fn backward(self: Box<Self>, d_o: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (q, k, v) = (cx.get(&self.q)?, cx.get(&self.k)?, cx.get(&self.v)?);
        let [dq, dk, dv] = self.attended.gradients([&q, &k, &v], &d_o)?;
        cx.give(0, dq)?;
        cx.give(1, dk)?;
        cx.give(2, dv)
    }
}

/// What a forward pass leaves for the backward pass, beside queries, keys and values.
pub(super) struct Attended {
    o: Tensor,
    lse: Tensor,
    mask: Mask,
    shape: AttentionShape,
    blocks: Option<BlockMask>,
}

impl Attended {
    /// The forward pass, not recorded.
    pub fn new([q, k, v]: [&Tensor; 3], mask: &Mask, options: &AttentionOptions) -> Result<Attended> {
        check_device("attention", q, &[k, v])?;
        check_dtype("attention", q, k)?;
        check_dtype("attention", q, v)?;
        let shape = shape_of(q, k, k.sizes().get(1).copied().unwrap_or(0), v, mask, options)?;
        let blocks = options.blocks.clone();
        let (o, lse) = forward(q, k, v, mask, &shape, blocks.as_ref())?;
        Ok(Attended { o, lse, mask: mask.clone(), shape, blocks })
    }

    /// What attention has computed.
    pub fn output(&self) -> Tensor {
        self.o.clone()
    }

    /// The gradients of queries, keys and values.
    pub fn gradients(&self, [q, k, v]: [&Tensor; 3], d_o: &Tensor) -> Result<[Tensor; 3]> {
        let device = q.device().clone();
        let like = |t: &Tensor| Tensor::uninit(*t.shape(), t.dtype(), &device, "gradient");
        let (mut dq, mut dk, mut dv) = (like(q)?, like(k)?, like(v)?);
        let (shape, blocks) = (self.shape, self.blocks.clone());
        let flops = 5 * product_flops(&shape, blocks.as_ref());
        let mut launch = device.launch("attention backward", flops, 0);
        let scratch =
            launch.scratch(kernel::attention_backward_scratch_bytes(device.host(), &shape, q.dtype()))?;
        let parts_bytes = on_gpu(&shape).kv_parts_bytes();
        launch.counts_temporary(parts_bytes)?;
        let starts = doc_start(&mut launch, &self.mask)?;
        with_float!(q.dtype(), "attention", T => {
            let (q, k, v) = (launch.read::<T>(q)?, launch.read::<T>(k)?, launch.read::<T>(v)?);
            let (o, lse, d_o) = (launch.read::<T>(&self.o)?, launch.read::<f32>(&self.lse)?, launch.read::<T>(d_o)?);
            let (dq, dk, dv) =
                (launch.write::<T>(&mut dq)?, launch.write::<T>(&mut dk)?, launch.write::<T>(&mut dv)?);
            launch.cuda(|gpu| {
                no_blocks(blocks.as_ref())?;
                let (s, of) = (on_gpu(&shape), element(T::DTYPE));
                if starts.is_none() {
                    let forward =
                        [gpu.slice(&q)?, gpu.slice(&k)?, gpu.slice(&v)?, gpu.slice(&o)?, gpu.slice::<f32>(&lse)?];
                    let gradients = [gpu.slice(&d_o)?, gpu.slice(&dq)?, gpu.slice(&dk)?, gpu.slice(&dv)?];
                    if gpu.attention_by_cudnn((&s, of), &Operands::Backward(forward, gradients))? {
                        return Ok(());
                    }
                }
                let delta = gpu.temporary(4 * s.batch * s.heads * s.q_len)?;
                let call = gpu.of_heads("attention_delta", (&s, of))?.view(&o).view(&d_o).slice(delta.slice()?);
                call.i32(s.q_len).i32(s.heads).i32(s.head_dim).i32(s.batch).run(s.delta())?;
                let pass = |kernel| {
                    let (call, grid) = gpu.tiled(kernel, (&s, of))?;
                    let call = call.view(&q).view(&k).view(&v).optional(starts.as_ref());
                    Ok::<_, FormError>((call.view(&d_o).view::<f32>(&lse).slice(delta.slice()?), grid))
                };
                let (call, grid) = pass(TiledKernel::BackwardKv)?;
                let call = call.view(&dk).view(&dv);
                let end = |call: Call<'_>, n_splits| with_shape(call.i32(n_splits).f32(s.scale), &s).run(grid);
                if parts_bytes == 0 {
                    end(call.null(), 1)?;
                } else {
                    let (parts, (join_grid, n)) = (gpu.temporary(parts_bytes)?, s.kv_join());
                    end(call.slice(parts.slice()?), s.kv_splits())?;
                    let join = gpu.of_heads("attention_join_kv", (&s, of))?.slice(parts.slice()?);
                    join.view(&dk).view(&dv).i32(s.kv_splits()).u64(n).run(join_grid)?;
                }
                let (call, grid) = pass(TiledKernel::BackwardQ)?;
                with_shape(call.view(&dq).f32(s.scale), &s).run(grid)
            })?;
            launch.run(move |cpu| {
                kernel::attention_backward(
                    cpu, &shape, q.slice(cpu), k.slice(cpu), v.slice(cpu), starts.map(|starts| starts.slice(cpu)),
                    blocks.as_ref(), o.slice(cpu), lse.slice(cpu), d_o.slice(cpu), dq.slice(cpu), dk.slice(cpu), dv.slice(cpu),
                    scratch.slice(cpu),
                )
            })
        })?;
        Ok([dq, dk, dv])
    }
}
