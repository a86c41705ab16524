//! Keeps a process alive when a file that it has mapped becomes shorter.
//!
//! The system sends SIGBUS to a thread that touches a page beyond the end of its file. For addresses that are guarded here
//! the handler puts a page of zeros there and notes it; for all others it leaves the signal to whoever handled it before.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Watches addresses while it lives.
#[derive(Debug)]
pub(super) struct Guard {
    place: &'static Place,
}

/// Addresses that are watched. Places are used again but never released, since a handler may look at them at any time.
#[derive(Debug)]
struct Place {
    is_taken: AtomicBool,
    begin: AtomicUsize,
    end: AtomicUsize,
    is_broken: AtomicBool,
    next: *const Place,
}

// SAFETY: `next` is written before the place is shown to others, and points to a place that is never released.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

/// The first of all places.
static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

/// What handled the signal before; 0 while nothing is known.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before(libc::sigaction);

// SAFETY: it is plain numbers and the address of a function.
unsafe impl Send for Before {}
// SAFETY: as above.
unsafe impl Sync for Before {}

impl Guard {
    /// Watches these addresses, which are those of a mapped file.
    pub(super) fn over(addresses: Range<usize>) -> io::Result<Guard> {
        install()?;
        let free = |place: &&'static Place| {
            place.is_taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = places().find(free).unwrap_or_else(add_place);
        place.is_broken.store(false, Ordering::Relaxed);
        place.end.store(addresses.end, Ordering::Relaxed);
        // What stands in it counts once it has a beginning.
        place.begin.store(addresses.start, Ordering::Release);
        Ok(Guard { place })
    }

    /// Whether a page of these addresses was missing in the file.
    pub(super) fn is_broken(&self) -> bool {
        self.place.is_broken.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.place.begin.store(0, Ordering::Release);
        self.place.end.store(0, Ordering::Release);
        self.place.is_taken.store(false, Ordering::Release);
    }
}

/// All places.
fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: places are leaked boxes, so these pointers are null or valid for ever.
    let place = |pointer: *const Place| unsafe { pointer.as_ref() };
    std::iter::successors(place(FIRST.load(Ordering::Acquire)), move |last| place(last.next))
}

/// A new place, which is taken.
fn add_place() -> &'static Place {
    let place = Box::leak(Box::new(Place {
        is_taken: AtomicBool::new(true),
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_broken: AtomicBool::new(false),
        next: ptr::null(),
    }));
    let mut first = FIRST.load(Ordering::Acquire);
    loop {
        place.next = first;
        match FIRST.compare_exchange_weak(first, place, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return place,
            Err(now) => first = now,
        }
    }
}

/// Makes the handler that of the process, once.
fn install() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        // SAFETY: all zeros is a valid `sigaction`: the default action with no flags and an empty mask. Both calls get
        // pointers to such values, and the handler does only what a handler may: it reads atomics and calls the system.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
                return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
            }
            drop(BEFORE.set(Before(before)));
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_missing_page;
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            match libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
            }
        }
    });
    done.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_missing_page(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes the description of the signal, which has an address where a thread touched one.
    let address = unsafe { info.as_ref().map_or(0, |info| info.si_addr().addr()) };
    let holds = |place: &&'static Place| {
        let begin = place.begin.load(Ordering::Acquire);
        begin != 0 && (begin..place.end.load(Ordering::Relaxed)).contains(&address)
    };
    if let Some(place) = places().find(holds)
        && replace_page(address)
    {
        place.is_broken.store(true, Ordering::Release);
        return;
    }
    // It is not ours: the thread does what it did once more, and who handled the signal before gets it.
    let before = BEFORE.get().map_or(ptr::null(), |before| &raw const before.0);
    if !before.is_null() {
        // SAFETY: the pointer is to the action that the system gave.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    }
}

/// Puts a page of zeros at an address.
fn replace_page(address: usize) -> bool {
    let size = rustix::param::page_size();
    let page = ptr::with_exposed_provenance_mut(address / size * size);
    // SAFETY: the page belongs to a map of a file that is read-only and still borrowed by the thread that touched it, so
    // nothing else can be there, and nobody could read what it held: it is beyond the end of the file.
    unsafe { mmap_anonymous(page, size, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
}
