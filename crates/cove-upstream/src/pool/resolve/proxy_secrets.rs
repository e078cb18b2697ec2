//! Finds the credentials in the address of a proxy: `http://user:password@proxy:3128`, also without a scheme. Servers
//! get the address because they need it; no message and no result may repeat its credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns the credentials of an address in every form in which a program may repeat them. Empty without credentials.
pub(super) fn find_proxy_secrets(address: &str) -> Vec<String> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest).trim_end_matches('/');
    // A password may have any character, so the last `@` ends it.
    let Some((credentials, _)) = rest.rsplit_once('@') else { return Vec::new() };
    let decoded = decode_percent(credentials);
    let mut secrets = vec![rest.to_owned(), STANDARD.encode(&decoded)];
    for form in [credentials, &decoded] {
        secrets.push(form.to_owned());
        secrets.extend(form.split_once(':').map(|(_, password)| password.to_owned()));
    }
    secrets
}

/// Decodes `%2D` and the like. Leaves text that is not such an escape as it is.
pub(super) fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| str::from_utf8(digits).ok());
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_credentials_in_every_form() {
        for address in ["http://me:p%40ss%2@proxy:3128/", "me:p%40ss%2@proxy:3128"] {
            let found = find_proxy_secrets(address);
            for form in ["me:p%40ss%2@proxy:3128", "me:p%40ss%2", "p%40ss%2", "me:p@ss%2", "p@ss%2", "bWU6cEBzcyUy"] {
                assert!(found.iter().any(|secret| secret == form), "{form}: {found:?}");
            }
        }
        assert!(find_proxy_secrets("socks5://token@proxy").contains(&"token".to_owned()));
    }

    #[test]
    fn an_address_without_credentials_is_no_secret() {
        for address in ["http://proxy:3128", "proxy", "localhost,.example.com", "", "://", "%"] {
            assert_eq!(find_proxy_secrets(address), [""; 0], "{address}");
        }
    }
}
