//! Which addresses the sign-in to one server may use. A server names its authorization server, and that one names its
//! endpoints; neither may make Cove connect to the machine or the network that Cove is on, unless the server is there
//! itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::definition::is_loopback_url;
use crate::pool::text;

const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// How far an address is from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AddressReach {
    Loopback,
    Private,
    Public,
    /// Never an address of a server: link-local, multicast, unspecified.
    Reserved,
}

impl AddressReach {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) if v6.is_loopback() => Self::Loopback,
            IpAddr::V6(v6) if v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local() => Self::Reserved,
            IpAddr::V6(v6) if v6.is_unique_local() => Self::Private,
            // Translation prefixes that hold an IPv4 address: 64:ff9b::/96 and 2002::/16.
            IpAddr::V6(v6) => match v6.segments() {
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
                    Self::of_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
                }
                _ => Self::Public,
            },
        }
    }

    fn of_v4(v4: Ipv4Addr) -> Self {
        let [first, second, ..] = v4.octets();
        if v4.is_loopback() {
            Self::Loopback
        } else if v4.is_link_local() || v4.is_multicast() || v4.is_broadcast() || first == 0 {
            Self::Reserved
        } else if v4.is_private() || (first == 100 && second & 0xc0 == 64) {
            Self::Private
        } else {
            Self::Public
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct AddressPolicy {
    server: Url,
    nearest: AddressReach,
    /// Hosts of the proxies that the operator chose, which may be anywhere.
    proxies: Vec<String>,
}

/// Returns how near a server is whose name leads to these addresses. The farthest counts, and never nearer than the
/// network: who owns the name decides about its addresses, and could add one of this machine.
fn nearest_reach(addresses: impl Iterator<Item = IpAddr>) -> AddressReach {
    let farthest = addresses.map(AddressReach::of).filter(|reach| *reach != AddressReach::Reserved).max();
    farthest.unwrap_or(AddressReach::Public).max(AddressReach::Private)
}

/// Returns the hosts of the proxies that this process uses.
fn find_proxies() -> Vec<String> {
    let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"];
    let variables = names.iter().flat_map(|name| [(*name).to_owned(), name.to_ascii_lowercase()]);
    let values = variables.filter_map(|name| std::env::var(name).ok());
    let url = |value: String| {
        Url::parse(&value).ok().filter(Url::has_host).or_else(|| Url::parse(&format!("http://{value}")).ok())
    };
    values.filter_map(|value| url(value)?.host_str().map(str::to_owned)).collect()
}

impl AddressPolicy {
    /// Looks up where the server is.
    pub(super) async fn of_server(server: &Url) -> Self {
        let mut nearest = AddressReach::Public;
        if is_loopback_url(server) {
            nearest = AddressReach::Loopback;
        } else if let Some(host) = server.host_str() {
            let host = (host.trim_matches(['[', ']']).to_owned(), server.port_or_known_default().unwrap_or(443));
            // Behind a proxy, names need not be known here. Then the proxy looks up the others too.
            if let Ok(Ok(found)) = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(host)).await {
                nearest = nearest_reach(found.map(|address| address.ip()));
            }
        }
        Self { server: server.clone(), nearest, proxies: find_proxies() }
    }

    pub(super) fn is_loopback(&self) -> bool {
        self.nearest == AddressReach::Loopback
    }

    fn allows(&self, address: IpAddr) -> bool {
        let reach = AddressReach::of(address);
        reach != AddressReach::Reserved && reach >= self.nearest
    }

    /// Checks an address that a document names as `what`. Fails with the reason.
    pub(super) fn check(&self, what: &str, address: &str) -> Result<Url, String> {
        let shown = text::to_line(address, 200);
        let refused = |reason: &str| Err(format!("the {what} `{shown}` is not used: {reason}"));
        if address.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return refused("it has characters that no address has");
        }
        let Ok(url) = Url::parse(address) else { return refused("it is no address") };
        if !url.username().is_empty() || url.password().is_some() {
            return refused("it holds a name or a password");
        }
        match url.scheme() {
            "https" => {}
            "http" if url.origin() == self.server.origin() => {}
            "http" if is_loopback_url(&url) && self.is_loopback() => {}
            "http" => return refused("it is not `https`"),
            _ => return refused("it is no web page"),
        }
        let literal = url.host_str().unwrap_or_default().trim_matches(['[', ']']).parse::<IpAddr>();
        let is_refused = match literal {
            Ok(literal) => !self.allows(literal),
            Err(_) => is_loopback_url(&url) && !self.is_loopback(),
        };
        if is_refused && url.origin() != self.server.origin() {
            return refused("it is on this machine or its network, and the server is not");
        }
        Ok(url)
    }
}

impl Resolve for AddressPolicy {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let is_chosen = this.proxies.iter().map(String::as_str).chain(this.server.host_str());
            let is_chosen = is_chosen.into_iter().any(|host| host == name.as_str());
            let allowed: Vec<SocketAddr> =
                found.into_iter().filter(|address| is_chosen || this.allows(address.ip())).collect();
            match allowed.is_empty() {
                true => Err("its name leads to this machine or its network, and the server is not there".into()),
                false => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(server: &str, nearest: AddressReach) -> AddressPolicy {
        AddressPolicy { server: Url::parse(server).unwrap(), nearest, proxies: Vec::new() }
    }

    #[test]
    fn a_public_server_cannot_name_private_addresses() {
        let public = policy("https://mcp.example.com/mcp", AddressReach::Public);
        assert!(public.check("x", "https://auth.example.com/token").is_ok());
        for address in [
            "http://auth.example.com/token",
            "https://127.0.0.1/token",
            "https://localhost/token",
            "https://a.localhost/token",
            "https://[::1]/token",
            "https://10.0.0.1/token",
            "https://[fd00::1]/token",
            "https://[::ffff:192.168.0.1]/token",
            "https://[64:ff9b::a00:1]/token",
            "https://169.254.169.254/token",
            "https://100.64.0.1/token",
            "https://0.0.0.0/token",
            "https://user@auth.example.com/token",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "data:text/html,x",
            "https://auth.example.com/\ntoken",
            "",
        ] {
            assert!(public.check("x", address).is_err(), "{address}");
        }
    }

    #[test]
    fn the_addresses_of_a_name_open_nothing_on_this_machine() {
        let reach = |addresses: &[&str]| nearest_reach(addresses.iter().map(|address| address.parse().unwrap()));
        assert_eq!(reach(&["203.0.113.1", "127.0.0.1"]), AddressReach::Public);
        assert_eq!(reach(&["10.0.0.1", "203.0.113.1"]), AddressReach::Public);
        assert_eq!(reach(&["169.254.169.254"]), AddressReach::Public);
        assert_eq!(reach(&[]), AddressReach::Public);
        assert_eq!(reach(&["10.0.0.1"]), AddressReach::Private);
        // Plain `http` to this machine needs an address that the person wrote.
        assert_eq!(reach(&["127.0.0.1", "::1"]), AddressReach::Private);
    }

    #[tokio::test]
    async fn names_that_lead_to_this_machine_are_refused() {
        let mut policy = policy("https://mcp.example.com/mcp", AddressReach::Public);
        let name = || "localhost".parse::<Name>().unwrap();
        let error = policy.resolve(name()).await.err().unwrap();
        assert!(error.to_string().contains("leads to this machine"), "{error}");
        policy.proxies = vec!["localhost".to_owned()];
        assert!(policy.resolve(name()).await.is_ok(), "the operator chose the proxy");
    }

    #[test]
    fn a_local_server_can_name_local_addresses() {
        let local = policy("http://127.0.0.1:8000/mcp", AddressReach::Loopback);
        for address in ["http://127.0.0.1:9000/token", "http://localhost:9000/token", "https://10.0.0.1/token"] {
            assert!(local.check("x", address).is_ok(), "{address}");
        }
        assert!(local.check("x", "http://10.0.0.1/token").is_err());
        let private = policy("https://10.1.1.1/mcp", AddressReach::Private);
        assert!(private.check("x", "https://10.0.0.1/token").is_ok());
        assert!(private.check("x", "https://127.0.0.1/token").is_err());
        assert!(private.check("x", "https://169.254.169.254/token").is_err());
        let plain = policy("http://10.1.1.1/mcp", AddressReach::Private);
        assert!(plain.check("x", "http://10.1.1.1/token").is_ok(), "the person allowed plain http to this server");
    }
}
