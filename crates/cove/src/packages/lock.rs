//! The lock of Python packages: exact versions with hashes, one package after another, in the form that both `pip` and
//! `uv` read. `uv` writes it itself; for `pip` it is made of pip's report.

use std::collections::BTreeMap;
use std::fmt::Write;

use cove_core::policy::packages::InstalledPackage;
use serde::Deserialize;

#[derive(Deserialize)]
struct PipReport {
    install: Vec<PipReportItem>,
}

#[derive(Deserialize)]
struct PipReportItem {
    metadata: PipReportMetadata,
    download_info: PipDownload,
}

#[derive(Deserialize)]
struct PipReportMetadata {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct PipDownload {
    archive_info: Option<PipArchive>,
}

#[derive(Deserialize)]
struct PipArchive {
    #[serde(default)]
    hashes: BTreeMap<String, String>,
    /// What pip writes for a local file: `sha256=…`.
    hash: Option<String>,
}

/// Returns the lock for a report of `pip install --dry-run --report`. Fails if it is not such a report, or if a name
/// or version in it is more than that: what an index sends must not become an option.
pub(super) fn lock_from_pip_report(report: &[u8]) -> Result<String, String> {
    let report: PipReport =
        serde_json::from_slice(report).map_err(|error| format!("pip's report could not be read: {error}"))?;
    let mut items: Vec<(String, String, Option<String>)> = Vec::new();
    for PipReportItem { metadata: PipReportMetadata { name, version }, download_info } in report.install {
        let plain = |text: &str, others: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
        };
        if !plain(&name, "._-") || !plain(&version, ".+!_-") {
            return Err("pip's report has a package with a strange name or version".to_owned());
        }
        let hash = download_info.archive_info.and_then(|mut archive| {
            let hash = || archive.hash?.strip_prefix("sha256=").map(str::to_owned);
            archive.hashes.remove("sha256").or_else(hash)
        });
        items.push((name.to_ascii_lowercase(), version, hash.filter(|hash| plain(hash, ""))));
    }
    items.sort();
    // pip refuses a list in which only some have hashes.
    let has_hashes = items.iter().all(|(_, _, hash)| hash.is_some());
    let mut lock = String::new();
    for (name, version, hash) in items {
        let hash = hash.filter(|_| has_hashes).map(|hash| format!(" \\\n    --hash=sha256:{hash}"));
        let _ = writeln!(lock, "{name}=={version}{}", hash.unwrap_or_default());
    }
    Ok(lock)
}

/// Returns the packages of a lock.
pub(super) fn locked_packages(lock: &str) -> Vec<InstalledPackage> {
    let package = |line: &str| {
        let (name, rest) = line.split_once("==")?;
        let version = rest.split([' ', '\\', ';']).next()?.to_owned();
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            .then(|| InstalledPackage { name: name.to_owned(), version })
    };
    lock.lines().filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_a_lock_with_hashes() {
        let item = |name: &str, version: &str, hash: &str| {
            format!(
                r#"{{"metadata": {{"name": "{name}", "version": "{version}"}},
                     "download_info": {{"url": "x", "archive_info": {{"hash": "{hash}"}}}}}}"#
            )
        };
        let report = |items: &[String]| format!(r#"{{"version": "1", "install": [{}]}}"#, items.join(", "));
        let both = [item("Pandas", "2.2.1", "sha256=ab"), item("numpy", "2.0+local", "sha256=cd")];
        let lock = lock_from_pip_report(report(&both).as_bytes()).unwrap();
        assert_eq!(lock, "numpy==2.0+local \\\n    --hash=sha256:cd\npandas==2.2.1 \\\n    --hash=sha256:ab\n");
        let packages = locked_packages(&lock);
        let names: Vec<_> = packages.iter().map(|package| (package.name.as_str(), package.version.as_str())).collect();
        assert_eq!(names, [("numpy", "2.0+local"), ("pandas", "2.2.1")]);
        let some = [item("a", "1", "sha256=ab"), item("b", "2", "md5=cd")];
        assert_eq!(lock_from_pip_report(report(&some).as_bytes()).unwrap(), "a==1\nb==2\n");
    }

    #[test]
    fn refuses_reports_that_smuggle_options() {
        for (name, version) in
            [("--index-url", "1"), ("a", "1\\n-r /etc/passwd"), ("a b", "1"), ("../a", "1"), ("a", "")]
        {
            let report = format!(
                r#"{{"install": [{{"metadata": {{"name": "{name}", "version": "{version}"}}, "download_info": {{}}}}]}}"#
            );
            assert!(lock_from_pip_report(report.as_bytes()).is_err(), "{name} {version}");
        }
        assert!(lock_from_pip_report(b"{}").is_err());
    }
}
