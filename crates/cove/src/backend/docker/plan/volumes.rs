//! The folders for which an image wants a volume. Each would be on the disk, without a limit and left behind: a folder in
//! memory takes its place.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::HOME;
use crate::backend::StartError;
use crate::error::shown;

/// As the kernel would name them, each once.
pub(super) fn places(volumes: &[String]) -> Result<BTreeSet<String>, StartError> {
    let mut places = BTreeSet::new();
    for volume in volumes {
        let refused = |why: &str| {
            StartError::new("could not use the image: a `VOLUME` of it would be in the way")
                .because(format!("`{}` {why}", shown(volume)))
                .with_hint("take that `VOLUME` out of its Dockerfile, or choose another base")
        };
        let place = plain(volume).ok_or_else(|| refused("is no absolute path below the root"))?;
        if place == HOME {
            // Ours is mounted there in any case.
            continue;
        }
        if place.strip_prefix(HOME).is_some_and(|rest| rest.starts_with('/')) {
            return Err(refused("would hide our own program from the code"));
        }
        places.insert(place);
    }
    Ok(places)
}

fn plain(path: &str) -> Option<String> {
    let mut plain = String::new();
    for component in Path::new(path).components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => {
                plain.push('/');
                plain.push_str(name.to_str()?);
            }
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (path.starts_with('/') && !plain.is_empty()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_is_named_once_and_none_hides_our_program() {
        let places = |volumes: &[&str]| {
            let volumes: Vec<String> = volumes.iter().map(|one| (*one).to_owned()).collect();
            places(&volumes).map(|found| found.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(
            places(&["/data", "/data/", "//data/.", "/.cove/", "/.cover"]).unwrap(),
            ["/.cover", "/data"]
        );
        for hostile in ["/.cove/bin", "//.cove/./bin/", "/", "", "data", "/data/../.cove/bin"] {
            assert!(places(&[hostile]).is_err(), "{hostile}");
        }
    }
}
