//! Values of all ranks: gather, reduce, pad, broadcast, over any value that holds tensors.
