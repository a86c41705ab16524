//! A section of a configuration: its struct, its keys, and how the struct is read from them, declared in one place. A key
//! that only one part of a program reads is a line of a section and the place that uses it.

use std::fmt::Debug;
use std::path::Path;

use serde_json::Value;

/// What follows where a setting is another one than in the run that saved a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Something else is computed.
    Computes,
    /// Something else is computed, as it is on another number of ranks.
    Ranks,
    /// The run ends elsewhere; whether that changes more, the steps say.
    Length,
    /// The same is computed, but for rounding; what files hold is compared by itself.
    Nothing,
}

/// A setting that a run records.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its name, which is that of a key where there is one.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
    /// What it changes.
    pub effect: Effect,
    /// Whether the value is a text that Rust's names and brackets make, and not one that somebody wrote.
    pub is_rust: bool,
}

impl Recorded {
    /// A value as it is.
    pub fn new(name: &'static str, value: impl Into<Value>, effect: Effect) -> Recorded {
        Recorded { name, value: value.into(), effect, is_rust: false }
    }

    /// A value with which something else is computed.
    pub fn computes(name: &'static str, value: impl Into<Value>) -> Recorded {
        Recorded::new(name, value, Effect::Computes)
    }

    /// A value of several parts.
    pub fn printed(name: &'static str, value: Option<&impl Debug>, effect: Effect) -> Recorded {
        // A run before may have had one, and is then shown in the same words.
        let Some(value) = value else {
            return Recorded { is_rust: true, ..Recorded::new(name, Value::Null, effect) };
        };
        let text = format!("{value:?}");
        // A path or a word is not a text in quotes.
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(text) => Recorded::new(name, text, effect),
            None => Recorded { is_rust: true, ..Recorded::new(name, text, effect) },
        }
    }

    /// A path, which nobody spells otherwise; what its files hold is compared by itself.
    pub fn path(name: &'static str, path: Option<&Path>) -> Recorded {
        let none = Recorded::new(name, Value::Null, Effect::Nothing);
        path.map_or(none, |path| Recorded::printed(name, Some(&path), Effect::Nothing))
    }
}

/// The number that a short float was written as.
pub fn number(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Declares a struct of settings with its keys, in the order of help. A line is a row as in [`key_table!`](crate::key_table)
/// without its group; behind `=>` stand the field that it fills and what a run records of it:
///
/// - `Computes` and `Nothing`: the value, with this [`Effect`];
/// - `Rounded`: as `Computes`, of a short float;
/// - `Unrecorded`: nothing, as it changes no result;
/// - `ByHand`: what the record of a run says itself.
///
/// `field` alone has the type and the documentation of its key. `field: Type, "Documentation." = |settings| value` is
/// computed. Fields that are not read from settings alone are in `with Parts { … }`, a struct that the reader fills.
macro_rules! section {
    (@doc $doc:expr) => { concat!($doc, ".") };
    (@doc $doc:expr, $own:literal) => { $own };
    (@type $read_as:ty) => { $read_as };
    (@type $read_as:ty, $type:ty) => { $type };
    (@value $settings:ident, $key:ident) => { $settings.owned($key) };
    (@value $settings:ident, $key:ident, $value:expr) => {{
        let read: fn(&$crate::settings::resolve::Settings) -> _ = $value;
        read($settings)
    }};
    (@record $args:ident, $field:ident, $name:literal, Unrecorded) => { None };
    (@record $args:ident, $field:ident, $name:literal, ByHand) => { None };
    (@record $args:ident, $field:ident, $name:literal, Rounded) => {
        Some($crate::settings::section::Recorded::computes(
            $name,
            $crate::settings::section::number($args.$field),
        ))
    };
    (@record $args:ident, $field:ident, $name:literal, $effect:ident) => {
        Some($crate::settings::section::Recorded::new(
            $name,
            Clone::clone(&$args.$field),
            $crate::settings::section::Effect::$effect,
        ))
    };
    (
        $(#[$meta:meta])*
        pub struct $args:ident of $group:ident $(with $parts:ident {
            $($(#[doc = $part_doc:literal])+ $part:ident: $part_type:ty,)+
        })?

        $(#[$table_meta:meta])*
        pub const $table:ident = [
            $(
                $key:ident: $read_as:ty = ($value_type:expr, $name:literal, $default:expr, $status:expr, $doc:expr)
                $(=> $effect:ident $field:ident $(: $type:ty, $own_doc:literal = $value:expr)?)?;
            )*
        ];
    ) => {
        $(#[$meta])*
        pub struct $args {
            $($($(#[doc = $part_doc])+ pub $part: $part_type,)+)?
            $($(
                #[doc = $crate::settings::section::section!(@doc $doc $(, $own_doc)?)]
                pub $field: $crate::settings::section::section!(@type $read_as $(, $type)?),
            )?)*
        }

        $(
            #[doc = concat!("What of [`", stringify!($args), "`] follows from more than settings.")]
            #[derive(Clone, Debug, PartialEq)]
            pub struct $parts {
                $($(#[doc = $part_doc])+ pub $part: $part_type,)+
            }
        )?

        impl $args {
            /// What the settings say.
            pub fn read(settings: &$crate::settings::resolve::Settings $(, parts: $parts)?) -> $args {
                $args {
                    $($($part: parts.$part,)+)?
                    $($($field: $crate::settings::section::section!(@value settings, $key $(, $value)?),)?)*
                }
            }

            /// What a run records of the keys.
            pub fn recorded(&self) -> Vec<$crate::settings::section::Recorded> {
                let all =
                    [$($($crate::settings::section::section!(@record self, $field, $name, $effect),)?)*];
                all.into_iter().flatten().collect()
            }

            $(
                /// What follows from more than settings.
                pub fn parts(&self) -> $parts {
                    $parts { $($part: Clone::clone(&self.$part),)+ }
                }
            )?
        }

        $crate::settings::keys::key_table! {
            $(#[$table_meta])*
            pub const $table = [
                $($key: $read_as = $crate::settings::keys::key(
                    $crate::settings::keys::Group::$group, $value_type, $name, $default, $status, $doc,
                ),)*
            ];
        }
    };
}

pub(crate) use section;
