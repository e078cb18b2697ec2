//! The certificate of the session's own authority, as files for programs in the sandbox. Programs find it through variables,
//! of which each knows its own.

use std::fs;
use std::io;
use std::path::Path;

use crate::calls::CALL_SOCKET;

/// Where systems keep the certificates that programs trust.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The files; a number takes the place of the star.
const FILE_NAMES: [&str; 4] = ["ca*.pem", "ca-bundle*.pem", "wgetrc*", "apt*.conf"];
/// More than any system has.
const MAX_BUNDLE: u64 = 4 << 20;
/// What a file in memory takes at least.
const PAGE: u64 = 4096;

/// Variables that name a file with every certificate to trust.
const BUNDLE_VARIABLES: [&str; 9] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    // npm ignores the other variables of Node.
    "npm_config_cafile",
];
/// Variables that name a file with certificates to trust besides those that the program has.
const EXTRA_VARIABLES: [&str; 2] = ["DENO_CERT", "NODE_EXTRA_CA_CERTS"];

/// Writes the files and returns the variables that name them. `is_first` is false if another runner may use the folder
/// too. Fails if a file cannot be written: code would then trust no server that the host answers for.
pub(crate) fn write(authority: &str, is_first: bool) -> io::Result<Vec<(String, String)>> {
    let suffix = if is_first { String::new() } else { suffix() };
    let bundle = SYSTEM_BUNDLES.iter().find_map(|path| read_bundle(Path::new(path))).unwrap_or_default();
    write_files(folder(), &suffix, authority, &bundle)
}

/// Returns how many bytes of `/tmp` the files take in a sandbox with the files below `root`, for a certificate of this length.
pub fn needed_room(root: &Path, authority: usize) -> u64 {
    let system = SYSTEM_BUNDLES.iter().find_map(|path| read_bundle(&root.join(path.trim_start_matches('/'))));
    let authority = authority as u64;
    // The two small files take a page each.
    let lengths = [authority, authority + 1 + system.unwrap_or_default().len() as u64, 1, 1];
    lengths.map(|length| length.next_multiple_of(PAGE)).iter().sum()
}

/// Removes the files of a runner that is not the first process of its sandbox: another may use the folder after it.
pub(crate) fn remove() {
    for name in FILE_NAMES {
        let _ = fs::remove_file(folder().join(name.replace('*', &suffix())));
    }
}

fn folder() -> &'static Path {
    Path::new(CALL_SOCKET).parent().unwrap_or(Path::new("/tmp"))
}

fn suffix() -> String {
    format!("-{}", std::process::id())
}

/// Returns the content of a file of certificates, unless it is absent or larger than one can be.
fn read_bundle(path: &Path) -> Option<String> {
    let length = fs::metadata(path).ok()?.len();
    (length <= MAX_BUNDLE).then(|| fs::read_to_string(path).ok()).flatten()
}

fn write_files(folder: &Path, suffix: &str, authority: &str, bundle: &str) -> io::Result<Vec<(String, String)>> {
    fs::create_dir_all(folder)?;
    let file = |name: &str| folder.join(name.replace('*', suffix));
    let [own, all, wget, apt] = FILE_NAMES.map(file);
    // Its own certificate comes first, because a bundle may end without a line end.
    let contents = [
        (&own, authority.to_owned()),
        (&all, format!("{authority}\n{bundle}")),
        (&wget, format!("ca_certificate = {}\n", all.display())),
        (&apt, format!("Acquire::https::CAInfo \"{}\";\n", all.display())),
    ];
    for (path, content) in contents {
        // A file of a runner before this one stays: it may be another user's.
        let _ = fs::remove_file(path);
        fs::write(path, content)
            .map_err(|error| io::Error::new(error.kind(), format!("could not write `{}`: {error}", path.display())))?;
    }
    Ok(variables([&own, &all, &wget, &apt]))
}

/// Returns the variables of the first runner in a sandbox.
pub(crate) fn first_variables() -> Vec<(String, String)> {
    let [own, all, wget, apt] = FILE_NAMES.map(|name| folder().join(name.replace('*', "")));
    variables([&own, &all, &wget, &apt])
}

/// Returns the variables that name these files.
fn variables([own, all, wget, apt]: [&Path; 4]) -> Vec<(String, String)> {
    let named = |names: &'static [&'static str], path: &Path| {
        let path = path.to_string_lossy().into_owned();
        names.iter().map(move |variable| ((*variable).to_owned(), path.clone()))
    };
    let bundles = named(&BUNDLE_VARIABLES, all).chain(named(&EXTRA_VARIABLES, own));
    bundles.chain(named(&["WGETRC"], wget)).chain(named(&["APT_CONFIG"], apt)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_find_the_certificate_beside_those_of_the_system() {
        let folder = std::env::temp_dir().join(format!("cove-authority-{}", std::process::id()));
        let variables = write_files(&folder.join("a"), "-7", "OWN", "SYSTEM").unwrap();
        let path = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, path)| path).unwrap();
        assert_eq!(fs::read_to_string(path("SSL_CERT_FILE")).unwrap(), "OWN\nSYSTEM");
        assert_eq!(fs::read_to_string(path("NODE_EXTRA_CA_CERTS")).unwrap(), "OWN");
        assert!(path("SSL_CERT_FILE").ends_with("/a/ca-bundle-7.pem"));
        assert!(fs::read_to_string(path("WGETRC")).unwrap().contains("ca-bundle-7.pem"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
