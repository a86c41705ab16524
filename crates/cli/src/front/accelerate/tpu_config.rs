//! `accelerate tpu-config`: refused, in words.

use crate::config::Words;
use crate::console::{Failure, Outcome};
use crate::error::Error;

/// Says why there is no such command, whatever the words.
pub fn run(_words: &Words) -> Outcome {
    Err(Failure::Error(Error::Usage(
        "`accelerate tpu-config` starts commands on TPU machines of Google Cloud; there is no training on TPUs here, so \
         there is nothing to prepare. A configuration with the answers for a pod can be written with `accelerate config`"
            .to_owned(),
    )))
}
