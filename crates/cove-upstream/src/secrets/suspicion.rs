//! Recognises values that are likely secrets: by the name beside them, or by how tokens of well-known services begin.

/// Parts of secret names, in upper case.
const SECRET_NAME_PARTS: [&str; 10] =
    ["TOKEN", "SECRET", "PASSW", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE", "SIGNATURE"];

/// How tokens begin, and how long they are at least.
const TOKEN_PREFIXES: [(&str, usize); 24] = [
    ("-----BEGIN ", 64),
    ("AIza", 30),
    ("AKIA", 20),
    ("ATATT3", 30),
    ("SG.", 30),
    ("dop_v1_", 30),
    ("eyJ", 40),
    ("figd_", 20),
    ("gho_", 20),
    ("ghp_", 20),
    ("ghs_", 20),
    ("ghu_", 20),
    ("github_pat_", 20),
    ("glpat-", 20),
    ("gsk_", 20),
    ("hf_", 20),
    ("lin_api_", 20),
    ("npm_", 20),
    ("ntn_", 20),
    ("pypi-", 30),
    ("rk_live_", 20),
    ("sk-", 20),
    ("sk_", 20),
    ("xox", 15),
];

/// Returns true if the name of a variable or header suggests a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Returns true if a value is likely a secret whatever its name, also behind a scheme such as `Bearer`.
pub fn looks_secret(value: &str) -> bool {
    let value = value.trim();
    let credential = value.split_once(' ').filter(|(scheme, _)| scheme.len() <= 8 && !scheme.starts_with('-'));
    let credential = credential.map_or(value, |(_, credential)| credential);
    TOKEN_PREFIXES
        .iter()
        .any(|(prefix, least)| [value, credential].iter().any(|text| text.len() >= *least && text.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_secret_names() {
        for name in ["GITHUB_TOKEN", "api-key", "Authorization", "DB_PASSWORD", "client_secret", "Cookie"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["MEMORY_FILE_PATH", "LOG_LEVEL", "ROOT", "PORT", "X-Region"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn recognizes_tokens_by_their_beginning() {
        for value in ["ghp_0123456789abcdefABCDEF", "Bearer sk-0123456789abcdef0123", "xoxb-1234567890-abc"] {
            assert!(looks_secret(value), "{value}");
        }
        for value in ["", "/home/me/ghp_x", "sk-", "ask-me-anything-about-it", "production", "https://example.com"] {
            assert!(!looks_secret(value), "{value}");
        }
    }
}
