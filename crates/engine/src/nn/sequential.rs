//! Layers one after the other.

use oarlock_tensor::{Result, Tensor};

use super::module::{Forward, Module, Visitor};

/// A module from a tensor to a tensor; whatever is both is one.
pub trait Layer: Module + Forward<Tensor, Output = Tensor> {}

impl<M: Module + Forward<Tensor, Output = Tensor>> Layer for M {}

/// Layers of any kind, each fed with what the one before gives. Their names are their numbers, as in torch: "0", "1" …
///
/// ```
/// use oarlock::nn::{Dropout, Linear, Relu, Sequential};
///
/// # fn main() -> oarlock::nn::Result<()> {
/// let net = Sequential::new().add(Linear::new(784, 128)?).add(Relu).add(Dropout::new(0.1)).add(Linear::new(128, 10)?);
/// let names: Vec<_> = oarlock::nn::parameters(&net).into_iter().map(|named| named.name).collect();
/// assert_eq!(names, ["0.weight", "0.bias", "3.weight", "3.bias"]);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Sequential(Vec<Box<dyn Layer>>);

impl Sequential {
    /// Without any layer: what comes in goes out.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// With one layer more.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, layer: impl Layer) -> Sequential {
        self.0.push(Box::new(layer));
        self
    }

    /// The number of its layers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|layer| layer.kind())).finish()
    }
}

impl Module for Sequential {
    fn visit(&self, visitor: &mut dyn Visitor) {
        for (index, layer) in self.0.iter().enumerate() {
            visitor.child(&index.to_string(), layer);
        }
    }
}

impl Forward<Tensor> for Sequential {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))
    }
}
