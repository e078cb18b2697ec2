//! The table of network clients: its rows as data, and as the documents show them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::SiteRules;

const WITHOUT_PROXY: &str =
    "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy NODE_USE_ENV_PROXY\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientTable {
    /// Those that are tested.
    pub(crate) doors: Vec<NetworkDoorName>,
    #[serde(rename = "client")]
    pub(crate) clients: Vec<NetworkClient>,
}

/// How a client reaches its host, under which rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NetworkDoorName {
    /// Whatever a session has.
    Session,
    /// The variables that name a proxy, where no name leads anywhere.
    Proxy,
    /// Names that lead to addresses of the sandbox's own.
    Name,
    /// A host whose requests Cove reads, through each door and with no variable but Cove's own.
    Inspected,
}

/// One row. The data says what the fields are for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkClient {
    pub(crate) name: String,
    pub(crate) from: String,
    pub(crate) unless: Option<String>,
    #[serde(default)]
    trusts: BTreeMap<String, String>,
    code: String,
    works: Vec<NetworkDoorName>,
}

impl ClientTable {
    pub(crate) fn read() -> Self {
        toml::from_str(include_str!("clients.toml")).unwrap()
    }

    /// Returns the table as the documents have it.
    pub(crate) fn as_markdown(&self) -> String {
        let mut text = String::from("| client | tested version |");
        for door in &self.doors {
            text += &format!(" {} |", door.title());
        }
        text += " learns about an authority of yours by |\n|---|---|";
        text += &"---|".repeat(self.doors.len() + 1);
        for client in &self.clients {
            text += &format!("\n| {} | {} |", client.name, client.from);
            for door in &self.doors {
                text += match (client.is_for(*door), client.works_through(*door)) {
                    (false, _) => " - |",
                    (true, true) => " works |",
                    (true, false) => " **fails** |",
                };
            }
            let trusts: Vec<String> = client.trusts.keys().map(|name| format!("`{name}`")).collect();
            text += &format!(" {} |", if trusts.is_empty() { "-".to_owned() } else { trusts.join(", ") });
        }
        text + "\n"
    }
}

impl NetworkDoorName {
    fn title(self) -> &'static str {
        match self {
            Self::Session => "as it is",
            Self::Proxy => "proxy alone",
            Self::Name => "without a proxy",
            Self::Inspected => "inspected",
        }
    }

    /// Returns the rules that open this door.
    pub(super) fn rules(self) -> SiteRules {
        match self {
            Self::Session | Self::Name => SiteRules::Open,
            Self::Proxy => SiteRules::OfPrincipal,
            Self::Inspected => SiteRules::Inspected,
        }
    }

    /// Returns what makes a client use this door and no other, in every way that the door has.
    pub(crate) fn preludes(self) -> &'static [&'static str] {
        match self {
            Self::Session | Self::Proxy => &[""],
            Self::Name => &[WITHOUT_PROXY],
            Self::Inspected => &["", WITHOUT_PROXY],
        }
    }
}

impl NetworkClient {
    pub(crate) fn works_through(&self, door: NetworkDoorName) -> bool {
        self.works.contains(&door)
    }

    /// False where there is nothing to inspect.
    pub(crate) fn is_for(&self, door: NetworkDoorName) -> bool {
        door != NetworkDoorName::Inspected || !self.trusts.is_empty()
    }

    /// Returns the code of a bash cell, with an address for each `{name}`.
    pub(crate) fn code(&self, door: NetworkDoorName, address: impl Fn(&str) -> String) -> String {
        let mut code = "set -o pipefail\n".to_owned();
        code += "export PYTHONPATH=/clients/python NODE_PATH=/clients/node_modules\n";
        for (name, value) in self.trusts.iter().filter(|_| door != NetworkDoorName::Inspected) {
            code += &format!("export {name}={value}\n");
        }
        code += &self.code;
        ["api", "cargo", "debian", "git", "npm", "plain", "pypi"]
            .iter()
            .fold(code, |code, name| code.replace(&format!("{{{name}}}"), &address(name)))
    }
}
