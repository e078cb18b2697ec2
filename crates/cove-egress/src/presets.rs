//! Presets: named lists of ordinary rules. A preset opens what one tool needs in order to read, and is named like the
//! tool's world.

/// A named list of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkPreset {
    pub name: &'static str,
    pub hosts: &'static [&'static str],
    pub ports: &'static [u16],
}

pub const PRESETS: &[NetworkPreset] = &[
    NetworkPreset { name: "pypi", hosts: &["pypi.org", "files.pythonhosted.org"], ports: &[443] },
    NetworkPreset { name: "npm", hosts: &["registry.npmjs.org"], ports: &[443] },
    NetworkPreset {
        name: "github",
        hosts: &["github.com", "api.github.com", "codeload.github.com", "*.githubusercontent.com"],
        ports: &[443],
    },
    NetworkPreset { name: "crates", hosts: &["crates.io", "index.crates.io", "static.crates.io"], ports: &[443] },
    // apt reads its index over plain HTTP and checks signatures itself.
    NetworkPreset { name: "debian", hosts: &["deb.debian.org", "security.debian.org"], ports: &[80, 443] },
];

impl NetworkPreset {
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}
