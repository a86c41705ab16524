//! Collectives on values of any type that serde knows, as torch has them for what can be pickled. They travel as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::group::ProcessGroup;
use crate::{Error, Result};

/// The value as JSON, or why it is none.
fn write<T: Serialize + ?Sized>(object: &T) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(&Ok::<_, String>(object));
    let text = text.or_else(|error| serde_json::to_vec(&Err::<(), _>(error.to_string())));
    text.map_err(|error| Error::Usage(error.to_string()))
}

fn read<T: DeserializeOwned>(bytes: &[u8], rank: usize) -> Result<T> {
    let failed = |what: &str, why: &str| {
        Error::Usage(format!(
            "the object of rank {rank} cannot be {what} JSON: {why}; give a type that comes back from JSON as it was \
             (keys of maps are strings, and floats are finite)"
        ))
    };
    serde_json::from_slice::<std::result::Result<T, String>>(bytes)
        .map_err(|error| failed("read from", &error.to_string()))?
        .map_err(|why| failed("written as", &why))
}

impl ProcessGroup {
    /// The value of each rank, in the order of ranks.
    ///
    /// # Errors
    /// As every collective, and on all ranks when a value does not go through JSON.
    #[track_caller]
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, object: &T) -> Result<Vec<T>> {
        self.agree("all_gather_object")?;
        let all = self.comm.all_gather_bytes(&write(object)?)?;
        all.iter().zip(self.ranks()).map(|(bytes, &rank)| read(bytes, rank)).collect()
    }

    /// Brings the values of the rank `src` to all ranks, where they take the place of the list.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather_object`]; a rank that is not in the group; lists of different lengths.
    #[track_caller]
    pub fn broadcast_object_list<T: Serialize + DeserializeOwned>(
        &self,
        objects: &mut Vec<T>,
        src: usize,
    ) -> Result<()> {
        let place = self.place_of(src)?;
        self.agree(&format!("broadcast_object_list from rank {src} of {} objects", objects.len()))?;
        let bytes = if place == self.rank() { write(objects)? } else { Vec::new() };
        *objects = read(&self.comm.broadcast_bytes(place, &bytes)?, src)?;
        Ok(())
    }
}
