//! The proof of a client that has a private key (RFC 7523): a short statement, signed with ES256.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use super::{SignInError, now_seconds};
use cove_core::error::display_path;
use cove_core::random::random_bits;

const MAX_KEY_FILE: u64 = 64 * 1024;
/// Seconds that the statement is valid.
const LIFETIME: u64 = 300;

/// Returns a new statement of a client for an authorization server. Fails if the key cannot be read or used.
pub(super) fn sign_assertion(key_file: &Path, client: &str, issuer: &str) -> Result<String, SignInError> {
    let shown = display_path(key_file);
    let failed = |reason: &str| SignInError::new(format!("the key `{shown}` cannot be used: {reason}"));
    let mut text = Vec::new();
    let read = File::open(key_file).and_then(|file| file.take(MAX_KEY_FILE).read_to_end(&mut text));
    read.map_err(|error| failed(&error.to_string()))?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(&text)
        .map_err(|_| failed("it is no `PRIVATE KEY` in PEM").with_hint("`openssl pkcs8 -topk8 -nocrypt` writes one"))?;
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.secret_pkcs8_der(), &random)
        .map_err(|_| failed("it is not a key of the curve P-256"))?;
    let now = now_seconds();
    let header = json!({"alg": "ES256", "typ": "client-authentication+jwt"});
    let claims = json!({
        "iss": client, "sub": client, "aud": issuer, "iat": now, "exp": now + LIFETIME,
        "jti": format!("{:032x}", random_bits()),
    });
    let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
    let signed = format!("{}.{}", encode(header.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let signature = key.sign(&random, signed.as_bytes()).map_err(|_| failed("it does not sign"))?;
    Ok(format!("{signed}.{}", encode(signature.as_ref())))
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, KeyPair, UnparsedPublicKey};
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_statement_is_signed_for_one_server() {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        let text = base64::engine::general_purpose::STANDARD.encode(key.as_ref());
        std::fs::write(&file, format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")).unwrap();
        let assertion = sign_assertion(&file, "me", "https://auth.example.com").unwrap();
        let (signed, signature) = assertion.rsplit_once('.').unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref());
        public.verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().1).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!((&claims["sub"], &claims["aud"]), (&json!("me"), &json!("https://auth.example.com")));

        std::fs::write(&file, "nonsense").unwrap();
        assert!(sign_assertion(&file, "me", "x").unwrap_err().cause.contains("it is no `PRIVATE KEY` in PEM"));
        assert!(sign_assertion(&folder.path().join("none"), "me", "x").is_err());
    }
}
