//! The token file: created once, readable by its owner only, and refused if another user could have read or changed
//! it.

use std::io;
use std::path::Path;

use super::{OWNER, TokenFileError, TokenLine, TokenSet, parse_lines};
use cove_core::document::read_limited;
use cove_core::error::{Failure, display_path, display_value, write_hint};
use cove_core::private_file::{ExistingFile, UnsafeFileError, open_private_file, write_private_file};
use cove_core::random::random_bits;

const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The tokens of the file.
pub(in super::super) struct LoadedTokens {
    pub(in super::super) tokens: TokenSet,
    /// The token, if this start created it. The server shows it only then.
    pub(in super::super) created_token: Option<String>,
}

/// Reads the file, or creates one with a new token. Fails if the file is unsafe, unreadable or malformed.
pub(in super::super) fn load(path: &Path) -> Result<LoadedTokens, Failure> {
    if let Some(tokens) = read(path)? {
        return Ok(LoadedTokens { tokens, created_token: None });
    }
    let token = new_token();
    match write_new(path, &token) {
        Ok(()) => {}
        // Another server created the file meanwhile, so its token counts.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(Failure::usage(format!("could not make the token file `{}`", display_path(path)))
                .because(error)
                .with_hint("name another place with `--token-file`, or set `COVE_TOKEN` in the environment"));
        }
    }
    // Read like at any other start, so that an unsafe directory is refused now and not at the next start.
    match read(path)? {
        Some(tokens) => {
            let made = TokenSet::parse(&token).is_ok_and(|own| own.0[0].digest == tokens.0[0].digest);
            Ok(LoadedTokens { tokens, created_token: made.then_some(token) })
        }
        None => Err(Failure::usage(format!("could not read the token file `{}`", display_path(path)))
            .because("it was removed while it was read")),
    }
}

/// Returns the tokens of a file. Fails if there is no file, or if it is unsafe, unreadable or malformed.
pub(in super::super) fn read_existing_tokens(path: &Path) -> Result<TokenSet, Failure> {
    TokenSet::parse(&read_existing(path)?).map_err(|error| malformed_error(path, error))
}

/// Returns the first token of a file. Fails if there is no file, or if it is unsafe, unreadable or malformed.
pub fn read_first_token(path: &Path) -> Result<String, Failure> {
    let text = read_existing(path)?;
    let lines = parse_lines(&text).map_err(|error| malformed_error(path, error))?;
    lines.first().map(|line| line.token.to_owned()).ok_or_else(|| malformed_error(path, TokenFileError::Empty))
}

/// Returns the token of this name; without a name, the one that has none in the file, or the only one. Fails if there
/// is no such token, or if the file is unsafe, unreadable or malformed.
pub fn read_token(path: &Path, name: Option<&str>) -> Result<String, Failure> {
    let text = read_existing(path)?;
    Ok(choose_line(path, &text, name)?.token.to_owned())
}

/// Returns the text of a token file. Fails like [`read_text`], and if there is no file.
fn read_existing(path: &Path) -> Result<String, Failure> {
    read_text(path)?.ok_or_else(|| {
        Failure::usage("could not find a token")
            .because(format!("`{}` does not exist", display_path(path)))
            .with_hint("`cove serve --http ADDR` and `cove token rotate` make one; `--token-file` names another file")
    })
}

/// Replaces the token that [`read_token`] returns with a new one, and returns it. Other lines stay as they are. Makes the
/// file if there is none. Servers that are running accept the new token at once, and the old one no longer.
pub fn rotate_token(path: &Path, name: Option<&str>) -> Result<String, Failure> {
    let token = new_token();
    let unwritable = |error: io::Error| {
        let otherwise = "make its directory writable for you, or name another file with `--token-file`";
        let hint = write_hint(&error, otherwise);
        Failure::usage(format!("could not write the token file `{}`", display_path(path)))
            .because(error)
            .with_hint(hint)
    };
    let Some(text) = read_text(path)? else {
        if let Some(name) = name.filter(|name| *name != OWNER) {
            return Err(unknown_name_error(name, &[]));
        }
        write_new(path, &token).map_err(unwritable)?;
        return Ok(token);
    };
    let replaced = choose_line(path, &text, name)?;
    // The token is the last word of its line; a name may contain the same letters.
    let line = |(index, line): (usize, &str)| match line.rsplit_once(replaced.token) {
        Some((before, after)) if index + 1 == replaced.number => format!("{before}{token}{after}"),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().enumerate().map(line).collect();
    write_private_file(path, lines.join("\n") + "\n", ExistingFile::Replace).map_err(unwritable)?;
    Ok(token)
}

fn choose_line<'a>(path: &Path, text: &'a str, name: Option<&str>) -> Result<TokenLine<'a>, Failure> {
    let mut lines = parse_lines(text).map_err(|error| malformed_error(path, error))?;
    let position = match name {
        None if lines.len() == 1 => Some(0),
        name => lines.iter().position(|line| line.name == name.unwrap_or(OWNER)),
    };
    match position {
        Some(position) => Ok(lines.swap_remove(position)),
        None => {
            let names: Vec<&str> = lines.iter().map(|line| line.name).collect();
            Err(unknown_name_error(name.unwrap_or(OWNER), &names))
        }
    }
}

fn unknown_name_error(name: &str, known: &[&str]) -> Failure {
    let hint = match known {
        [] => "leave out `--name` to make the file with a token of your own".to_owned(),
        known => format!("choose one with `--name`: {}", known.join(", ")),
    };
    Failure::usage(format!("could not find a token of the name `{}`", display_value(name))).with_hint(hint)
}

fn refused_error(path: &Path, cause: String, hint: String) -> Failure {
    Failure::usage(format!("could not use the token file `{}`", display_path(path))).because(cause).with_hint(hint)
}

fn malformed_error(path: &Path, error: TokenFileError) -> Failure {
    let hint = "write one `TOKEN` or `NAME TOKEN` a line; without the file a new one is made";
    refused_error(path, error.to_string(), hint.into())
}

/// Returns `None` if there is no file.
fn read(path: &Path) -> Result<Option<TokenSet>, Failure> {
    let text = read_text(path)?;
    text.map(|text| TokenSet::parse(&text).map_err(|error| malformed_error(path, error))).transpose()
}

/// Returns `None` if there is no file. Fails if another user could have read or changed it.
fn read_text(path: &Path) -> Result<Option<String>, Failure> {
    let name = display_path(path);
    let refused = |cause: String, hint: String| refused_error(path, cause, hint);
    let unreadable =
        |error: io::Error| Failure::usage(format!("could not read the token file `{name}`")).because(error);
    let file = match open_private_file(path) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(None),
        Err(UnsafeFileError::Io(error)) => return Err(unreadable(error)),
        Err(error) => {
            let hint = match &error {
                UnsafeFileError::OtherOwner { user, .. } => {
                    format!("`chown {user} {name}`, or name another file with `--token-file`")
                }
                UnsafeFileError::OpenToOthers { .. } => {
                    format!("`chmod 600 {name}`, and replace the tokens if others were here")
                }
                UnsafeFileError::Link | UnsafeFileError::NotAFile => {
                    "name the file itself with `--token-file`".to_owned()
                }
                _ => format!("{}; `--token-file` names it", error.hint(path)),
            };
            return Err(refused(error.to_string(), hint));
        }
    };
    read_limited(file, MAX_FILE_BYTES).map(Some).map_err(unreadable)
}

/// Writes the file atomically and never replaces another, so the name always leads to a complete file.
fn write_new(path: &Path, token: &str) -> io::Result<()> {
    let text = format!("# Tokens that may ask over HTTP, one `TOKEN` or `NAME TOKEN` a line.\n{token}\n");
    write_private_file(path, text, ExistingFile::Keep)
}

/// Returns a token with 256 random bits. The prefix helps scanners for leaked secrets.
fn new_token() -> String {
    format!("cove_{:032x}{:032x}", random_bits(), random_bits())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    use cove_core::private_file::create_private_folder;
    use tempfile::TempDir;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123";

    fn temp_token_path() -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("state/cove/tokens");
        (dir, path)
    }

    fn write(path: &Path, text: &str, mode: u32) {
        create_private_folder(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[track_caller]
    fn load_error(path: &Path) -> String {
        let report = load(path).err().expect("refused").report().to_string();
        assert!(!report.contains(TOKEN), "{report}");
        report
    }

    #[test]
    fn token_file_is_created_once() {
        let (_dir, path) = temp_token_path();
        let made = load(&path).unwrap().created_token.unwrap();
        assert!(made.starts_with("cove_") && made.len() == 69, "{made}");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let again = load(&path).unwrap();
        assert_eq!(again.created_token, None);
        assert_eq!(again.tokens.0[0].digest, TokenSet::single(&made).unwrap().0[0].digest);
        // No other file is left in the directory.
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let (_other, path) = temp_token_path();
        assert_ne!(load(&path).unwrap().created_token.unwrap(), made);
    }

    #[test]
    fn concurrent_starts_share_one_token() {
        let (_dir, path) = temp_token_path();
        let starts: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn({
                    let path = path.clone();
                    move || load(&path).unwrap()
                })
            })
            .collect();
        let kept: Vec<LoadedTokens> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        assert_eq!(kept.iter().filter(|kept| kept.created_token.is_some()).count(), 1);
        assert!(kept.iter().all(|one| one.tokens.0[0].digest == kept[0].tokens.0[0].digest));
    }

    #[test]
    fn refuses_token_files_that_others_can_access() {
        let (_dir, path) = temp_token_path();
        for mode in [0o644, 0o640, 0o620, 0o601] {
            write(&path, TOKEN, mode);
            let report = load_error(&path);
            assert!(report.contains(&format!("its mode is {mode:03o}")), "{report}");
            assert!(report.contains(&format!("hint: `chmod 600 {}`", path.display())), "{report}");
        }
        write(&path, TOKEN, 0o600);
        assert!(load(&path).is_ok());
        let directory = path.parent().unwrap();
        fs::set_permissions(directory, Permissions::from_mode(0o770)).unwrap();
        assert!(load_error(&path).contains("`chmod go-w "));
        fs::set_permissions(directory, Permissions::from_mode(0o1777)).unwrap();
        assert!(load(&path).is_ok());
    }

    #[test]
    fn refuses_token_paths_that_are_not_own_files() {
        let (dir, path) = temp_token_path();
        write(&path, TOKEN, 0o600);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(load_error(&link).contains("it is a symbolic link"));
        symlink(dir.path().join("nowhere"), dir.path().join("dangling")).unwrap();
        assert!(load_error(&dir.path().join("dangling")).contains("it is a symbolic link"));
        assert!(load_error(dir.path()).contains("it is not a regular file"));
        assert!(load_error(Path::new("/dev/null")).contains("it is not a regular file"));
        assert!(load_error(&path.join("below")).contains("could not"));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            assert!(load_error(&path).contains("it belongs to user 1234, and this is user 0"));
        }
    }

    #[test]
    fn returns_the_first_token_for_a_client() {
        let (_dir, path) = temp_token_path();
        assert!(read_first_token(&path).unwrap_err().report().to_string().contains("does not exist"));
        write(&path, &format!("# mine\n\n  bot {TOKEN}\r\n{TOKEN}2\n"), 0o600);
        assert_eq!(read_first_token(&path).unwrap(), TOKEN);
        write(&path, TOKEN, 0o644);
        assert!(read_first_token(&path).unwrap_err().report().to_string().contains("others may use it"));
    }

    #[test]
    fn rotates_one_token_and_keeps_the_other_lines() {
        let (_dir, path) = temp_token_path();
        let missing = read_token(&path, None).unwrap_err().report().to_string();
        assert!(missing.contains("hint: `cove serve --http ADDR` and `cove token rotate` make one"), "{missing}");
        let first = rotate_token(&path, None).unwrap();
        assert_eq!(read_token(&path, None).unwrap(), first);
        write(&path, &format!("# mine\n\n  bot\t{TOKEN}  \n{TOKEN}-own"), 0o600);
        assert_eq!(read_token(&path, None).unwrap(), format!("{TOKEN}-own"));
        assert_eq!(read_token(&path, Some("bot")).unwrap(), TOKEN);
        let new = rotate_token(&path, Some("bot")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("# mine\n\n  bot\t{new}  \n{TOKEN}-own\n"));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let unknown = rotate_token(&path, Some("carol")).unwrap_err().report().to_string();
        assert_eq!(unknown, "could not find a token of the name `carol`\nhint: choose one with `--name`: bot, owner");
        write(&path, TOKEN, 0o644);
        assert!(rotate_token(&path, None).unwrap_err().report().to_string().contains("others may use it"));
        assert_eq!(fs::read_to_string(&path).unwrap(), TOKEN);
    }

    #[test]
    fn names_the_malformed_line_without_its_content() {
        let (_dir, path) = temp_token_path();
        write(&path, &format!("# fine\nbot {TOKEN} {TOKEN}\n"), 0o600);
        assert!(load_error(&path).contains("caused by: line 2 is neither `TOKEN` nor `NAME TOKEN`"));
        write(&path, "", 0o600);
        assert!(load_error(&path).contains("there is no token in it"));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(load_error(&path).contains("could not read the token file"));
        write(&path, &"#\n".repeat(600_000), 0o600);
        assert!(load_error(&path).contains("more than 1048576 bytes"));
    }
}
