//! Which addresses a connection may have. A name that is allowed may resolve to any address, so the address is judged by
//! itself, after resolution and before the connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Why an address is not connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressProblem {
    /// This machine itself.
    Loopback,
    /// A network that is not the public internet. A rule can open it.
    Private,
    /// Link-local addresses and those where clouds hand out credentials. No rule opens them.
    Metadata,
    /// Multicast, broadcast and the like: never the address of a server.
    Unusable,
}

impl fmt::Display for AddressProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "this machine itself",
            Self::Private => "a private network",
            Self::Metadata => "a link-local or metadata address, which no rule can open",
            Self::Unusable => "no address of a server",
        })
    }
}

/// Endpoints of clouds outside of the link-local range: Azure, Alibaba, AWS (its credentials of containers too), Google and
/// Oracle.
const METADATA: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
];

/// Fails unless a connection may go to this address. `opened` are the private networks that the rule opens.
pub fn check_address(address: IpAddr, opened: &[IpNet]) -> Result<(), AddressProblem> {
    let judged = without_translation(address);
    match problem(judged) {
        Some(AddressProblem::Private) if opened.iter().any(|network| network.contains(&judged)) => Ok(()),
        Some(problem) => Err(problem),
        None => Ok(()),
    }
}

/// Fails unless a rule may name this address itself, which opens it.
pub(crate) fn check_named_address(address: IpAddr) -> Result<(), AddressProblem> {
    match problem(without_translation(address)) {
        Some(problem @ (AddressProblem::Metadata | AddressProblem::Unusable)) => Err(problem),
        Some(AddressProblem::Loopback | AddressProblem::Private) | None => Ok(()),
    }
}

/// Returns the IPv4 address inside an IPv6 address that stands for one: mapped, NAT64 or 6to4.
pub(crate) fn without_translation(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)).into()
        }
        _ => address,
    }
}

fn problem(address: IpAddr) -> Option<AddressProblem> {
    if METADATA.contains(&address) {
        return Some(AddressProblem::Metadata);
    }
    match address {
        IpAddr::V4(v4) => problem_of_v4(v4),
        IpAddr::V6(v6) => problem_of_v6(v6),
    }
}

fn problem_of_v4(v4: Ipv4Addr) -> Option<AddressProblem> {
    match v4.octets() {
        [127, ..] => Some(AddressProblem::Loopback),
        [169, 254, ..] => Some(AddressProblem::Metadata),
        [0 | 224..=255, ..] => Some(AddressProblem::Unusable),
        [10, ..]
        | [172, 16..=31, ..]
        | [192, 168, ..]
        // Networks of carriers.
        | [100, 64..=127, ..]
        | [192, 0, 0, _]
        | [192, 0, 2, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Some(AddressProblem::Private),
        _ => None,
    }
}

fn problem_of_v6(v6: Ipv6Addr) -> Option<AddressProblem> {
    match v6.segments() {
        _ if v6.is_loopback() => Some(AddressProblem::Loopback),
        _ if v6.is_unspecified() || v6.is_multicast() => Some(AddressProblem::Unusable),
        [0xfe80..=0xfebf, ..] => Some(AddressProblem::Metadata),
        // Teredo, ORCHID and its successor, documentation.
        [0x2001, 0, ..] | [0x2001, 0x10..=0x2f, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => {
            Some(AddressProblem::Private)
        }
        [0x2000..=0x3fff, ..] => None,
        _ => Some(AddressProblem::Private),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AddressProblem::{Loopback, Metadata, Private, Unusable};

    #[track_caller]
    fn check(address: &str, opened: &[&str], expected: Result<(), AddressProblem>) {
        let opened: Vec<IpNet> = opened.iter().map(|network| network.parse().unwrap()).collect();
        assert_eq!(check_address(address.parse().unwrap(), &opened), expected, "{address}");
    }

    #[test]
    fn only_public_addresses_pass() {
        for address in
            ["1.1.1.1", "93.184.216.34", "2606:2800:220:1::1", "172.32.0.1", "100.128.0.1", "64:ff9b::5db8:d822"]
        {
            check(address, &[], Ok(()));
        }
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"] {
            check(address, &[], Err(Loopback));
        }
        for address in ["169.254.169.254", "64:ff9b::a9fe:a9fe", "::ffff:169.254.0.1", "fe80::1", "fd00:ec2::254"] {
            check(address, &[], Err(Metadata));
        }
        for address in ["168.63.129.16", "100.100.100.200"] {
            check(address, &[], Err(Metadata));
        }
        for address in
            ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "::ffff:10.0.0.1", "2002:a00:1::", "fc00::1"]
        {
            check(address, &[], Err(Private));
        }
        for address in ["192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"] {
            check(address, &[], Err(Private));
        }
        for address in
            ["2001::1", "2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1", "64:ff9b:1::1", "::7f00:1", "100::1"]
        {
            check(address, &[], Err(Private));
        }
        for address in ["0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "ff02::1"] {
            check(address, &[], Err(Unusable));
        }
    }

    #[test]
    fn a_rule_opens_its_private_networks_and_nothing_else() {
        check("10.20.3.4", &["10.20.0.0/16"], Ok(()));
        check("::ffff:10.20.3.4", &["10.20.0.0/16"], Ok(()));
        check("10.21.3.4", &["10.20.0.0/16"], Err(Private));
        check("fd12::1", &["fd12::/16"], Ok(()));
        check("127.0.0.1", &["0.0.0.0/0"], Err(Loopback));
        check("169.254.169.254", &["0.0.0.0/0", "169.254.0.0/16"], Err(Metadata));
        check("100.100.100.200", &["100.64.0.0/10"], Err(Metadata));
        for address in ["fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe"] {
            check(address, &["fd00::/8"], Err(Metadata));
        }
        assert_eq!(check_named_address("127.0.0.1".parse().unwrap()), Ok(()));
        assert_eq!(check_named_address("::ffff:169.254.169.254".parse().unwrap()), Err(Metadata));
        assert_eq!(check_named_address("0.0.0.0".parse().unwrap()), Err(Unusable));
    }
}
