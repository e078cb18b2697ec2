//! Writes the built-in definitions to a directory, where the operator can edit them. Never changes an existing file.

use std::fs;
use std::io;
use std::path::Path;

use super::built_in;
use crate::error::{Failure, display_path, write_hint};
use crate::link_path::check_inside;

const WRITABLE_DIRECTORY_HINT: &str = "name a directory that you may write to";

/// Writes the missing files and returns the names of the images that they belong to. Fails, before it writes anything,
/// if a file exists and differs, or if a link leads out of `project`, which has the directory in it or is the directory.
pub fn export(directory: &Path, project: &Path) -> Result<Vec<&'static str>, Failure> {
    let could_not = |path: &Path, error: io::Error| {
        let hint = write_hint(&error, WRITABLE_DIRECTORY_HINT);
        Failure::operator(format!("could not write `{}`", display_path(path))).because(error).with_hint(hint)
    };
    let all = || {
        built_in::BUILT_IN_IMAGES.iter().flat_map(|one| one.files.iter().map(move |(file, text)| (one, *file, *text)))
    };
    // This includes a broken link, because no directory can be made in its place.
    if directory.symlink_metadata().is_ok() && !directory.is_dir() {
        return Err(Failure::usage(format!("could not export to `{}`", display_path(directory)))
            .because("it is there already, and is not a directory")
            .with_hint("name another directory; it is made where there is none"));
    }
    let mut missing = Vec::new();
    for (one, file, text) in all() {
        let path = directory.join(one.name).join(file);
        // `fs::read` follows links. A file behind a link counts as existing, and a broken link is never written
        // through.
        match fs::read(&path) {
            Ok(found) if found == text.as_bytes() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                missing.push((one, path, text));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Failure::operator(format!("could not look at `{}`", display_path(&path)))
                    .because(error)
                    .with_hint(WRITABLE_DIRECTORY_HINT));
            }
            Ok(_) | Err(_) => {
                return Err(Failure::usage(format!("could not export to `{}`", display_path(directory)))
                    .because(format!("`{}` is there already, and differs", display_path(&path)))
                    .with_hint("name another directory, or move that file away; nothing was written"));
            }
        }
    }
    for (_, path, _) in &missing {
        check_inside(project, path).map_err(|error| {
            Failure::usage(format!("could not write `{}`", display_path(path)))
                .because(error)
                .with_hint("remove the link, or name another directory; nothing was written")
        })?;
    }
    let mut written: Vec<&'static str> = Vec::new();
    for (one, path, text) in missing {
        let folder = directory.join(one.name);
        fs::create_dir_all(&folder).map_err(|error| could_not(&folder, error))?;
        // `create_new` fails if another process has made the file since the check.
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
    use crate::image::{ImageOrigin, folder};

    #[test]
    fn exported_images_are_recognised_as_built_in() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("new/images");
        assert_eq!(export(&directory, &directory).unwrap(), ["python", "node", "ubuntu"]);
        let found = folder::read_images(&directory, &[], |_, _, _, _| Ok(()));
        assert_eq!(found.problems, []);
        assert!(found.images.iter().all(|image| image.origin == ImageOrigin::Exported), "{found:?}");
        assert_eq!(export(&directory, &directory).unwrap(), [] as [&str; 0], "a second time is fine");
        fs::remove_dir_all(directory.join("node")).unwrap();
        assert_eq!(export(&directory, &directory).unwrap(), ["node"]);
    }

    #[test]
    fn export_writes_nothing_if_a_file_would_change() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("ubuntu")).unwrap();
        let edited = directory.path().join("ubuntu/Dockerfile");
        fs::write(&edited, "FROM debian\n").unwrap();
        let report = export(directory.path(), directory.path()).unwrap_err().report().to_string();
        assert!(report.contains("ubuntu/Dockerfile` is there already, and differs"), "{report}");
        assert_eq!(fs::read_to_string(&edited).unwrap(), "FROM debian\n");
        assert!(!directory.path().join("python").exists(), "not a part of it");
    }

    #[test]
    fn export_reports_a_file_in_place_of_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let report = export(&file, directory.path()).unwrap_err().report().to_string();
        assert!(report.contains("caused by: it is there already, and is not a directory"), "{report}");
    }

    #[test]
    fn export_does_not_leave_the_project_through_a_link() {
        let outer = tempfile::tempdir().unwrap();
        let project = outer.path().join("project");
        fs::create_dir_all(project.join("images")).unwrap();
        fs::create_dir(outer.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../../elsewhere", project.join("images/node")).unwrap();
        let report = export(&project.join("images"), &project).unwrap_err().report().to_string();
        assert!(report.contains("a link leads to") && report.contains("nothing was written"), "{report}");
        assert_eq!(fs::read_dir(outer.path().join("elsewhere")).unwrap().count(), 0);
        assert!(!project.join("images/python").exists(), "not a part of it");
    }

    #[test]
    fn export_does_not_follow_links() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("node")).unwrap();
        let target = directory.path().join("target");
        std::os::unix::fs::symlink(&target, directory.path().join("node/Dockerfile")).unwrap();
        assert!(export(directory.path(), directory.path()).is_err());
        assert!(!target.exists());
    }
}
