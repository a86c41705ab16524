//! The MPI library: the few calls that are used, one at a time. Only the calls that start and end it wait.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mpi_sys as ffi;

use crate::error::{Error, Result};
use crate::messages::{ByteSpan, InFlight, Library, Message, NOTICES};

/// The library, after its start; there is one in a process.
pub(super) struct Mpi {
    comm: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

/// HeldRegion during a call: calls come from several threads, and the library takes one at a time.
static SERIAL: Mutex<()> = Mutex::new(());

fn serial() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: a communicator is a handle that any thread may use, and `SERIAL` makes the calls one at a time, which is what
// MPI_THREAD_SERIALIZED asks for.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

/// A message in flight.
struct Request(ffi::MPI_Request);

// SAFETY: a request is a handle that any thread may use, one call at a time.
unsafe impl Send for Request {}

impl Mpi {
    /// Starts MPI in this process. Waits for the other ranks to do the same.
    pub(super) fn start() -> Result<Mpi> {
        let (mut provided, mut rank, mut size): (c_int, c_int, c_int) = (0, 0, 0);
        let mut comm = MaybeUninit::<ffi::MPI_Comm>::uninit();
        // SAFETY: all pointers are to locals that outlive the calls; null arguments are allowed; nothing else of MPI was
        // called in this process, and nobody else calls it now.
        let comm = unsafe {
            let wanted = ffi::RSMPI_THREAD_SERIALIZED;
            let code =
                ffi::MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), wanted, &mut provided);
            check("start MPI", code)?;
            if provided < wanted {
                let cause = "this MPI library serves one thread only, and ranks call it from several, one at a time \
                             (MPI_THREAD_SERIALIZED); use a library that was built with threads";
                return Err(Error::system("start MPI", cause));
            }
            let world = ffi::RSMPI_COMM_WORLD;
            check("ask MPI for errors", ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN))?;
            // What another part of this program sends through MPI never meets our messages.
            check("make a communicator", ffi::MPI_Comm_dup(world, comm.as_mut_ptr()))?;
            let comm = comm.assume_init();
            check("ask MPI for errors", ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN))?;
            check("ask MPI for the rank", ffi::MPI_Comm_rank(comm, &mut rank))?;
            check("ask MPI for the ranks", ffi::MPI_Comm_size(comm, &mut size))?;
            comm
        };
        Ok(Mpi { comm, rank: rank as usize, size: size as usize })
    }
}

impl Library for Mpi {
    fn name(&self) -> &'static str {
        "MPI"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    /// Waits for the other ranks to do the same.
    fn end(&self) {
        let _serial = serial();
        // SAFETY: MPI was started, and nothing calls it after this (the caller is the end of the process).
        unsafe { ffi::MPI_Finalize() };
    }

    unsafe fn send(&self, to: usize, tag: usize, span: ByteSpan) -> Result<InFlight> {
        let mut request = MaybeUninit::uninit();
        let _serial = serial();
        // SAFETY: the caller's promise; MPI only reads the buffer.
        unsafe {
            let (count, byte) = (span.bytes as c_int, ffi::RSMPI_UINT8_T);
            let at = span.at.cast_const().cast::<c_void>();
            let code =
                ffi::MPI_Isend(at, count, byte, to as c_int, tag as c_int, self.comm, request.as_mut_ptr());
            check("send to a rank", code)?;
            Ok(Box::new(Request(request.assume_init())))
        }
    }

    unsafe fn receive(&self, from: usize, tag: usize, span: ByteSpan) -> Result<InFlight> {
        let mut request = MaybeUninit::uninit();
        let _serial = serial();
        // SAFETY: the caller's promise.
        unsafe {
            let (count, byte) = (span.bytes as c_int, ffi::RSMPI_UINT8_T);
            let at = span.at.cast::<c_void>();
            let code =
                ffi::MPI_Irecv(at, count, byte, from as c_int, tag as c_int, self.comm, request.as_mut_ptr());
            check("receive from a rank", code)?;
            Ok(Box::new(Request(request.assume_init())))
        }
    }

    /// A notice is short, so MPI delivers it together with its announcement.
    fn take_notice(&self, bytes: usize) -> Result<Option<Vec<u8>>> {
        let mut here: c_int = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        let mut buffer = vec![0u8; bytes];
        let _serial = serial();
        // SAFETY: pointers to locals; what was probed is received next, as calls come one at a time, into a buffer that
        // outlives the call.
        unsafe {
            let any = ffi::RSMPI_ANY_SOURCE;
            let code = ffi::MPI_Iprobe(any, NOTICES as c_int, self.comm, &mut here, status.as_mut_ptr());
            check("probe for a message", code)?;
            if here == 0 {
                return Ok(None);
            }
            let (to, count, byte) =
                (buffer.as_mut_ptr().cast::<c_void>(), bytes as c_int, ffi::RSMPI_UINT8_T);
            let source = status.assume_init().MPI_SOURCE;
            let ignore = ffi::RSMPI_STATUS_IGNORE;
            check(
                "receive from a rank",
                ffi::MPI_Recv(to, count, byte, source, NOTICES as c_int, self.comm, ignore),
            )?;
        }
        Ok(Some(buffer))
    }
}

impl Message for Request {
    fn poll(&mut self) -> Result<Option<usize>> {
        let (mut over, mut count): (c_int, c_int) = (0, 0);
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        let _serial = serial();
        // SAFETY: pointers to locals, and a request that is in flight or done (then a null one, which MPI allows). A
        // status of zeros is one without bytes, and MPI fills it for a receive.
        unsafe {
            check("test a message", ffi::MPI_Test(&mut self.0, &mut over, status.as_mut_ptr()))?;
            if over == 0 {
                return Ok(None);
            }
            let _ = ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &mut count);
        }
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }
}

fn check(what: &str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length: c_int = 0;
    // SAFETY: the buffer is longer than the longest text.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let said = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    let cause = match known == ffi::MPI_SUCCESS as c_int {
        true => String::from_utf8_lossy(said).into_owned(),
        false => format!("MPI says {code}"),
    };
    Err(Error::system(what, cause))
}
