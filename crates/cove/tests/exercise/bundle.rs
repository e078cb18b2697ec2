//! What holds for an archive, whatever its bytes: every path stays inside a folder, and what is unpacked has the size that
//! was said, which is bounded.

use super::zip_archive::{MAX_BYTES, ZipArchive};

/// Reads the list of an archive and every file in it, and panics where a promise is broken.
pub fn exercise(bytes: &[u8]) {
    let Ok(archive) = ZipArchive::parse(bytes.to_vec()) else { return };
    let mut total = 0;
    for file in &archive.files {
        let is_inside =
            !file.path.starts_with('/') && file.path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        assert!(is_inside && !file.path.contains(['\\', ':']), "{:?}", file.path);
        assert!(!file.path.chars().any(char::is_control), "{:?}", file.path);
        assert_eq!(archive.find(&file.path).map(|found| &found.path), Some(&file.path));
        if let Ok(content) = archive.read(file) {
            total += content.len() as u64;
        }
    }
    assert!(total <= MAX_BYTES, "{total} bytes were unpacked");
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_bundle() {
        crate::replay::replay("bundle", super::exercise);
    }
}
