//! Whether a download fits on the disk, asked before it begins.

use std::path::Path;

use crate::error::Error;

/// # Errors
/// Fewer bytes are free than the download needs. A disk that does not say how much is free has enough.
pub(crate) fn check(folder: &Path, needs: u64) -> Result<(), Error> {
    // The folder may not be there yet; one above it is on the same disk.
    let Some(found) = folder.ancestors().find_map(|above| rustix::fs::statvfs(above).ok()) else {
        return Ok(());
    };
    refuse(folder, needs, found.f_bavail.saturating_mul(found.f_frsize))
}

fn refuse(folder: &Path, needs: u64, free: u64) -> Result<(), Error> {
    match needs > free {
        true => Err(Error::Space { folder: folder.to_owned(), needs, free }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_that_does_not_fit_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), 1).unwrap();
        check(&folder.path().join("not/yet"), 1).unwrap();
        assert!(check(folder.path(), u64::MAX).is_err());
        let said = refuse(Path::new("/c"), 988_097_824, 412_000_000).unwrap_err().to_string();
        assert!(said.starts_with("the download needs 988 MB, 412 MB free in /c;"), "{said}");
    }
}
