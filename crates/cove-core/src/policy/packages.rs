//! Packages that the operator installed for every session, in folders of the host that sandboxes see read-only. What
//! is in such a folder, and how it got there, is the business of the program that fills it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the sandbox sees the packages of Python. The Python shim adds it to `sys.path`.
pub const PYTHON_PACKAGES: &str = "/.cove/packages";
/// Where the sandbox sees the packages of Node: the last folder that Node searches, from whichever folder code runs.
pub const NODE_PACKAGES: &str = "/node_modules";

/// The packages that every session sees. Only the embedded sandbox has them: an image brings its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PackageLayers {
    /// One for each Python that packages were installed for, the newest first.
    pub python: Vec<PackageLayer>,
    pub node: Option<PackageLayer>,
}

/// A folder of packages, which never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PackageLayer {
    /// The interpreter that they were installed for, as the path that the sandbox starts it with.
    pub program: String,
    /// The folder on the host.
    pub folder: PathBuf,
    pub packages: Vec<InstalledPackage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledPackage {
    pub name: String,
    pub version: String,
}

impl PackageLayers {
    /// Returns the packages for this Python.
    pub fn for_python(&self, program: &str) -> Option<&PackageLayer> {
        self.python.iter().find(|layer| layer.program == program)
    }
}
