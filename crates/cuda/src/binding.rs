//! Tables of the functions of a library that is loaded while the program runs.

/// A function and its name.
pub(crate) struct Function<F> {
    pub(crate) name: &'static str,
    pub(crate) call: F,
}

/// Declares `Api`, the functions of a [`Library`](crate::libraries::Library) by what they return, as
/// `field: "symbol" (types);`. Those after `optional` are not in every version.
///
/// The types must be those of the library's header in all versions that are supported.
macro_rules! binding {
    (
        $library:ident;
        $(-> $result:ty { $($field:ident: $symbol:literal ($($arg:ty),* $(,)?);)+ })+
        $(optional -> $maybe_result:ty { $($maybe:ident: $maybe_symbol:literal ($($maybe_arg:ty),*);)+ })?
    ) => {
        /// The functions that are used. Device pointers are declared as the numbers that they are on the host.
        pub(crate) struct Api {
            $($(pub(super) $field: $crate::binding::Function<unsafe extern "C" fn($($arg),*) -> $result>,)+)+
            $($(pub(super) $maybe:
                Option<$crate::binding::Function<unsafe extern "C" fn($($maybe_arg),*) -> $maybe_result>>,)+)?
            /// Never unloaded: such libraries have threads and handlers of their own in the process.
            _library: std::mem::ManuallyDrop<libloading::os::unix::Library>,
        }

        impl Api {
            /// Loads a file and finds its functions.
            pub(super) fn load(file: &std::path::Path) -> $crate::error::Result<Api> {
                Api::open(file).map_err(|error| $crate::error::Error::Unusable {
                    library: $crate::libraries::Library::$library,
                    file: file.into(),
                    reason: error.to_string(),
                })
            }

            fn open(file: &std::path::Path) -> std::result::Result<Api, libloading::Error> {
                use libloading::os::unix::{Library, RTLD_NOW};
                // SAFETY: the initialization of these libraries has no conditions, and the types are those of their headers.
                unsafe {
                    let library = Library::open(Some(file), RTLD_NOW)?;
                    Ok(Api {
                        $($($field: $crate::binding::Function {
                            name: $symbol,
                            call: *library.get(concat!($symbol, "\0").as_bytes())?,
                        },)+)+
                        $($($maybe: library.get(concat!($maybe_symbol, "\0").as_bytes()).ok().map(|found| {
                            $crate::binding::Function { name: $maybe_symbol, call: *found }
                        }),)+)?
                        _library: std::mem::ManuallyDrop::new(library),
                    })
                }
            }
        }
    };
}
pub(crate) use binding;

/// Calls a function of a table with the arguments of its type: its name and its result. Whoever uses it says why they are
/// valid.
macro_rules! call {
    ($api:expr, $field:ident($($arg:expr),* $(,)?)) => {{
        let function = &$api.$field;
        (function.name, (function.call)($($arg),*))
    }};
}
pub(crate) use call;

/// A string of a library; none where there is none.
///
/// # Safety
/// The pointer is null, or that of a string that ends with zero and lives until this returns.
pub(crate) unsafe fn string(text: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: the caller's.
    (!text.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
