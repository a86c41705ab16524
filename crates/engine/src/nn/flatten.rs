//! Layers without parameters that keep every element: [`Flatten`], [`Unflatten`] and [`Identity`].

use oarlock_tensor::{Error, Result, Tensor};

use super::module::{Forward, Module, Visitor};

/// Joins neighboring dims into one: `torch.nn.Flatten`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flatten {
    /// The first dim that is joined; torch's default is 1, which keeps the batch.
    pub start_dim: usize,
    /// The last one; `None` for the last of the tensor.
    pub end_dim: Option<usize>,
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten { start_dim: 1, end_dim: None }
    }
}

impl Forward<Tensor> for Flatten {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let sizes = x.sizes();
        let end = self.end_dim.unwrap_or(sizes.len().saturating_sub(1));
        if self.start_dim > end || end >= sizes.len() {
            return Err(Error::Shape {
                op: "Flatten",
                expected: format!("a tensor with the dims {} to {end}", self.start_dim),
                got: format!("{:?}", x.shape()),
            });
        }
        let joined = sizes[self.start_dim..=end].iter().product();
        x.reshape(&[&sizes[..self.start_dim], &[joined], &sizes[end + 1..]].concat()[..])
    }
}

impl Module for Flatten {
    fn visit(&self, _visitor: &mut dyn Visitor) {}
}

/// One dim as several: `torch.nn.Unflatten`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unflatten {
    /// The dim; negative ones count from the end.
    pub dim: isize,
    /// Its new sizes, of which one may be -1.
    pub sizes: Vec<isize>,
}

impl Forward<Tensor> for Unflatten {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.unflatten(self.dim, &self.sizes)
    }
}

impl Module for Unflatten {
    fn visit(&self, _visitor: &mut dyn Visitor) {}
}

/// What comes in goes out: `torch.nn.Identity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity;

impl Forward<Tensor> for Identity {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

impl Module for Identity {
    fn visit(&self, _visitor: &mut dyn Visitor) {}
}
