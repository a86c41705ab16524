//! The classes and functions that a pickle may name, and what stands for them. This list is closed.

/// What the elements of a storage are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// Anything else, by its size in bytes; it is not imported.
    Other(u64),
}

impl Element {
    /// Its size.
    pub fn n_bytes(self) -> u64 {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
            Element::Other(n_bytes) => n_bytes,
        }
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// An empty dictionary.
    Dict,
    /// A list of what a list holds.
    Sequence,
    /// What its first argument is: a number's enum, a tuple with another name.
    First,
    /// A tensor over a storage.
    Tensor,
    /// A tensor by a function that is its first argument, with the arguments that are its third.
    TensorOfType,
    /// A type of storage.
    Storage(Element),
    /// An object that is not looked into.
    Object,
}

/// What `module.name` stands for, if it is on the list.
pub fn lookup(module: &str, name: &str) -> Option<Global> {
    use Global::{Dict, First, Object, Sequence, Storage, Tensor, TensorOfType};
    Some(match (module, name) {
        ("collections", "OrderedDict") | ("builtins" | "__builtin__", "dict") => Dict,
        ("builtins" | "__builtin__", "list" | "tuple" | "set" | "frozenset") => Sequence,
        ("torch", "Size") => First,
        ("torch._utils", "_rebuild_tensor_v2") => Tensor,
        ("torch._utils", "_rebuild_parameter") => First,
        ("torch._tensor", "_rebuild_from_type_v2") => TensorOfType,
        ("torch", "FloatStorage") => Storage(Element::F32),
        ("torch", "BFloat16Storage") => Storage(Element::Bf16),
        ("torch", "HalfStorage") => Storage(Element::F16),
        ("torch", "DoubleStorage" | "LongStorage") => Storage(Element::Other(8)),
        ("torch", "IntStorage") => Storage(Element::Other(4)),
        ("torch", "ShortStorage") => Storage(Element::Other(2)),
        ("torch", "CharStorage" | "ByteStorage" | "BoolStorage") => Storage(Element::Other(1)),
        ("torch", "Tensor" | "device" | "float32" | "float16" | "bfloat16" | "float64") => Object,
        ("torch.nn.parameter", "Parameter") | ("_codecs", "encode") => Object,
        ("deepspeed.runtime.zero.config", "ZeroStageEnum") => First,
        ("deepspeed.runtime.zero.offload_config", "OffloadDeviceEnum" | "OffloadStateTypeEnum") => First,
        ("deepspeed.runtime.fp16.loss_scaler", "LossScaler" | "DynamicLossScaler") => Object,
        ("deepspeed.utils.tensor_fragment" | "deepspeed.utils", "fragment_address") => Object,
        _ => return None,
    })
}
