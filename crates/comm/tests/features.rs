//! Transports that this build leaves out, whose tests are not compiled: said aloud.

#[test]
fn transports_that_are_not_built_are_not_tested() {
    oarlock_must::have("mpi", cfg!(feature = "mpi"), "oarlock-comm is built without its feature `mpi`");
    oarlock_must::have_gloo(oarlock_comm::gloo_obstacle());
}
