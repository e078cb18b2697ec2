//! Writing the definitions that are built in to a directory, for the operator to edit. What is there already is never
//! changed.

use std::fs;
use std::io;
use std::path::Path;

use super::built_in;
use crate::error::{Error, shown_path};

const ELSEWHERE: &str = "name a directory that you may write to";

/// What was written, by name; those that were there already, and alike, are not in it.
pub fn export(directory: &Path) -> Result<Vec<&'static str>, Error> {
    let could_not = |path: &Path, error: io::Error| {
        Error::operator(format!("could not write `{}`", shown_path(path))).because(error).with_hint(ELSEWHERE)
    };
    let all =
        || built_in::ALL.iter().flat_map(|one| one.files.iter().map(move |(file, text)| (one, *file, *text)));
    // Also a link that leads nowhere: nothing can be made in its place.
    if directory.symlink_metadata().is_ok() && !directory.is_dir() {
        return Err(Error::usage(format!("could not export to `{}`", shown_path(directory)))
            .because("it is there already, and is not a directory")
            .with_hint("name another directory; it is made where there is none"));
    }
    let mut missing = Vec::new();
    for (one, file, text) in all() {
        let path = directory.join(one.name).join(file);
        // Also through a link: what it leads to is not ours to decide.
        match fs::read(&path) {
            Ok(found) if found == text.as_bytes() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                missing.push((one, path, text));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Error::operator(format!("could not look at `{}`", shown_path(&path)))
                    .because(error)
                    .with_hint(ELSEWHERE));
            }
            Ok(_) | Err(_) => {
                return Err(Error::usage(format!("could not export to `{}`", shown_path(directory)))
                    .because(format!("`{}` is there already, and differs", shown_path(&path)))
                    .with_hint("name another directory, or move that file away; nothing was written"));
            }
        }
    }
    let mut written: Vec<&'static str> = Vec::new();
    for (one, path, text) in missing {
        let folder = directory.join(one.name);
        fs::create_dir_all(&folder).map_err(|error| could_not(&folder, error))?;
        // Somebody may have made it since.
        let file = fs::OpenOptions::new().write(true).create_new(true).open(&path);
        file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|error| could_not(&path, error))?;
        if !written.contains(&one.name) {
            written.push(one.name);
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Origin, folder};

    #[test]
    fn what_was_exported_is_read_as_built_in() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("new/images");
        assert_eq!(export(&directory).unwrap(), ["python", "node", "ubuntu"]);
        let found = folder::images(&directory, &[]);
        assert_eq!(found.problems, []);
        assert!(found.images.iter().all(|image| image.origin == Origin::Exported), "{found:?}");
        assert_eq!(export(&directory).unwrap(), [] as [&str; 0], "a second time is fine");
        fs::remove_dir_all(directory.join("node")).unwrap();
        assert_eq!(export(&directory).unwrap(), ["node"]);
    }

    #[test]
    fn nothing_is_overwritten_and_then_nothing_is_written() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("ubuntu")).unwrap();
        let edited = directory.path().join("ubuntu/Dockerfile");
        fs::write(&edited, "FROM debian\n").unwrap();
        let report = export(directory.path()).unwrap_err().report().to_string();
        assert!(report.contains("ubuntu/Dockerfile` is there already, and differs"), "{report}");
        assert_eq!(fs::read_to_string(&edited).unwrap(), "FROM debian\n");
        assert!(!directory.path().join("python").exists(), "not a part of it");
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_told_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let report = export(&file).unwrap_err().report().to_string();
        assert!(report.contains("caused by: it is there already, and is not a directory"), "{report}");
    }

    #[test]
    fn a_link_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("node")).unwrap();
        let target = directory.path().join("target");
        std::os::unix::fs::symlink(&target, directory.path().join("node/Dockerfile")).unwrap();
        assert!(export(directory.path()).is_err());
        assert!(!target.exists());
    }
}
