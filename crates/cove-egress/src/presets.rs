//! Presets: named lists of ordinary rules. A preset opens what one tool needs in order to read, and is named like the
//! tool's world.

use crate::request_limits::RequestLimits;

/// A named list of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkPreset {
    pub name: &'static str,
    pub hosts: &'static [&'static str],
    pub ports: &'static [u16],
    pub access: PresetAccess,
}

/// What a preset allows with its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresetAccess {
    /// Requests that read, with downloads that sessions share.
    Download,
    /// Every request; Cove does not look into TLS.
    Any,
}

pub const PRESETS: &[NetworkPreset] = &[
    NetworkPreset {
        name: "pypi",
        hosts: &["pypi.org", "files.pythonhosted.org"],
        ports: &[443],
        access: PresetAccess::Download,
    },
    NetworkPreset { name: "npm", hosts: &["registry.npmjs.org"], ports: &[443], access: PresetAccess::Download },
    NetworkPreset {
        name: "github",
        hosts: &["github.com", "api.github.com", "codeload.github.com", "*.githubusercontent.com"],
        ports: &[443],
        access: PresetAccess::Any,
    },
    NetworkPreset {
        name: "crates",
        hosts: &["crates.io", "index.crates.io", "static.crates.io"],
        ports: &[443],
        access: PresetAccess::Download,
    },
    // apt reads its index over plain HTTP and checks signatures itself.
    NetworkPreset {
        name: "debian",
        hosts: &["deb.debian.org", "security.debian.org"],
        ports: &[80, 443],
        access: PresetAccess::Any,
    },
];

impl PresetAccess {
    /// Returns which requests the rules of the preset allow. None if Cove does not look into TLS.
    pub(crate) fn request_limits(self) -> Option<RequestLimits> {
        match self {
            Self::Any => None,
            Self::Download => {
                let methods = ["GET", "HEAD"].map(str::to_owned).to_vec();
                Some(RequestLimits { methods, caches: true, ..RequestLimits::default() })
            }
        }
    }
}

impl NetworkPreset {
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}
