//! Presets: named lists of ordinary rules. A preset opens what one tool needs in order to read, and is named like the
//! tool's world.

use crate::rules::{EgressRule, HostPattern, RuleProtocol};

/// A named list of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkPreset {
    pub name: &'static str,
    hosts: &'static [&'static str],
    ports: &'static [u16],
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

    /// Returns the rules that the preset stands for.
    pub fn rules(&self) -> impl Iterator<Item = EgressRule> {
        let hosts = self.hosts.iter().filter_map(|host| HostPattern::parse(host).ok());
        hosts.map(|host| EgressRule {
            host,
            ports: self.ports.to_vec(),
            protocol: RuleProtocol::ByPort,
            addresses: Vec::new(),
            pinned: None,
            preset: Some(self.name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_of_a_preset_is_a_rule() {
        for preset in PRESETS {
            assert_eq!(preset.rules().count(), preset.hosts.len(), "{}", preset.name);
            assert_eq!(NetworkPreset::find(preset.name), Some(preset));
        }
        assert_eq!(NetworkPreset::find("pipy"), None);
    }
}
