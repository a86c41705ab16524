//! Order between launches on a device and collectives, which work on memory that launches use as well.

use oarlock_comm::Ready;
use oarlock_tensor::FlatBuffer;

use crate::Result;

/// When a collective may work on the memory of a flat buffer: after the launches that use it. Its own result is to be waited
/// for by [`Ready::precede_launches`], since launches are what uses it next.
pub(super) fn ready(flat: &FlatBuffer) -> Result<Ready> {
    Ok(flat.launched()?.map_or_else(Ready::now, Ready::after))
}

/// Returns when no launch uses a flat buffer any more, so that other ranks may have it. Memory of a GPU no other rank has.
pub(super) fn settle(flat: &FlatBuffer) -> Result<()> {
    Ok(flat.pending().map_or(Ok(()), |launches| launches.wait())?)
}
