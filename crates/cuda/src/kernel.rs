//! What is known about a kernel without compiling it: its name for each type, its parameters, its block.

use crate::attention::Tile;
use crate::element::Element;
use crate::source::{Source, Unit};

/// The type of a parameter's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The dtype of this number in the name of the instance.
    Dtype(usize),
    /// The same in all instances.
    Fixed(Element),
}

/// What a kernel does with a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A pointer to memory that it reads.
    Read,
    /// A pointer to memory that it overwrites.
    Write,
    /// A pointer to memory that it reads and writes, or writes in part.
    Update,
    /// A number.
    Value,
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What happens to it.
    pub access: Access,
    /// Of what type.
    pub of: Of,
}

/// The dtypes of an instance, in the order of its name.
pub type Dtypes = &'static [Element];

/// A kernel with all its instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// The name of the op, with which the names of instances begin.
    pub op: &'static str,
    /// The file that has it.
    pub source: Source,
    /// Threads of a block; of attention with its usual tile.
    pub threads: u32,
    /// Its parameters in their order.
    pub params: &'static [Param],
    /// The dtypes that it is compiled for.
    pub dtypes: &'static [Dtypes],
    /// The head dims that it is compiled for, with a unit for each; empty where it does not depend on one.
    pub head_dims: &'static [u32],
}

/// An instance of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// For these dtypes.
    pub dtypes: Dtypes,
    /// For heads of this many elements, where it depends on that.
    pub head_dim: Option<u32>,
    /// Of attention, a tile that is not the usual one.
    pub tile: Option<Tile>,
}

impl Kernel {
    /// The instance for some dtypes, and for the least head dim that is not below `head_dim`; none where it is not
    /// compiled for them.
    pub fn instance(&'static self, dtypes: &[Element], head_dim: Option<u32>) -> Option<Instance> {
        let dtypes = *self.dtypes.iter().find(|own| **own == dtypes)?;
        let head_dim = match head_dim {
            None if self.head_dims.is_empty() => None,
            Some(wanted) => Some(*self.head_dims.iter().find(|own| **own >= wanted)?),
            None => return None,
        };
        Some(Instance { kernel: self, dtypes, head_dim, tile: None })
    }

    /// All of them.
    pub fn instances(&'static self) -> impl Iterator<Item = Instance> {
        let head_dims: Vec<Option<u32>> = match self.head_dims {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        self.dtypes.iter().flat_map(move |dtypes| {
            let instance = |&head_dim| Instance { kernel: self, dtypes, head_dim, tile: None };
            head_dims.iter().map(instance).collect::<Vec<_>>()
        })
    }
}

impl Instance {
    /// Its name in the compiled code.
    pub fn name(&self) -> String {
        let mut name = self.kernel.op.to_string();
        for dtype in self.dtypes {
            name = format!("{name}_{dtype}");
        }
        if let Some(head_dim) = self.head_dim {
            name = format!("{name}_{head_dim}");
        }
        if let Some(Tile { rows, walked, wgmma }) = self.tile {
            name = format!("{name}_{rows}_{walked}{}", if wgmma { "_wgmma" } else { "" });
        }
        name
    }

    /// The same with a tile, where it is one of attention; the usual tile has no name of its own.
    pub fn with_tile(self, tile: Tile) -> Instance {
        let other = |head_dim| tile != Tile::of_unit(self.kernel.source, self.dtypes[0], head_dim);
        Instance { tile: self.head_dim.is_some_and(other).then_some(tile), ..self }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.tile.map_or(self.kernel.threads, Tile::threads)
    }

    /// The type of a parameter's elements.
    pub fn element(&self, param: &Param) -> Element {
        match param.of {
            Of::Dtype(k) => self.dtypes[k],
            Of::Fixed(element) => element,
        }
    }

    /// Its parameters as C declares them.
    pub fn signature(&self) -> String {
        let declared = self.kernel.params.iter().map(|param| {
            let element = self.element(param);
            match param.access {
                Access::Read => format!("const {element}*"),
                Access::Write | Access::Update => format!("{element}*"),
                Access::Value => element.to_string(),
            }
        });
        declared.collect::<Vec<_>>().join(", ")
    }

    /// What is compiled for it.
    pub fn unit(&self) -> Unit {
        let mut defines = match self.head_dim {
            None => vec![],
            Some(head_dim) => {
                vec![("ELEMENT", self.dtypes[0].to_string()), ("HEAD_DIM", head_dim.to_string())]
            }
        };
        if let Some(Tile { rows, walked, wgmma }) = self.tile {
            defines.extend([("OF_ROWS", rows.to_string()), ("OF_WALKED", walked.to_string())]);
            defines.extend(wgmma.then(|| ("WGMMA", "1".to_owned())));
        }
        Unit { source: self.kernel.source, defines }
    }
}
