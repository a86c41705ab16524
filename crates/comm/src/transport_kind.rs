//! What can carry the bytes between ranks, and the variable that chooses it.

/// The variable that chooses the transport, for tests and comparison.
pub(crate) const TRANSPORT: &str = "OARLOCK_TRANSPORT";

/// What carries the bytes between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// Shared memory of one machine.
    SharedMemory,
    /// Messages of MPI.
    Mpi,
    /// Messages of Gloo.
    Gloo,
}

/// Whether this program was built with the feature `mpi`.
pub const HAS_MPI: bool = cfg!(feature = "mpi");

/// Why ranks of several machines cannot meet over Gloo, and the command that mends it; `None` where they can. Asked first, it
/// loads the library.
pub fn gloo_obstacle() -> Option<&'static str> {
    crate::gloo_shim::obstacle()
}

/// Why MPI was asked for and cannot be had.
pub(crate) fn why_no_mpi() -> String {
    match HAS_MPI {
        true => format!("{TRANSPORT}=mpi asks for MPI: start the ranks with mpirun or srun"),
        false => format!("{TRANSPORT}=mpi asks for MPI: build with `cargo build --release --features mpi`"),
    }
}

/// Why Gloo was asked for and cannot be had.
pub(crate) fn why_no_gloo() -> String {
    match gloo_obstacle() {
        None => format!(
            "{TRANSPORT}=gloo asks for Gloo: start the ranks with a launcher that sets RANK and MASTER_ADDR"
        ),
        Some(why) => format!("{TRANSPORT}=gloo asks for Gloo: {why}"),
    }
}
