//! The list of everything in the program, in CycloneDX's format.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::third_party::LinkedPackages;
use super::{ReleaseParts, text_of};
use crate::attempts::{self, ErrorContext};
use crate::cargo;

pub(super) fn document(parts: &ReleaseParts, linked: &LinkedPackages) -> Result<Value, String> {
    let lock: toml::Table =
        attempts::read(&cargo::root().join("Cargo.lock"))?.parse().could_not("read `Cargo.lock` as TOML")?;
    let checksums = checksums(&lock);
    let references: BTreeMap<&str, String> =
        linked.packages().map(|package| (text_of(&package["id"]), reference(package))).collect();
    let own = references.iter().find(|(_, reference)| reference.starts_with("pkg:cargo/cove-mcp@"));
    let own = own.map(|(_, reference)| reference.clone()).ok_or("could not find the program among its packages")?;
    let mut components: Vec<Value> = linked
        .packages()
        .filter(|package| reference(package) != own)
        .map(|package| component(package, &checksums))
        .collect();
    components.sort_by_key(|component| text_of(&component["bom-ref"]).to_owned());
    let mut dependencies: Vec<Value> = references
        .iter()
        .map(|(id, reference)| {
            let on: Vec<&String> = linked.direct(id).iter().filter_map(|id| references.get(id)).collect();
            json!({"ref": reference, "dependsOn": on})
        })
        .collect();
    dependencies.sort_by_key(|dependency| text_of(&dependency["ref"]).to_owned());
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": own, "name": "cove", "version": parts.version, "purl": own,
                "licenses": [{"expression": "MIT"}],
            },
            "properties": [{"name": "cargo:target", "value": parts.target.tuple()}],
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn reference(package: &Value) -> String {
    // A package URL must not hold a plain `+`.
    let version = text_of(&package["version"]).replace('+', "%2B");
    format!("pkg:cargo/{}@{version}", text_of(&package["name"]))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text_of(&package["name"]), text_of(&package["version"]));
    let purl = reference(package);
    // Older packages divide alternatives with a slash.
    let licence = text_of(&package["license"]).replace('/', " OR ");
    let mut component = json!({
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "scope": "required",
        "licenses": [{"expression": licence}],
    });
    if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The digests of the packages' archives, by name and version.
fn checksums(lock: &toml::Table) -> BTreeMap<(String, String), String> {
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    packages
        .filter_map(|package| Some(((text(package, "name")?, text(package, "version")?), text(package, "checksum")?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_has_its_licence_and_digest() {
        let lock = "[[package]]\nname = 'a'\nversion = '1.0.0+b'\nchecksum = 'ab'\n".parse().unwrap();
        let package = json!({"name": "a", "version": "1.0.0+b", "license": "MIT/Apache-2.0"});
        let component = component(&package, &checksums(&lock));
        assert_eq!(component["purl"], "pkg:cargo/a@1.0.0%2Bb");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(component["hashes"][0]["content"], "ab");
    }
}
