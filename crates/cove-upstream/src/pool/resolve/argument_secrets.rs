//! Finds secrets in a server's arguments by the names beside them: `--api-key X`, `--token=X`, `--header "A: Bearer
//! X"`, `scheme://user:X@host`, `https://host/?key=X`. People put secrets there although the environment is the
//! better place.

use super::proxy_secrets::decode_percent;
use crate::secrets::is_secret_name;

/// Returns values that no message may repeat.
pub(super) fn find_argument_secrets(args: &[String]) -> Vec<String> {
    let mut secrets = Vec::new();
    let mut follows_secret_flag = false;
    for arg in args {
        let is_flag = arg.starts_with('-');
        match arg.split_once('=').filter(|(name, _)| is_flag || is_variable_name(name)) {
            Some((name, value)) if suggests_secret(name) => secrets.extend(secret_variants(value)),
            _ if follows_secret_flag && !is_flag => secrets.extend(secret_variants(arg)),
            _ => {}
        }
        secrets.extend(find_url_secrets(arg));
        follows_secret_flag = is_flag && !arg.contains('=') && suggests_secret(arg);
    }
    secrets
}

/// Returns true for the `NAME` of `NAME=VALUE`, and false for the start of an address.
fn is_variable_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

fn suggests_secret(name: &str) -> bool {
    is_secret_name(name) || name.to_lowercase().contains("header")
}

/// Returns the value, and the parts after the name and the scheme of a header: servers repeat any of these.
fn secret_variants(value: &str) -> Vec<String> {
    let mut words = vec![value.to_owned()];
    if let Some((_, rest)) = value.split_once(':') {
        words.push(rest.trim().to_owned());
    }
    words.extend(value.rsplit_once(' ').map(|(_, last)| last.to_owned()));
    words
}

/// Returns the password of an address as it is written and as it is meant, the credentials as they stand in it, and
/// query values with secret names.
pub(super) fn find_url_secrets(arg: &str) -> Vec<String> {
    let Some((_, rest)) = arg.split_once("://") else { return Vec::new() };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let mut secrets = Vec::new();
    if let Some((user, _)) = authority.rsplit_once('@') {
        let password = user.split_once(':').map_or(user, |(_, password)| password);
        secrets.push(password.to_owned());
        secrets.extend(Some(decode_percent(password)).filter(|decoded| decoded != password));
        // Even a short password is recognised between its user and its host.
        secrets.push(format!("{user}@"));
    }
    let query = tail.split_once('?').map_or("", |(_, query)| query);
    let members = query.split(['&', '#']).filter_map(|member| member.split_once('='));
    secrets.extend(members.filter(|(name, _)| suggests_secret(name)).map(|(_, value)| value.to_owned()));
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(args: &[&str], expected: &[&str]) {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        assert_eq!(find_argument_secrets(&args), expected, "{args:?}");
    }

    #[test]
    fn finds_secrets_by_argument_names() {
        check(&["--api-key", "s3cret", "--verbose"], &["s3cret"]);
        check(&["--access-token=s3cret"], &["s3cret"]);
        check(&["-c", "API_KEY=s3cret"], &["s3cret"]);
        let header = ["Authorization: Bearer s3cret", "Bearer s3cret", "s3cret"];
        check(&["--header", header[0]], &header);
        check(&["postgres://me:s3cr%65t@db/x?sslmode=off"], &["s3cr%65t", "s3cret", "me:s3cr%65t@"]);
        check(&["https://s3cret@host", "https://host/?a=b&api_key=s3cret#x"], &["s3cret", "s3cret@", "s3cret"]);
    }

    #[test]
    fn ignores_ordinary_arguments() {
        check(&["-y", "@scope/server-keys", "/home/me/files", "--db-path", "/tmp/x.db", "--port=80"], &[]);
        check(&["--token", "--verbose"], &[]);
        check(&["https://host/path?page=2", "a=b", "/etc/keys/x=y"], &[]);
    }
}
