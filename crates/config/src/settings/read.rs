//! The types as which settings are read.

use super::keys::{Kind, Row, Typed};
use super::node::Entry;
use super::secret::Secret;
use super::value::{self, AUTO, Value};

/// A type as which a setting is read. Where `auto` is written, a reader gets the default of its key.
pub trait Read: Typed {
    /// What a reader gets.
    type Of<'s>;

    /// What the value of a key means.
    fn read<'s>(value: &'s Value, key: &'static Row) -> Self::Of<'s>;

    /// The same as a value of its own.
    fn owned(value: &Value, key: &'static Row) -> Self;
}

/// A type that is read by value: what a [`Value`] of its kind is; where there is none, the default stands.
macro_rules! by_value {
    ($type:ty, $kind:ident, $is_optional:expr, $is_signed:literal, $of:expr) => {
        impl Typed for $type {
            const KIND: Kind = Kind::$kind;
            const IS_OPTIONAL: Option<bool> = $is_optional;
            const IS_SIGNED: bool = $is_signed;
        }

        impl Read for $type {
            type Of<'s> = $type;

            fn read(value: &Value, key: &'static Row) -> $type {
                let of: fn(&Value) -> Option<$type> = $of;
                let default = || of(&value::default(key)).unwrap_or_default();
                of(value).unwrap_or_else(default)
            }

            fn owned(value: &Value, key: &'static Row) -> $type {
                Self::read(value, key)
            }
        }

        impl Typed for Option<$type> {
            const KIND: Kind = Kind::$kind;
            const IS_OPTIONAL: Option<bool> = Some(true);
            const IS_SIGNED: bool = $is_signed;
        }

        impl Read for Option<$type> {
            type Of<'s> = Option<$type>;

            fn read(value: &Value, _: &'static Row) -> Option<$type> {
                let of: fn(&Value) -> Option<$type> = $of;
                of(value)
            }

            fn owned(value: &Value, key: &'static Row) -> Option<$type> {
                Self::read(value, key)
            }
        }
    };
}

// A switch without a default is off.
by_value!(bool, Bool, None, true, |value| match value {
    Value::Bool(x) => Some(*x),
    _ => None,
});
by_value!(i64, Int, Some(false), true, |value| match value {
    Value::Int(x) => Some(*x),
    _ => None,
});
by_value!(u64, Int, Some(false), false, |value| match value {
    Value::Int(x) => u64::try_from(*x).ok(),
    _ => None,
});
by_value!(usize, Int, Some(false), false, |value| match value {
    Value::Int(x) => usize::try_from(*x).ok(),
    _ => None,
});
by_value!(f64, Float, Some(false), true, |value| match value {
    Value::Float(x) => Some(*x),
    _ => None,
});

/// A type that is read by reference: what a [`Value`] of its kind is, and what stands where there is none.
macro_rules! by_reference {
    ($type:ty, $of:ty, $kind:ident, $is_optional:expr, $read:expr) => {
        impl Typed for $type {
            const KIND: Kind = Kind::$kind;
            const IS_OPTIONAL: Option<bool> = $is_optional;
        }

        impl Read for $type {
            type Of<'s> = &'s $of;

            fn read<'s>(value: &'s Value, key: &'static Row) -> &'s $of {
                let read: for<'v> fn(&'v Value, &'static Row) -> &'v $of = $read;
                read(value, key)
            }

            fn owned(value: &Value, key: &'static Row) -> $type {
                Self::read(value, key).to_owned()
            }
        }
    };
}

by_reference!(String, str, Text, Some(false), |value, key| match value {
    Value::Text(x) if x == AUTO => key.default,
    Value::Text(x) => x,
    // Empty words, such as `--flag ""`, are none.
    _ => "",
});
by_reference!(Vec<String>, [String], List, None, |value, _| match value {
    Value::List(names) => names,
    _ => &[],
});
by_reference!(Vec<Entry>, [Entry], Map, None, |value, _| match value {
    Value::Map(entries) => entries,
    _ => &[],
});
by_reference!(Value, Value, Mixed, None, |value, _| value);

impl Typed for Option<String> {
    const KIND: Kind = Kind::Text;
    const IS_OPTIONAL: Option<bool> = Some(true);
}

impl Read for Option<String> {
    type Of<'s> = Option<&'s str>;

    fn read<'s>(value: &'s Value, _: &'static Row) -> Option<&'s str> {
        match value {
            Value::Text(x) if x != AUTO => Some(x),
            _ => None,
        }
    }

    fn owned(value: &Value, key: &'static Row) -> Option<String> {
        Self::read(value, key).map(str::to_owned)
    }
}

impl Typed for Option<Secret> {
    const KIND: Kind = Kind::Secret;
    const IS_OPTIONAL: Option<bool> = Some(true);
}

impl Read for Option<Secret> {
    type Of<'s> = Option<&'s Secret>;

    fn read<'s>(value: &'s Value, _: &'static Row) -> Option<&'s Secret> {
        match value {
            Value::Secret(x) => Some(x),
            _ => None,
        }
    }

    fn owned(value: &Value, key: &'static Row) -> Option<Secret> {
        Self::read(value, key).cloned()
    }
}

/// Types that are words.
pub trait Words: Read {}

impl Words for String {}
impl Words for Option<String> {}
