//! The layer: a frozen linear layer and a trained update of low rank (Hu et al. 2021), or one of its direction and its
//! length (DoRA, Liu et al. 2024).

use oarlock_config::config::LoraInit;
use oarlock_engine::nn::{self, Dropout, Forward, Linear, Module, parameter};
use oarlock_tensor::{DType, Init, Param, Result, Shape, Tensor};

use super::base::Base;
use super::reference::is_reference;

/// What the adapter of one layer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraLayer {
    /// The rank of the update.
    pub rank: usize,
    /// What the update is multiplied with.
    pub scale: f32,
    /// The probability with which an element of the input is dropped in training.
    pub dropout: f32,
    /// Whether the length of each row of the weight is trained apart from its direction.
    pub dora: bool,
    /// How `lora_A` begins.
    pub init: LoraInit,
}

/// A linear layer with an adapter: `y = W·x + b + s·B·A·dropout(x)`. W and b are frozen.
///
/// With DoRA, `y = (m / n)·(W·x + s·B·A·x) + b`, where n are the lengths of the rows of `W + s·B·A`, which count as
/// constants in the backward pass, and m are trained; m begins as the lengths of the rows of W, which is what an
/// [`AdaptedSource`](super::AdaptedSource) gives it.
///
/// The layer keeps the names of the one that it is put around. Those of its own are PEFT's: `lora_A.weight`
/// `[rank, inputs]`, `lora_B.weight` `[outputs, rank]`, `lora_magnitude_vector` `[outputs]`.
///
/// ```
/// use oarlock::adapters::{Lora, LoraLayer};
/// use oarlock::nn::{self, Linear};
///
/// # fn main() -> nn::Result<()> {
/// let settings = LoraLayer { rank: 4, scale: 2.0, dropout: 0.0, dora: false, init: Default::default() };
/// let layer = Lora::around(&Linear::new(64, 32)?, settings)?;
/// let trained: Vec<_> = nn::parameters(&layer).into_iter().filter(|named| !named.param.is_frozen()).collect();
/// assert_eq!(trained.iter().map(|named| named.name.as_str()).collect::<Vec<_>>(), ["lora_A.weight", "lora_B.weight"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Module)]
pub struct Lora {
    #[module(name = "")]
    base: Base,
    #[module(name = "")]
    update: Update,
    /// What the layer is [`as_reference`](super::as_reference) where that is not its base alone: a frozen adapter.
    #[module(name = "reference")]
    reference: Option<Update>,
}

/// An update of low rank.
#[derive(Debug, Module)]
struct Update {
    #[module(name = "lora_A")]
    lora_a: Linear,
    #[module(name = "lora_B")]
    lora_b: Linear,
    #[module(name = "lora_magnitude_vector")]
    magnitude: Option<Param>,
    #[module(name = "")]
    dropout: Dropout,
    #[module(skip)]
    scale: f32,
}

impl Lora {
    /// Puts an adapter around a layer, which is frozen. It begins as the layer alone.
    ///
    /// # Errors
    /// A rank of 0.
    pub fn around(base: impl Into<Base>, settings: LoraLayer) -> Result<Lora> {
        let base = base.into();
        base.freeze();
        Ok(Lora { update: Update::new(&base, settings)?, base, reference: None })
    }

    /// With a frozen copy of the adapter, which the layer is
    /// [`as_reference`](super::as_reference); its names begin with `reference.`. Its values
    /// come from where those of the adapter come from.
    ///
    /// # Errors
    /// A rank of 0.
    pub fn with_reference(self, settings: LoraLayer) -> Result<Lora> {
        let reference = Update::new(&self.base, settings)?;
        nn::freeze(&reference);
        Ok(Lora { reference: Some(reference), ..self })
    }
}

impl Update {
    fn new(base: &Base, settings: LoraLayer) -> Result<Update> {
        let LoraLayer { rank, scale, dropout, dora, init } = settings;
        let [n_out, n_in] = base.sizes()?;
        if rank == 0 {
            return Err(oarlock_tensor::Error::Usage("Lora: the rank is 0; give at least 1".into()));
        }
        let lora_a = Linear::new(n_in, rank)?.no_bias();
        let lora_a = match init {
            // Those of PiSSA are of the weight, and come with the source.
            LoraInit::Kaiming | LoraInit::Pissa { .. } => lora_a,
            LoraInit::Gaussian => lora_a.init(Init::Normal { std: 1.0 / rank as f32 }),
        };
        let magnitude = || Ok(Param::in_f32(Shape::new(&[n_out])?, Init::Ones));
        Ok(Update {
            lora_a,
            lora_b: Linear::new(rank, n_out)?.no_bias().init(Init::Zeros),
            magnitude: dora.then(magnitude).transpose()?,
            dropout: Dropout::new(dropout),
            scale,
        })
    }

    /// The base with this update.
    fn forward(&self, base: &Base, x: &Tensor) -> Result<Tensor> {
        if let Some(magnitude) = &self.magnitude {
            return self.with_direction(base, x, magnitude);
        }
        let y = base.forward(x)?;
        self.lora_b.forward_add(y, &self.inner(&self.dropout.forward(x)?)?)
    }

    /// s·A·x: what has only `rank` columns is scaled, not what has all.
    fn inner(&self, x: &Tensor) -> Result<Tensor> {
        self.lora_a.forward(x)?.scale(self.scale)
    }

    fn with_direction(&self, base: &Base, x: &Tensor, magnitude: &Param) -> Result<Tensor> {
        let weight = base.without_bias();
        let dropped = self.dropout.forward(x)?;
        let product = weight.forward(&dropped)?;
        let update = self.lora_b.forward(&self.inner(&dropped)?)?;
        let update = if update.dtype() == product.dtype() { update } else { update.cast(product.dtype())? };
        let directed = product.add(&update)?;
        // The change of length, so that 16 bits are enough for it.
        let more = parameter(magnitude, &directed)?.div(&self.lengths(base)?)?.add_scalar(-1.0)?;
        let more = if directed.dtype() == DType::F32 { more } else { more.cast(directed.dtype())? };
        let y = match self.dropout.p == 0.0 {
            true => directed.add(&directed.mul(&more)?)?,
            // The layer itself sees all of its input.
            false => weight.forward(x)?.add(&update)?.add(&directed.mul(&more)?)?,
        };
        match base.bias() {
            Some(bias) => y.add(&bias.weight()?),
            None => Ok(y),
        }
    }

    /// The lengths of the rows of W + s·B·A in f32, on no tape.
    fn lengths(&self, base: &Base) -> Result<Tensor> {
        let [a, b] = [&self.lora_a, &self.lora_b].map(|linear| Base::from(linear).weight());
        let whole = base.weight()?.add(&b?.matmul(&a?)?.scale(self.scale)?)?;
        whole.square()?.sum(-1)?.sqrt()
    }
}

impl Forward<Tensor> for Lora {
    type Output = Tensor;

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match (is_reference(), &self.reference) {
            (false, _) => self.update.forward(&self.base, x),
            (true, Some(reference)) => reference.forward(&self.base, x),
            (true, None) => self.base.forward(x),
        }
    }
}
