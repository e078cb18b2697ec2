//! The file that tokens are kept in: made once, readable by its owner alone, and refused when anyone else could have
//! read or changed it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::Tokens;
use crate::error::{Error, shown_path};

const MOST_BYTES: u64 = 1024 * 1024;

/// What was found or made.
pub(in super::super) struct Kept {
    pub(in super::super) tokens: Tokens,
    /// The token, when this start made it: the only time that it is shown.
    pub(in super::super) made: Option<String>,
}

/// Reads the file, or makes one with a new token.
pub(in super::super) fn load(path: &Path) -> Result<Kept, Error> {
    if let Some(tokens) = read(path)? {
        return Ok(Kept { tokens, made: None });
    }
    let token = new_token();
    match write_new(path, &token) {
        Ok(()) => {}
        // Another server made it in between, so that its token is the one.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(Error::usage(format!("could not make the token file `{}`", shown_path(path)))
                .because(error)
                .with_hint(
                    "name another place with `--token-file`, or set `COVE_TOKEN` in the environment",
                ));
        }
    }
    // Read as any other start would, so that a directory that others can write to is refused now and not next time.
    match read(path)? {
        Some(tokens) => {
            let made = Tokens::parse(&token).is_ok_and(|own| own.0[0].token == tokens.0[0].token);
            Ok(Kept { tokens, made: made.then_some(token) })
        }
        None => Err(Error::usage(format!("could not read the token file `{}`", shown_path(path)))
            .because("it was removed while it was read")),
    }
}

/// Nothing when there is no file.
fn read(path: &Path) -> Result<Option<Tokens>, Error> {
    let name = shown_path(path);
    let refused = |cause: String, hint: String| {
        Error::usage(format!("could not use the token file `{name}`")).because(cause).with_hint(hint)
    };
    let unreadable =
        |error: io::Error| Error::usage(format!("could not read the token file `{name}`")).because(error);
    // Not through a link, and without waiting for the other end of a pipe.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) if path.is_symlink() => {
            return Err(refused(
                "it is a symbolic link".into(),
                "name the file itself with `--token-file`".into(),
            ));
        }
        Err(error) => return Err(unreadable(error)),
    };
    // Of what was opened, not of what has the name now.
    let found = file.metadata().map_err(unreadable)?;
    let us = rustix::process::geteuid().as_raw();
    if !found.is_file() {
        return Err(refused("it is not a file".into(), "name a file with `--token-file`".into()));
    }
    if found.uid() != us {
        return Err(refused(
            format!("it belongs to user {}, and this is user {us}", found.uid()),
            format!("`chown {us} {name}`, or name another file with `--token-file`"),
        ));
    }
    if found.mode() & 0o077 != 0 {
        let cause = format!("others may use it: its mode is {:03o}", found.mode() & 0o777);
        return Err(refused(
            cause,
            format!("`chmod 600 {name}`, and replace the tokens if others were here"),
        ));
    }
    check_directory(path, us).map_err(|(cause, hint)| refused(cause, hint))?;
    let text = read_text(file).map_err(unreadable)?;
    Tokens::parse(&text).map(Some).map_err(|error| {
        refused(
            error.to_string(),
            "write one `TOKEN` or `NAME TOKEN` a line; without the file a new one is made".into(),
        )
    })
}

/// Who may rename files there could put another in place of ours.
fn check_directory(path: &Path, us: u32) -> Result<(), (String, String)> {
    let directory = directory_of(path);
    let name = shown_path(&directory);
    let found = fs::metadata(&directory).map_err(|error| {
        (format!("its directory could not be looked at: {error}"), format!("look at `{name}`"))
    })?;
    // In a sticky directory, such as `/tmp`, files are their owners' alone.
    let shared = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
    if shared || ![0, us].contains(&found.uid()) {
        let cause = format!("others may replace it: its directory `{name}` is not yours alone");
        return Err((cause, format!("`chmod go-w {name}`, or name a file elsewhere with `--token-file`")));
    }
    Ok(())
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn read_text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

/// Whole or not at all, and never over another: what has the name is always a file that can be used.
fn write_new(path: &Path, token: &str) -> io::Result<()> {
    let directory = directory_of(path);
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let mut file = tempfile::Builder::new()
        .prefix(".tokens-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(&directory)?;
    writeln!(file, "# Tokens that may ask over HTTP, one `TOKEN` or `NAME TOKEN` a line.\n{token}")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|failed| failed.error)?;
    // So that a name that was shown to a person is there after a crash.
    File::open(&directory)?.sync_all()
}

/// 256 bits; the prefix is for those who search for secrets that leaked.
fn new_token() -> String {
    let mut bytes = [0u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only where there is no such call, on kernels far older than any we run on.
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .unwrap_or_else(|error| panic!("could not get random bytes: {error}"));
    }
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("cove_{digits}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123";

    fn place() -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("state/cove/tokens");
        (dir, path)
    }

    fn write(path: &Path, text: &str, mode: u32) {
        DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[track_caller]
    fn refused(path: &Path) -> String {
        let report = load(path).err().expect("refused").report().to_string();
        assert!(!report.contains(TOKEN), "{report}");
        report
    }

    #[test]
    fn made_once_and_then_kept() {
        let (_dir, path) = place();
        let made = load(&path).unwrap().made.unwrap();
        assert!(made.starts_with("cove_") && made.len() == 69, "{made}");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let again = load(&path).unwrap();
        assert_eq!(again.made, None);
        assert_eq!(again.tokens.0[0].token, made.as_bytes());
        // Nothing beside it.
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let (_other, path) = place();
        assert_ne!(load(&path).unwrap().made.unwrap(), made);
    }

    #[test]
    fn many_starts_at_once_agree() {
        let (_dir, path) = place();
        let starts: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn({
                    let path = path.clone();
                    move || load(&path).unwrap()
                })
            })
            .collect();
        let kept: Vec<Kept> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        assert_eq!(kept.iter().filter(|kept| kept.made.is_some()).count(), 1);
        assert!(kept.iter().all(|one| one.tokens.0[0].token == kept[0].tokens.0[0].token));
    }

    #[test]
    fn what_others_can_use_is_refused() {
        let (_dir, path) = place();
        for mode in [0o644, 0o640, 0o620, 0o601] {
            write(&path, TOKEN, mode);
            let report = refused(&path);
            assert!(report.contains(&format!("its mode is {mode:03o}")), "{report}");
            assert!(report.contains(&format!("hint: `chmod 600 {}`", path.display())), "{report}");
        }
        write(&path, TOKEN, 0o600);
        assert!(load(&path).is_ok());
        let directory = path.parent().unwrap();
        fs::set_permissions(directory, Permissions::from_mode(0o770)).unwrap();
        assert!(refused(&path).contains("`chmod go-w "));
        fs::set_permissions(directory, Permissions::from_mode(0o1777)).unwrap();
        assert!(load(&path).is_ok());
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused() {
        let (dir, path) = place();
        write(&path, TOKEN, 0o600);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(refused(&link).contains("it is a symbolic link"));
        symlink(dir.path().join("nowhere"), dir.path().join("dangling")).unwrap();
        assert!(refused(&dir.path().join("dangling")).contains("it is a symbolic link"));
        assert!(refused(dir.path()).contains("it is not a file"));
        assert!(refused(Path::new("/dev/null")).contains("it is not a file"));
        assert!(refused(&path.join("below")).contains("could not"));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            assert!(refused(&path).contains("it belongs to user 1234, and this is user 0"));
        }
    }

    #[test]
    fn a_wrong_line_is_named_and_not_shown() {
        let (_dir, path) = place();
        write(&path, &format!("# fine\nbot {TOKEN} {TOKEN}\n"), 0o600);
        assert!(refused(&path).contains("caused by: line 2 is neither `TOKEN` nor `NAME TOKEN`"));
        write(&path, "", 0o600);
        assert!(refused(&path).contains("there is no token in it"));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(refused(&path).contains("could not read the token file"));
        write(&path, &"#\n".repeat(600_000), 0o600);
        assert!(refused(&path).contains("more than 1048576 bytes"));
    }
}
