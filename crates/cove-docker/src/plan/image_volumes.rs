//! The folders that an image declares with `VOLUME`. The engine would create an unlimited volume on disk for each and
//! leave it behind; the plan puts a tmpfs there instead.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use cove_core::error::{Failure, display_value};
use cove_jail::guest::COVE_FOLDER;

/// Returns the normalised paths, without duplicates. Fails if a path is not absolute or would hide the runner program.
pub(super) fn volume_paths(volumes: &[String]) -> Result<BTreeSet<String>, Failure> {
    let mut places = BTreeSet::new();
    for volume in volumes {
        let refused = |why: &str| {
            Failure::operator("could not use the image: a `VOLUME` of it would be in the way")
                .because(format!("`{}` {why}", display_value(volume)))
                .with_hint("take that `VOLUME` out of its Dockerfile, or choose another base")
        };
        let place = normalise_path(volume).ok_or_else(|| refused("is no absolute path below the root"))?;
        if place == COVE_FOLDER {
            // The runner volume is mounted there anyway.
            continue;
        }
        if place.strip_prefix(COVE_FOLDER).is_some_and(|rest| rest.starts_with('/')) {
            return Err(refused("would hide our own program from the code"));
        }
        places.insert(place);
    }
    Ok(places)
}

fn normalise_path(path: &str) -> Option<String> {
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
    fn image_volumes_are_unique_and_spare_the_runner() {
        let places = |volumes: &[&str]| {
            let volumes: Vec<String> = volumes.iter().map(|one| (*one).to_owned()).collect();
            volume_paths(&volumes).map(|found| found.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(places(&["/data", "/data/", "//data/.", "/.cove/", "/.cover"]).unwrap(), ["/.cover", "/data"]);
        for hostile in ["/.cove/bin", "//.cove/./bin/", "/", "", "data", "/data/../.cove/bin"] {
            assert!(places(&[hostile]).is_err(), "{hostile}");
        }
    }
}
