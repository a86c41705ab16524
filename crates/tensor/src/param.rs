//! Parameters: handles that a model holds and ops remember; where the numbers live is their home's business.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use oarlock_kernels::{DType, Error, Result};

use crate::cuda::forms;
use crate::device::Device;
use crate::flat::{FlatBuffer, WriteLease};
use crate::init::Init;
use crate::launch::{Mode, Span};
use crate::shape::Shape;
use crate::tape::Tape;
use crate::tensor::Tensor;

pub use oarlock_kernels::Store;

/// A parameter of a model: a shape, a way to start, and, once the model is prepared, a home.
/// Cloning gives another handle to the same parameter (that is how weights are tied).
#[derive(Clone)]
pub struct Param(Arc<Inner>);

struct Inner {
    shape: Shape,
    init: Init,
    /// The dtype of its working copy, where that is not the model's.
    dtype: Option<DType>,
    /// Of a parameter of words, what they hold.
    words: Option<Words>,
    frozen: AtomicBool,
    slot: RwLock<Option<Slot>>,
}

/// What the words of a parameter hold.
#[derive(Clone, Copy)]
struct Words {
    n_weights: usize,
    /// What ops compute in with them.
    computes_in: DType,
}

/// Where a parameter has its home.
#[derive(Clone)]
pub(crate) struct Slot {
    pub home: Arc<dyn ParamHome>,
    /// Its number there.
    pub index: usize,
}

/// Where parameters live: lends their weights to ops and takes their gradients.
pub trait ParamHome: Send + Sync {
    /// The working copy of parameter `index`, in the compute dtype.
    ///
    /// # Errors
    /// When it cannot be had (a failed gather, a misuse).
    fn weight(&self, index: usize) -> Result<Tensor>;

    /// Where the gradient of parameter `index` goes, or `None` for a frozen one.
    ///
    /// # Errors
    /// When it cannot be had.
    fn grad(&self, index: usize) -> Result<Option<GradSlot>>;

    /// A copy of the gradient of parameter `index` that has accumulated here so far; `None` if none has.
    ///
    /// # Errors
    /// When it is not here in one piece.
    fn gradient(&self, index: usize) -> Result<Option<Tensor>>;

    /// Whether parameter `index` is trained.
    fn trainable(&self, index: usize) -> bool;

    /// Which elements of the buffers of all its parameters are those of parameter `index`; `None` where there are no such
    /// buffers.
    fn place(&self, _index: usize) -> Option<Range<usize>> {
        None
    }

    /// The tape on which a forward pass of the model is being recorded, for ops whose inputs are on none.
    fn active_tape(&self) -> Option<Tape> {
        None
    }
}

/// A place for one gradient: `len` f32 elements of a flat buffer, to be overwritten or added to.
pub struct GradSlot {
    lease: WriteLease,
    first: usize,
    len: usize,
    /// Whether this is the first gradient of the step (overwrite) or a further one (add).
    pub store: Store,
}

impl GradSlot {
    /// Its memory.
    pub(crate) fn span(&self) -> Result<Span<'_>> {
        self.lease.span().elements::<f32>(&(self.first..self.first + self.len))
    }

    /// The number of its elements.
    pub(crate) fn n_elems(&self) -> usize {
        self.len
    }

    /// The memory of this gradient and of those of the same home before it, from element `first` on.
    pub(crate) fn beginning_at(self, first: usize) -> GradSlot {
        let len = (self.first + self.len).saturating_sub(first);
        GradSlot { first: first.min(self.first), len: len.max(self.len), ..self }
    }

    /// Stores an f32 gradient as [`GradSlot::store`] says.
    ///
    /// # Errors
    /// [`Error::Shape`] when `grad` has another number of elements, [`Error::DType`] when it is not f32.
    pub fn put(&mut self, grad: &Tensor) -> Result<()> {
        if grad.n_elems() != self.len {
            return Err(Error::Shape {
                op: "gradient of a parameter",
                expected: format!("{} elements", self.len),
                got: format!("{} elements", grad.n_elems()),
            });
        }
        let (store, n) = (self.store, self.len);
        let mut launch = grad.device().quiet_launch("gradient of a parameter");
        let (from, to) = (launch.read::<f32>(grad)?, launch.grad(self)?);
        launch.cuda(|gpu| match store {
            Store::Overwrite => gpu.copy(&from, &to),
            Store::Add => forms::add_assign(gpu, (&to, DType::F32), (&from, DType::F32), n),
        })?;
        launch.run(move |cpu| store.put_all(to.slice(cpu), from.slice(cpu)))
    }
}

impl Param {
    /// A parameter without a home.
    pub fn new(shape: Shape, init: Init) -> Param {
        Param::with(shape, init, None, None)
    }

    /// A parameter without a home whose working copy is f32 whatever the model computes in: for the few elements
    /// where 16 bits would be too coarse, such as the weights of norms.
    pub fn in_f32(shape: Shape, init: Init) -> Param {
        Param::with(shape, init, Some(DType::F32), None)
    }

    /// A frozen parameter of so many 32-bit words that hold so many weights, of 4 bits for example, with which ops compute
    /// in a dtype. Where elements of parameters are moved as f32, its words are moved as the f32 with the same bits.
    ///
    /// # Errors
    /// An impossible size.
    pub fn of_words(n_words: usize, n_weights: usize, computes_in: DType) -> Result<Param> {
        let words = Some(Words { n_weights, computes_in });
        let param = Param::with(Shape::new(&[n_words])?, Init::Zeros, Some(DType::I32), words);
        param.freeze();
        Ok(param)
    }

    fn with(shape: Shape, init: Init, dtype: Option<DType>, words: Option<Words>) -> Param {
        Param(Arc::new(Inner {
            shape,
            init,
            dtype,
            words,
            frozen: AtomicBool::new(false),
            slot: RwLock::new(None),
        }))
    }

    /// Leaves it as it is in training: it gets no gradient and no optimizer state. To be said before the model is
    /// prepared.
    pub fn freeze(&self) {
        self.0.frozen.store(true, Ordering::Relaxed);
    }

    /// Whether [`Param::freeze`] was called.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// The dtype of its working copy in a model that computes in `dtype`.
    pub fn working_dtype(&self, dtype: DType) -> DType {
        self.0.dtype.unwrap_or(dtype)
    }

    /// The dtype that ops compute in with it, in a model that computes in `dtype`.
    pub fn compute_dtype(&self, dtype: DType) -> DType {
        self.0.words.map_or_else(|| self.working_dtype(dtype), |words| words.computes_in)
    }

    /// How many weights of a model it holds: its elements, or what its words hold.
    pub fn n_weights(&self) -> usize {
        self.0.words.map_or_else(|| self.0.shape.n_elems(), |words| words.n_weights)
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// How it starts.
    pub fn init(&self) -> Init {
        self.0.init
    }

    /// The same number for every handle of this parameter, and for no other parameter that lives.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Gives it a home; a former one is left.
    pub fn settle(&self, home: Arc<dyn ParamHome>, index: usize) {
        *self.0.slot.write().unwrap_or_else(PoisonError::into_inner) = Some(Slot { home, index });
    }

    /// Takes its home away.
    pub fn unsettle(&self) {
        *self.0.slot.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether it has a home.
    pub fn is_settled(&self) -> bool {
        self.0.slot.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn slot(&self) -> Result<Slot> {
        let slot = self.0.slot.read().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or_else(|| {
            Error::Usage(
                "a parameter is used before its model was prepared: it has no memory yet".to_string(),
            )
        })
    }

    /// The working copy, lent until the tensor is dropped.
    ///
    /// # Errors
    /// Without a home, or when the home cannot lend it.
    pub fn weight(&self) -> Result<Tensor> {
        let slot = self.slot()?;
        Ok(slot.home.weight(slot.index)?.lent_by(self))
    }

    /// Where its gradient goes; `None` when it is frozen.
    ///
    /// # Errors
    /// Without a home, or when the home cannot lend it.
    pub fn grad(&self) -> Result<Option<GradSlot>> {
        let slot = self.slot()?;
        slot.home.grad(slot.index)
    }

    /// A copy of its gradient as far as backward passes have made it, in f32; `None` if none has, or if it is frozen.
    ///
    /// # Errors
    /// Without a home, or when the gradient is not here in one piece.
    pub fn gradient(&self) -> Result<Option<Tensor>> {
        let slot = self.slot()?;
        slot.home.gradient(slot.index)
    }

    /// The tape on which a forward pass of its model is being recorded.
    pub(crate) fn active_tape(&self) -> Result<Option<Tape>> {
        let slot = self.slot()?;
        Ok(slot.home.active_tape())
    }

    /// Whether it is trained.
    ///
    /// # Errors
    /// Without a home.
    pub fn trainable(&self) -> Result<bool> {
        let slot = self.slot()?;
        Ok(slot.home.trainable(slot.index))
    }
}

impl std::fmt::Debug for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Param({:?})", self.0.shape)
    }
}

/// One parameter's place in a flat buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLocation {
    /// Its first element.
    pub first: usize,
    /// Its shape.
    pub shape: Shape,
}

/// Parameters side by side in one flat buffer of weights and one of f32 gradients. Either may be absent for a while:
/// weights that are not gathered, gradients that have left.
pub struct FlatParams {
    places: Vec<ParamLocation>,
    dtype: DType,
    trainable: bool,
    buffers: Mutex<Buffers>,
    /// Whether a gradient was written since the last [`FlatParams::clear_grads`].
    touched: Vec<AtomicBool>,
    device: Device,
}

#[derive(Default)]
struct Buffers {
    weights: Option<FlatBuffer>,
    grads: Option<FlatBuffer>,
}

impl FlatParams {
    /// Parameters at `places` of `weights` (elements of `dtype`) and, when trained, of `grads` (f32).
    ///
    /// # Errors
    /// [`Error::Shape`] when a place lies outside a buffer.
    pub fn new(
        places: Vec<ParamLocation>,
        dtype: DType,
        weights: FlatBuffer,
        grads: Option<FlatBuffer>,
        device: &Device,
    ) -> Result<FlatParams> {
        let params = FlatParams::detached(places, dtype, grads.is_some(), device);
        params.attach_weights(weights)?;
        grads.map_or(Ok(()), |grads| params.attach_grads(grads))?;
        Ok(params)
    }

    /// Parameters at `places` of buffers that come later.
    pub fn detached(
        places: Vec<ParamLocation>,
        dtype: DType,
        trainable: bool,
        device: &Device,
    ) -> FlatParams {
        let touched = places.iter().map(|_| false.into()).collect();
        FlatParams { places, dtype, trainable, buffers: Mutex::default(), touched, device: device.clone() }
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        // Both fields are whole at every moment.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, what: &str, buffer: &FlatBuffer, elem_bytes: usize) -> Result<()> {
        let end = self.places.iter().map(|p| p.first.saturating_add(p.shape.n_elems())).max().unwrap_or(0);
        if end.checked_mul(elem_bytes).is_none_or(|bytes| bytes > buffer.len_bytes()) {
            return Err(Error::Shape {
                op: "FlatParams",
                expected: format!("a flat buffer of at least {end} elements of {elem_bytes} bytes"),
                got: format!("{buffer:?} for {what}"),
            });
        }
        Ok(())
    }

    /// From now on the working copies lie here.
    ///
    /// # Errors
    /// [`Error::Shape`] when a place lies outside the buffer.
    pub fn attach_weights(&self, weights: FlatBuffer) -> Result<()> {
        self.check("weights", &weights, self.dtype.size())?;
        self.buffers().weights = Some(weights);
        Ok(())
    }

    /// From now on gradients go here.
    ///
    /// # Errors
    /// [`Error::Shape`] when a place lies outside the buffer.
    pub fn attach_grads(&self, grads: FlatBuffer) -> Result<()> {
        self.check("gradients", &grads, 4)?;
        self.buffers().grads = Some(grads);
        Ok(())
    }

    /// The working copies are gone until they are attached again.
    pub fn detach_weights(&self) -> Option<FlatBuffer> {
        self.buffers().weights.take()
    }

    /// The gradients are gone until they are attached again.
    pub fn detach_grads(&self) -> Option<FlatBuffer> {
        self.buffers().grads.take()
    }

    /// The working copies, where they are.
    pub fn weights(&self) -> Option<FlatBuffer> {
        self.buffers().weights.clone()
    }

    /// The gradients, where they are.
    pub fn grads(&self) -> Option<FlatBuffer> {
        self.buffers().grads.clone()
    }

    /// The parameters' places.
    pub fn places(&self) -> &[ParamLocation] {
        &self.places
    }

    /// The compute dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether parameter `index` got a gradient since the last [`FlatParams::clear_grads`].
    pub fn touched(&self, index: usize) -> bool {
        self.touched[index].load(Ordering::Relaxed)
    }

    /// Forgets all gradients: the next one overwrites.
    pub fn clear_grads(&self) {
        self.touched.iter().for_each(|t| t.store(false, Ordering::Relaxed));
    }

    /// Writes zeros where no gradient came, so that the whole buffer is defined.
    ///
    /// # Errors
    /// While somebody holds the gradients.
    pub fn zero_untouched(&self) -> Result<()> {
        let Some(grads) = self.grads() else { return Ok(()) };
        for (place, touched) in self.places.iter().zip(&self.touched) {
            if !touched.swap(true, Ordering::Relaxed) {
                let range = place.first..place.first + place.shape.n_elems();
                let (mut lease, mut launch) = (grads.write()?, self.device.quiet_launch("zeros"));
                let zeros = launch.write_flat::<f32>(&mut lease, &range, Mode::Write)?;
                launch.cuda(|gpu| gpu.fill(&zeros, 0))?;
                launch.run(move |cpu| zeros.slice(cpu).fill(0.0))?;
            }
        }
        Ok(())
    }
}

impl ParamHome for FlatParams {
    fn weight(&self, index: usize) -> Result<Tensor> {
        let weights = self.weights().ok_or_else(|| {
            Error::Usage(
                "a weight is used outside of its unit, where it is not gathered: call the unit through Unit::run or \
                 Unit::call"
                    .to_string(),
            )
        })?;
        let place = self.places[index];
        let offset_bytes = place.first * self.dtype.size();
        Ok(Tensor::leased(weights.read()?, offset_bytes, place.shape, self.dtype, &self.device))
    }

    fn grad(&self, index: usize) -> Result<Option<GradSlot>> {
        if !self.trainable {
            return Ok(None);
        }
        let grads = self.grads().ok_or_else(|| {
            Error::Usage("a gradient comes where its unit has no place for one".to_string())
        })?;
        let place = self.places[index];
        let touched = self.touched[index].swap(true, Ordering::Relaxed);
        let store = if touched { Store::Add } else { Store::Overwrite };
        Ok(Some(GradSlot { lease: grads.write()?, first: place.first, len: place.shape.n_elems(), store }))
    }

    fn gradient(&self, index: usize) -> Result<Option<Tensor>> {
        if !self.trainable || !self.touched(index) {
            return Ok(None);
        }
        let Some(grads) = self.grads() else { return Ok(None) };
        let place = self.places[index];
        Tensor::leased(grads.read()?, place.first * 4, place.shape, DType::F32, &self.device)
            .copied("gradient")
            .map(Some)
    }

    fn trainable(&self, _index: usize) -> bool {
        self.trainable
    }

    fn place(&self, index: usize) -> Option<Range<usize>> {
        self.places.get(index).map(|place| place.first..place.first + place.shape.n_elems())
    }
}
