//! Generic kernels, compiled in this crate for every dtype that they are called with.
//!
//! Rust compiles a generic function in each crate that calls it, with the optimization of that crate. A kernel is compiled
//! here, once, with the optimization of this one.

use std::any::Any;

/// The one of these functions that has the type by which its caller knows it.
#[inline]
pub(crate) fn find<F: Any + Copy>(instances: &[&(dyn Any + Sync)]) -> Option<F> {
    for instance in instances {
        if let Some(found) = (*instance as &dyn Any).downcast_ref() {
            return Some(*found);
        }
    }
    None
}

/// A generic function with an instance for each dtype of its bound: [`Float`](crate::Float), [`Element`](crate::Element)
/// or [`Word`](crate::Word). Two floats are any two; of three, the first two are f32 or as the third. Other instances are
/// listed behind the bounds.
///
/// ```text
/// instances! {
///     pub fn negate[T: Float](x: &mut [T]) { ... }
/// }
/// instances! {
///     pub fn convert[T: Float, U: Float; [f32, bf16] [bf16, f32]](x: &[T], y: &mut [U]) { ... }
/// }
/// ```
macro_rules! instances {
    (@define $types:tt $(#[$meta:meta])* $vis:vis fn $name:ident [$($g:ident : $b:ident),+]
        ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        #[allow(clippy::type_complexity, reason = "the type of the function")]
        $vis fn $name<$($g: $b),+>($($arg: $ty),*) $(-> $ret)? {
            fn generic<$($g: $b),+>($($arg: $ty),*) $(-> $ret)? $body
            static INSTANCES: &[&(dyn ::std::any::Any + Sync)] =
                &$crate::instances::instances!(@all $types [$($g),+] ($($arg: $ty),*) ($($ret)?));
            match $crate::instances::find::<fn($($ty),*) $(-> $ret)?>(INSTANCES) {
                Some(instance) => instance($($arg),*),
                None => unreachable!(concat!(stringify!($name), " has no instance for these dtypes")),
            }
        }
    };
    (@all [$($types:tt)+] $generics:tt $args:tt $ret:tt) => {
        [$($crate::instances::instances!(@instance $types $generics $args $ret)),+]
    };
    (@instance [$($t:ty),+] [$($g:ident),+] ($($arg:ident : $ty:ty),*) ($($ret:ty)?)) => {{
        $(type $g = $t;)+
        #[inline(never)]
        fn instance($($arg: $ty),*) $(-> $ret)? {
            generic::<$($g),+>($($arg),*)
        }
        &(instance as fn($($ty),*) $(-> $ret)?)
    }};
    ($(#[$meta:meta])* $vis:vis fn $name:ident ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? $body
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$T:ident : Float] $($rest:tt)*) => {
        $crate::instances::instances! {
            @define [[f32] [$crate::bf16] [$crate::f16]] $(#[$meta])* $vis fn $name [$T: Float] $($rest)*
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$T:ident : Element] $($rest:tt)*) => {
        $crate::instances::instances! {
            @define [[f32] [$crate::bf16] [$crate::f16] [i32]] $(#[$meta])* $vis fn $name [$T: Element] $($rest)*
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$T:ident : Word] $($rest:tt)*) => {
        $crate::instances::instances! {
            @define [[u16] [u32] [f32] [$crate::bf16] [$crate::f16] [i32]]
            $(#[$meta])* $vis fn $name [$T: Word] $($rest)*
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$T:ident : Float, $U:ident : Float] $($rest:tt)*) => {
        $crate::instances::instances! {
            @define [
                [f32, f32] [f32, $crate::bf16] [f32, $crate::f16]
                [$crate::bf16, f32] [$crate::bf16, $crate::bf16] [$crate::bf16, $crate::f16]
                [$crate::f16, f32] [$crate::f16, $crate::bf16] [$crate::f16, $crate::f16]
            ]
            $(#[$meta])* $vis fn $name [$T: Float, $U: Float] $($rest)*
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$X:ident : Float, $W:ident : Float, $Y:ident : Float] $($rest:tt)*) => {
        $crate::instances::instances! {
            @define [
                [f32, f32, f32]
                [f32, f32, $crate::bf16] [f32, $crate::bf16, $crate::bf16]
                [$crate::bf16, f32, $crate::bf16] [$crate::bf16, $crate::bf16, $crate::bf16]
                [f32, f32, $crate::f16] [f32, $crate::f16, $crate::f16]
                [$crate::f16, f32, $crate::f16] [$crate::f16, $crate::f16, $crate::f16]
            ]
            $(#[$meta])* $vis fn $name [$X: Float, $W: Float, $Y: Float] $($rest)*
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident [$($g:ident : $b:ident),+; $($types:tt)+] $($rest:tt)*) => {
        $crate::instances::instances! { @define [$($types)+] $(#[$meta])* $vis fn $name [$($g: $b),+] $($rest)* }
    };
}
pub(crate) use instances;
