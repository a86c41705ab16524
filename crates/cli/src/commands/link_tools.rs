//! `oarlock link-tools`: names under which this program is the command of another, and its own.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::console::{Outcome, print};
use crate::error::{Error, Result};
use crate::front;

#[derive(Args)]
pub(super) struct LinkArgs {
    /// The folder for the links; it is made where it is missing
    folder: PathBuf,
}

pub(super) fn run(args: &LinkArgs) -> Outcome {
    let program = std::env::current_exe().map_err(Error::io("find", "this program"))?;
    let mut names: Vec<&str> = front::ALL.iter().flat_map(|front_end| front_end.names).copied().collect();
    if !lies_in(&args.folder, &program) {
        // Scripts that call the commands call `oarlock` as well.
        names.push(OARLOCK);
    }
    link(&args.folder, &program, &names)?;
    let folder = args.folder.canonicalize().map_err(Error::io("read", &args.folder))?;
    let folder = folder.display();
    print(&format!(
        "{} links in {folder}: {}\nThe shell finds them first after\n    export PATH=\"{folder}:$PATH\"\n",
        names.len(),
        names.join(", ")
    ))
}

/// The name of this program.
const OARLOCK: &str = "oarlock";

/// Whether the program itself has its name in this folder, so that it needs no link there.
fn lies_in(folder: &Path, program: &Path) -> bool {
    let path = folder.join(OARLOCK);
    let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    !is_link
        && path.canonicalize().is_ok_and(|path| program.canonicalize().is_ok_and(|program| path == program))
}

/// Makes the links; all or none where one of the names is taken.
fn link(folder: &Path, program: &Path, names: &[&str]) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let taken: Vec<&str> =
        names.iter().copied().filter(|name| is_foreign(&folder.join(name), program)).collect();
    if !taken.is_empty() {
        return Err(Error::Usage(format!(
            "nothing was linked: in {} there is something else under {}. Name another folder, or remove it",
            folder.display(),
            taken.join(", ")
        )));
    }
    for name in names {
        let path = folder.join(name);
        oarlock_files::link(program, &path).map_err(Error::io("create", &path))?;
    }
    Ok(())
}

/// Whether something lies there that is not a link to a binary of this program's name.
fn is_foreign(path: &Path, program: &Path) -> bool {
    match (fs::symlink_metadata(path), fs::read_link(path)) {
        (Err(error), _) => error.kind() != std::io::ErrorKind::NotFound,
        (Ok(_), Ok(target)) => target.file_name() != program.file_name(),
        (Ok(_), Err(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_program_is_linked_under_its_own_name_except_where_it_lies() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, tools) = (folder.path().join("bin"), folder.path().join("tools"));
        fs::create_dir(&bin).unwrap();
        let program = bin.join(OARLOCK);
        fs::write(&program, "the program").unwrap();
        assert!(lies_in(&bin, &program) && !lies_in(&tools, &program));
        link(&tools, &program, &[OARLOCK]).unwrap();
        // A second call renews the link.
        assert!(!lies_in(&tools, &program));
        assert_eq!(fs::read_to_string(tools.join(OARLOCK)).unwrap(), "the program");
    }

    #[test]
    fn links_are_made_and_renewed_but_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("tools");
        let names = ["torchrun", "accelerate"];
        link(&dir, Path::new("/old/oarlock"), &names).unwrap();
        link(&dir, Path::new("/new/oarlock"), &names).unwrap();
        for name in names {
            assert_eq!(fs::read_link(dir.join(name)).unwrap(), Path::new("/new/oarlock"));
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_file(dir.join("accelerate")).unwrap();
        fs::write(dir.join("accelerate"), "somebody's").unwrap();
        symlink("/usr/bin/python3", dir.join("ds")).unwrap();
        let error = link(&dir, Path::new("/third/oarlock"), &["torchrun", "accelerate", "ds"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("something else under accelerate, ds."), "{error}");
        assert_eq!(fs::read_to_string(dir.join("accelerate")).unwrap(), "somebody's");
        assert_eq!(fs::read_link(dir.join("torchrun")).unwrap(), Path::new("/new/oarlock"));
    }
}
