//! Where initial weights come from: each rank reads only the elements that it needs.

use std::ops::Range;

use oarlock_tensor::ops::update::Stream;
use oarlock_tensor::{Device, Init, Shape};

use crate::Result;
use crate::nn::NamedParam;

/// A run of elements of a parameter.
#[derive(Clone, Debug)]
pub struct ParamSlice<'a> {
    /// The full path of the parameter in its model.
    pub name: &'a str,
    /// The shape of the whole parameter.
    pub shape: Shape,
    /// How the parameter begins where nothing gives its values.
    pub init: Init,
    /// Which of its elements, in row-major order.
    pub elements: Range<usize>,
}

impl<'a> ParamSlice<'a> {
    /// Elements of a parameter.
    pub fn of(named: &'a NamedParam, elements: Range<usize>) -> ParamSlice<'a> {
        ParamSlice { name: &named.name, shape: *named.param.shape(), init: named.param.init(), elements }
    }

    /// Other elements of the same parameter.
    #[must_use]
    pub fn at(&self, elements: Range<usize>) -> ParamSlice<'a> {
        ParamSlice { elements, ..self.clone() }
    }

    /// All elements of the parameter.
    #[must_use]
    pub fn whole(&self) -> ParamSlice<'a> {
        self.at(0..self.shape.n_elems())
    }
}

/// A source of initial weights.
pub trait WeightSource {
    /// Fills `out`, which is as long as the slice; of a parameter of words ([`Param::of_words`](oarlock_tensor::Param::of_words)) with the bits of the words.
    ///
    /// # Errors
    /// When the source lacks the parameter or holds another shape.
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()>;

    /// Whether it has values for a parameter; one that it lacks stays as it is. A source that reads from others asks them.
    fn has(&self, _name: &str) -> bool {
        true
    }

    /// Warnings about the files that it reads: what they contradict themselves in. A source that reads from others
    /// asks them.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<S: WeightSource + ?Sized> WeightSource for Box<S> {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        (**self).read(slice, out)
    }

    fn has(&self, name: &str) -> bool {
        (**self).has(name)
    }

    fn notes(&self) -> Vec<String> {
        (**self).notes()
    }
}

/// Weights drawn at random, each element addressed by (seed, parameter, element): the same for every number of ranks.
#[derive(Clone, Debug)]
pub struct SeededInit {
    seed: u64,
    device: Device,
    /// The parameter drawn last, where it can only be drawn as a whole.
    whole: Option<(String, Vec<f32>)>,
}

impl SeededInit {
    /// Weights of this seed, drawn on a device.
    pub fn new(seed: u64, device: &Device) -> SeededInit {
        SeededInit { seed, device: device.clone(), whole: None }
    }
}

impl WeightSource for SeededInit {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> Result<()> {
        let ParamSlice { name, shape, init, elements } = slice;
        let stream = Stream { seed: self.seed, stream: id_of(name) };
        if !init.is_whole() {
            self.whole = None;
            return Ok(init.fill(shape, &self.device, stream, elements.start as u64, out)?);
        }
        let known =
            self.whole.take().filter(|(other, values)| other == name && values.len() == shape.n_elems());
        let (name, values) = match known {
            Some(known) => known,
            None => {
                let mut values = vec![0.0; shape.n_elems()];
                init.fill(shape, &self.device, stream, 0, &mut values)?;
                ((*name).to_owned(), values)
            }
        };
        out.copy_from_slice(&values[elements.clone()]);
        self.whole = Some((name, values));
        Ok(())
    }
}

/// A number for a name (FNV-1a), so that each parameter has random numbers of its own.
fn id_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::Par;
    use oarlock_tensor::cpu::Isa;

    use super::*;

    #[test]
    fn parts_of_an_orthogonal_matrix_are_those_of_the_whole() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let (shape, init) = (Shape::new(&[6, 4]).unwrap(), Init::Orthogonal { gain: 1.5 });
        let mut source = SeededInit::new(7, &device);
        let mut read = |name: &str, elements: Range<usize>| {
            let mut out = vec![0.0; elements.len()];
            source.read(&ParamSlice { name, shape, init, elements }, &mut out).unwrap();
            out
        };
        let (whole, other) = (read("a", 0..24), read("b", 0..24));
        assert_ne!(whole, other);
        assert_eq!([read("a", 0..5), read("a", 5..24)].concat(), whole);
        assert_eq!(read("b", 3..9), other[3..9]);
    }
}
