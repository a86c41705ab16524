//! What files of other programs call the parameters of a module.

use std::fmt;
use std::sync::Arc;

/// How files of other programs name the parameters of the module that holds it, and of those beside it and below it. A field of this
/// type is shown by `#[derive(Module)]`.
#[derive(Clone)]
pub struct StoredNames(Arc<Rename>);

/// From a parameter's path below a module to its name in files.
type Rename = dyn Fn(&str) -> String + Send + Sync;

impl StoredNames {
    /// By a function of a parameter's path below the module.
    pub fn new(rename: impl Fn(&str) -> String + Send + Sync + 'static) -> StoredNames {
        StoredNames(Arc::new(rename))
    }

    /// What files call the parameter with this path below the module.
    pub fn stored(&self, name: &str) -> String {
        (self.0)(name)
    }
}

impl fmt::Debug for StoredNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredNames")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Linear, Module};

    #[derive(Module)]
    struct Inner {
        #[module(name = "")]
        names: StoredNames,
        layer: Linear,
    }

    #[derive(Module)]
    struct Outer {
        first: Linear,
        inner: Inner,
    }

    #[test]
    fn a_module_names_what_is_below_it_wherever_it_stands() {
        let layer = || Linear::new(1, 1).unwrap();
        assert!(StoredNames::of(&layer()).is_none());
        let names = StoredNames::new(|name| name.replace("layer", "h"));
        let inner = Inner { names, layer: layer() };
        assert_eq!(StoredNames::of(&inner).unwrap().stored("layer.weight"), "h.weight");
        let names = StoredNames::of(&Outer { first: layer(), inner }).unwrap();
        assert_eq!(names.stored("inner.layer.weight"), "inner.h.weight");
        assert_eq!(names.stored("first.layer"), "first.layer");
    }
}
