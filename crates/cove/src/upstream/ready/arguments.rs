//! Secrets among a server's arguments, told by the names beside them: `--api-key X`, `--token=X`, `--header "A: Bearer X"`,
//! `scheme://user:X@host`, `https://host/?key=X`. People write them there although an environment is the better place.

use super::super::guard::is_secret;

/// Values that must not be repeated.
pub(super) fn secrets(args: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut told = false;
    for arg in args {
        let is_flag = arg.starts_with('-');
        match arg.split_once('=').filter(|(name, _)| is_flag || is_name(name)) {
            Some((name, value)) if is_telling(name) => found.extend(words(value)),
            _ if told && !is_flag => found.extend(words(arg)),
            _ => {}
        }
        found.extend(of_address(arg));
        told = is_flag && !arg.contains('=') && is_telling(arg);
    }
    found
}

/// `NAME` of `NAME=VALUE`, and not the start of an address.
fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

fn is_telling(name: &str) -> bool {
    is_secret(name) || name.to_lowercase().contains("header")
}

/// The whole, and what is behind the name and the scheme of a header: servers repeat either.
fn words(value: &str) -> Vec<String> {
    let mut words = vec![value.to_owned()];
    if let Some((_, rest)) = value.split_once(':') {
        words.push(rest.trim().to_owned());
    }
    words.extend(value.rsplit_once(' ').map(|(_, last)| last.to_owned()));
    words
}

/// The password of an address, and telling members of its query.
fn of_address(arg: &str) -> Vec<String> {
    let Some((_, rest)) = arg.split_once("://") else { return Vec::new() };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let mut found = Vec::new();
    if let Some((user, _)) = authority.rsplit_once('@') {
        found.push(user.split_once(':').map_or(user, |(_, password)| password).to_owned());
    }
    let query = tail.split_once('?').map_or("", |(_, query)| query);
    let members = query.split(['&', '#']).filter_map(|member| member.split_once('='));
    found.extend(members.filter(|(name, _)| is_telling(name)).map(|(_, value)| value.to_owned()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(args: &[&str], expected: &[&str]) {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        assert_eq!(secrets(&args), expected, "{args:?}");
    }

    #[test]
    fn names_tell_what_is_secret() {
        check(&["--api-key", "s3cret", "--verbose"], &["s3cret"]);
        check(&["--access-token=s3cret"], &["s3cret"]);
        check(&["-c", "API_KEY=s3cret"], &["s3cret"]);
        let header = ["Authorization: Bearer s3cret", "Bearer s3cret", "s3cret"];
        check(&["--header", header[0]], &header);
        check(&["postgres://me:s3cret@db/x?sslmode=off"], &["s3cret"]);
        check(&["https://s3cret@host", "https://host/?a=b&api_key=s3cret#x"], &["s3cret", "s3cret"]);
    }

    #[test]
    fn other_arguments_are_not_secret() {
        check(&["-y", "@scope/server-keys", "/home/me/files", "--db-path", "/tmp/x.db", "--port=80"], &[]);
        check(&["--token", "--verbose"], &[]);
        check(&["https://host/path?page=2", "a=b", "/etc/keys/x=y"], &[]);
    }
}
