//! The output folder on several machines: one that all see, or one on each.

use std::path::Path;

use oarlock_engine::checkpoint::Stores;
use oarlock_engine::{Accelerator, Result};

/// Looks whether all machines see one output folder, in which every rank writes its part of checkpoints; else each machine writes
/// its part into its own. What to say about that.
///
/// # Errors
/// As [`Stores::of_folder`].
pub fn look_at_stores(accelerator: &Accelerator, folder: &Path) -> Result<Option<String>> {
    let stores = Stores::of_folder(accelerator.communicator(), folder)?;
    let said = (!stores.are_one()).then(|| {
        let leaders: Vec<String> = stores.each().map(|rank| rank.to_string()).collect();
        format!(
            "output_dir {} is not one folder on all machines: those of ranks {} write their parts of checkpoints into their own; \
             `oarlock gather-checkpoint` joins copies of them. No checkpoint is whole without the part of each: a run that is \
             to go on when a machine is lost (--nnodes MIN:MAX) needs one folder that all machines see",
            folder.display(),
            leaders.join(", ")
        )
    });
    accelerator.set_stores(stores);
    Ok(said)
}
