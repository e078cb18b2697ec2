//! `cargo install`, from a clone.

use std::path::Path;
use std::process::Command;

use crate::install_home::{InstallHome, succeed};

/// Removes what describes the package under test. Build scripts of some packages run again if it changes.
pub(crate) fn without_cargo_variables(command: &mut Command) {
    let describes_test = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| describes_test(name)) {
        command.env_remove(name);
    }
}

#[test]
fn cargo_installs_from_a_clone() {
    let Some(home) = InstallHome::new("cargo_installs_from_a_clone") else { return };
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Path::new(env!("CARGO_BIN_EXE_cove"));
    // What the tests have compiled serves here too; cargo's folder is three above the program.
    let target = built.ancestors().nth(3).unwrap();
    let cargo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(args).arg("--root").arg(home.at("root")).current_dir(&clone);
        without_cargo_variables(&mut command);
        succeed(&mut command)
    };
    cargo(&["install", "--path", "crates/cove", "--locked", "--quiet", "--target-dir", target.to_str().unwrap()]);
    home.check_cove(home.at("root/bin/cove"));
    cargo(&["uninstall", "--quiet", "cove-mcp"]);
    assert_eq!(home.traces("root/bin"), Vec::<String>::new());
}
