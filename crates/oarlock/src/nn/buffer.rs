//! Buffers: tensors of a model that are no parameters.
